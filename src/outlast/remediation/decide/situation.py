"""All that a decision about one node may rest on, gathered beforehand by the controller.

Spans (`*_s`) were measured on monotonic time by whoever fills this in; `now` is that process's steady
wall time. Nothing here is looked up later: same situation, same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outlast.model.cluster import Job, Lease, Node, Pod
from outlast.model.health import NodeHealth
from outlast.model.incident import Incident
from outlast.model.names import SYSTEM_NAMESPACE
from outlast.model.policy import RemediationPolicySpec


@dataclass(frozen=True, slots=True)
class AgentSight:
    """What was seen of the agent's Lease."""

    lease: Lease | None = None
    silent_s: float | None = None
    """Since the Lease last changed before our eyes; where there is none, since the node's health was first
    seen without one. None when nothing ever came of an agent."""
    moving: bool = False
    """It changed at least once before our eyes, so a short silence is not just our own short memory."""


@dataclass(frozen=True, slots=True)
class RulingPolicy:
    """The policy in force on a node."""

    name: str
    spec: RemediationPolicySpec


@dataclass(frozen=True, slots=True)
class StormSight:
    """Many nodes newly bad with one code."""

    code: str
    nodes: int


@dataclass(frozen=True, slots=True)
class FleetView:
    """The other nodes of the same policy, counted. This node is left out of every count."""

    nodes: int = 1
    """Nodes of the policy, this one included."""
    unavailable: int = 0
    """Cordoned by anyone, NotReady, or reserved for a block that is on its way."""
    repairs_in_flight: int = 0
    repairs_in_domain: int = 0
    domain: str = ""
    repairs_last_hour: int = 0
    storm: StormSight | None = None
    complete: bool = True
    """Every cache follows its collection; otherwise the counts may be old."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One node and everything known about it."""

    node_name: str
    node: Node | None = None
    missing_s: float = 0.0
    """How long the Node object has been gone, where it is."""
    health: NodeHealth | None = None
    agent: AgentSight = AgentSight()
    incident: Incident | None = None
    """The incident that is not closed."""
    past: tuple[Incident, ...] = ()
    """Closed incidents of this node name, newest first."""
    pods: tuple[Pod, ...] | None = None
    """None: not listed yet."""
    namespace: str = SYSTEM_NAMESPACE
    """Where our repair pods run; only there is a pod with their label one of them."""
    job: Job | None = None
    """The repair Job of the open attempt, where it exists."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Pod uid -> why its eviction was last refused."""
