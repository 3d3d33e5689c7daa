"""Which policy rules a node, and which version of it is in force.

A policy that breaks a rule beyond its schema is not accepted: its status names the field, and the last
accepted spec, kept in that same status, goes on ruling.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from outlast.model.cluster import Condition, Node
from outlast.model.health import NodeHealth
from outlast.model.policy import (
    REMEDIATION_POLICIES,
    RemediationPolicy,
    RemediationPolicySpec,
    RemediationPolicyStatus,
)
from outlast.ports.cluster import Cluster, Patch, PatchType
from outlast.remediation.decide import RulingPolicy, StormSight
from outlast.remediation.decide.ladder import policy_problems

GPU_PRESENT_LABEL = "nvidia.com/gpu.present"
NO_POLICY = RulingPolicy("(none)", RemediationPolicySpec())
"""Rules a node whose policy went away in the middle of an incident: it only observes."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy object, what is wrong with it, and the spec that rules instead."""

    policy: RemediationPolicy
    problems: tuple[str, ...]
    in_force: RemediationPolicySpec | None


def judge(policy: RemediationPolicy, before: RemediationPolicySpec | None) -> Judged:
    """Accept a policy, or keep the last accepted spec: the one in memory, else the one in its status."""
    problems = policy_problems(policy.spec)
    if not problems:
        return Judged(policy, (), policy.spec)
    return Judged(policy, problems, before or policy.status.in_force)


def has_gpus(node: Node, health: NodeHealth | None) -> bool:
    """Whether a policy without selector means this node."""
    if node.metadata.labels.get(GPU_PRESENT_LABEL) == "true":
        return True
    return health is not None and bool(health.status.gpus or health.status.gpus_expected)


def selects(spec: RemediationPolicySpec, node: Node, health: NodeHealth | None) -> bool:
    """Whether a policy rules a node."""
    if not spec.node_selector:
        return has_gpus(node, health)
    labels = node.metadata.labels
    return all(labels.get(key) == value for key, value in spec.node_selector.items())


class PolicyBook:
    """All policies, in order of precedence."""

    def __init__(self) -> None:
        self._judged: dict[str, Judged] = {}
        self._order: list[RulingPolicy] = []

    def put(self, policy: RemediationPolicy) -> bool:
        """Take in a policy; whether what is in force changed."""
        name = policy.metadata.name
        known = self._judged.get(name)
        judged = judge(policy, known.in_force if known is not None else None)
        self._judged[name] = judged
        if known is not None and known.in_force == judged.in_force:
            return False
        self._sort()
        return True

    def drop(self, name: str) -> None:
        """A policy was deleted."""
        self._judged.pop(name, None)
        self._sort()

    def _sort(self) -> None:
        ruling = [RulingPolicy(n, j.in_force) for n, j in self._judged.items() if j.in_force is not None]
        self._order = sorted(ruling, key=lambda r: (-r.spec.priority, r.name))

    def ruling(self, node: Node, health: NodeHealth | None) -> RulingPolicy | None:
        """The policy in force on a node: the highest priority, then the first by name."""
        return next((r for r in self._order if selects(r.spec, node, health)), None)

    def judged(self) -> Iterable[Judged]:
        """All policies as judged."""
        return tuple(self._judged.values())


def status_of(
    judged: Judged, nodes: int, unavailable: int, storm: StormSight | None, now: datetime
) -> RemediationPolicyStatus:
    """What a policy's status should say now; times of conditions move only when they flip."""
    before = judged.policy.status
    problems = judged.problems
    kept = "; the last accepted version stays in force" if judged.in_force is not None else ""
    accepted = (
        ("False", "InvalidSpec", "; ".join(problems) + kept) if problems else ("True", "Accepted", "in force")
    )
    stormy = (
        ("True", "ManyNodesOneCode", f"{storm.nodes} nodes newly bad with {storm.code}: repairs stop")
        if storm is not None
        else ("False", "Calm", "no storm")
    )
    conditions = tuple(
        _condition(before, type_, *words, now) for type_, words in (("Accepted", accepted), ("Storm", stormy))
    )
    return RemediationPolicyStatus(
        observed_generation=judged.policy.metadata.generation,
        nodes=nodes,
        unavailable=unavailable,
        conditions=conditions,
        in_force=judged.in_force,
    )


def _condition(
    before: RemediationPolicyStatus, type_: str, status: str, reason: str, message: str, now: datetime
) -> Condition:
    known = next((c for c in before.conditions if c.type == type_), None)
    same = known is not None and known.status == status
    since = known.last_transition_time if known is not None and same else now
    return Condition(
        type=type_, status=status, reason=reason, message=message[:1024], last_transition_time=since
    )


async def write_status(cluster: Cluster, policy: RemediationPolicy, status: RemediationPolicyStatus) -> None:
    """Put a policy's status down. Raises Conflict, ClusterError."""
    plain: dict[str, Any] = msgspec.to_builtins(status)
    # Replaced as a whole: defaults are left out, and a merge would keep what an older version said there.
    operations = [
        {"op": "add", "path": "/metadata/resourceVersion", "value": policy.metadata.resource_version},
        {"op": "add", "path": "/status", "value": {"nodes": 0, "unavailable": 0} | plain},
    ]
    name = policy.metadata.name
    await cluster.patch(REMEDIATION_POLICIES, name, Patch(PatchType.JSON, operations), subresource="status")
