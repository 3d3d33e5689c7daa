"""What the dashboard knows: the objects as last seen, and the few indexes every view needs.

A state is read within one tick of the event loop; views take it with `now` and return page data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outlast.model.cluster import Node
from outlast.model.health import NodeHealth
from outlast.model.incident import Incident
from outlast.model.policy import RemediationPolicy
from outlast.web.standing import Standing, standing

DEFAULT_DOMAIN_LABEL = "topology.kubernetes.io/zone"
POOL_LABEL = "karpenter.sh/nodepool"


@dataclass(frozen=True, slots=True)
class FleetState:
    """The four kinds of objects by name, and whether they are complete and fresh."""

    nodes: Mapping[str, Node]
    healths: Mapping[str, NodeHealth]
    incidents: Mapping[str, Incident]
    policies: Mapping[str, RemediationPolicy]
    synced: bool = True
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """What views derived from single objects, kept while those objects are the same; changes no result."""
    by_node: Mapping[str, tuple[Incident, ...]] = field(init=False)
    """Incidents of each node name, newest first."""

    def __post_init__(self) -> None:
        index: dict[str, list[Incident]] = {}
        for incident in self.incidents.values():
            index.setdefault(incident.spec.node_name, []).append(incident)
        for stories in index.values():
            stories.sort(key=lambda i: i.spec.opened_at, reverse=True)
        object.__setattr__(self, "by_node", {name: tuple(found) for name, found in index.items()})

    @classmethod
    def of(
        cls,
        nodes: Iterable[Node],
        healths: Iterable[NodeHealth] = (),
        incidents: Iterable[Incident] = (),
        policies: Iterable[RemediationPolicy] = (),
        *,
        synced: bool = True,
        memo: dict[Any, Any] | None = None,
    ) -> FleetState:
        """Build a state from plain collections."""
        return cls(
            nodes={n.metadata.name: n for n in nodes},
            healths={h.metadata.name: h for h in healths},
            incidents={i.metadata.name: i for i in incidents},
            policies={p.metadata.name: p for p in policies},
            synced=synced,
            memo={} if memo is None else memo,
        )

    def open_incident(self, node: Node) -> Incident | None:
        """The incident that keeps this very node (name and uid) out of service, or None."""
        for incident in self.by_node.get(node.metadata.name, ()):
            if incident.status.end is None and incident.spec.node_uid in ("", node.metadata.uid):
                return incident
        return None

    def standing(self, node: Node) -> Standing:
        """Where this node stands."""
        return standing(node, self.healths.get(node.metadata.name), self.open_incident(node))

    def domain_label(self) -> str:
        """The label that names a failure domain: the first policy's choice, else the zone."""
        for policy in self.policies.values():
            return policy.spec.budgets.failure_domain_label
        return DEFAULT_DOMAIN_LABEL

    def is_gpu_node(self, node: Node) -> bool:
        """Whether the dashboard shows it: it has an agent, or says it has GPUs."""
        return (
            node.metadata.name in self.healths or node.metadata.labels.get("nvidia.com/gpu.present") == "true"
        )


def out_seconds(incident: Incident, since: datetime, now: datetime) -> float:
    """How long this incident kept its node from new work between `since` and `now`, in seconds."""
    if incident.spec.observe_only:
        return 0.0
    timings = incident.status.timings
    start = max(timings.blocked_at or incident.spec.opened_at, since)
    end = timings.returned_at or (incident.status.end.at if incident.status.end else now)
    return max(0.0, (min(end, now) - start).total_seconds())
