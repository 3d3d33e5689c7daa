"""The controller's picture of the cluster: caches, what it wrote itself, and what it saw of the agents.

A cache lags behind our own writes. Deciding on a picture without them would undo them, so the newer of
the two versions counts until the cache has caught up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.controller.options import ControllerOptions
from outlast.model.cluster import JOBS, LEASES, NODES, Job, KubernetesObject, Lease, Node
from outlast.model.health import NODE_HEALTHS, NodeHealth
from outlast.model.incident import INCIDENTS, Incident, Phase
from outlast.model.names import AGENT_LEASE_PREFIX, REPAIR_LABEL
from outlast.model.policy import REMEDIATION_POLICIES, RemediationPolicy
from outlast.ports.clock import Clock
from outlast.ports.cluster import Cache, Cluster
from outlast.remediation.act.pods import Refusal
from outlast.remediation.decide import AgentSight, Situation


def version_of(obj: KubernetesObject) -> int:
    """The resourceVersion as a number; Kubernetes promises that they can be compared so."""
    text = obj.metadata.resource_version
    return int(text) if text.isdigit() else 0


def is_newer(one: KubernetesObject, other: KubernetesObject | None) -> bool:
    """Whether one version of an object is newer than another."""
    return other is None or version_of(one) > version_of(other)


@dataclass(slots=True)
class Sight:
    """What was seen of one agent's Lease, on our monotonic clock."""

    lease: Lease
    changed_s: float
    moving: bool = False


@dataclass(slots=True)
class _Cases:
    """The incidents of one node, by name."""

    open: dict[str, Incident] = field(default_factory=dict)
    closed: dict[str, Incident] = field(default_factory=dict)


class World:
    """Everything known; changed only on the event loop's thread, never across an await."""

    def __init__(self, cluster: Cluster, clock: Clock, options: ControllerOptions) -> None:
        self._clock = clock
        self.nodes: Cache[Node] = cluster.cache(NODES)
        self.healths: Cache[NodeHealth] = cluster.cache(NODE_HEALTHS)
        self.incidents: Cache[Incident] = cluster.cache(INCIDENTS)
        self.policies: Cache[RemediationPolicy] = cluster.cache(REMEDIATION_POLICIES)
        self.leases: Cache[Lease] = cluster.cache(LEASES, options.namespace)
        self.jobs: Cache[Job] = cluster.cache(JOBS, options.namespace, label_selector=REPAIR_LABEL)
        self._namespace = options.namespace
        self._own_nodes: dict[str, Node] = {}
        self._cases: dict[str, _Cases] = {}
        self._sights: dict[str, Sight] = {}
        self._missing: dict[str, float] = {}
        self._unheard: dict[str, float] = {}
        self.refusals: dict[str, dict[str, Refusal]] = {}

    def caches(self) -> tuple[Cache[KubernetesObject], ...]:
        """All caches."""
        return (self.nodes, self.healths, self.incidents, self.policies, self.leases, self.jobs)

    @property
    def synced(self) -> bool:
        """Whether every cache holds a complete picture."""
        return all(cache.synced for cache in self.caches())

    def node(self, name: str) -> Node | None:
        """The node as last seen or written."""
        cached, own = self.nodes.get(name), self._own_nodes.get(name)
        if own is None:
            return cached
        if cached is None or cached.metadata.uid != own.metadata.uid or not is_newer(own, cached):
            del self._own_nodes[name]
            return cached
        return own

    def wrote_node(self, node: Node) -> None:
        """Remember what the server returned for a write of ours until the cache shows it."""
        self._own_nodes[node.metadata.name] = node

    def saw_incident(self, incident: Incident) -> bool:
        """Take in an incident from the cache or from a write of ours; whether it was news."""
        cases = self._cases.setdefault(incident.spec.node_name, _Cases())
        name = incident.metadata.name
        known = cases.open.get(name) or cases.closed.get(name)
        same = known is not None and known.metadata.uid == incident.metadata.uid
        if same and not is_newer(incident, known):
            return False
        cases.open.pop(name, None)
        cases.closed.pop(name, None)
        closed = incident.status.phase is Phase.CLOSED
        (cases.closed if closed else cases.open)[name] = incident
        if closed and not cases.open:
            self.refusals.pop(incident.spec.node_name, None)
        return True

    def lost_incident(self, incident: Incident) -> None:
        """An incident was deleted."""
        cases = self._cases.get(incident.spec.node_name)
        if cases is None:
            return
        for part in (cases.open, cases.closed):
            known = part.get(incident.metadata.name)
            if known is not None and known.metadata.uid == incident.metadata.uid:
                del part[incident.metadata.name]
        if not cases.open and not cases.closed:
            del self._cases[incident.spec.node_name]

    def open_incident(self, node_name: str) -> Incident | None:
        """The incident that counts: one that acts before one that observes, then the oldest."""
        cases = self._cases.get(node_name)
        if cases is None or not cases.open:
            return None
        return min(
            cases.open.values(), key=lambda i: (i.spec.observe_only, i.spec.opened_at, i.metadata.name)
        )

    def closed_incidents(self, node_name: str) -> tuple[Incident, ...]:
        """Closed incidents of a node, newest first."""
        cases = self._cases.get(node_name)
        if cases is None:
            return ()
        return tuple(sorted(cases.closed.values(), key=lambda i: i.spec.opened_at, reverse=True))

    def all_incidents(self) -> list[Incident]:
        """Open and closed ones, of all nodes."""
        found: list[Incident] = []
        for cases in self._cases.values():
            found.extend(cases.open.values())
            found.extend(cases.closed.values())
        return found

    def nodes_with_open_incidents(self) -> list[str]:
        """Names of nodes, some of which may be gone."""
        return [name for name, cases in self._cases.items() if cases.open]

    def saw_lease(self, lease: Lease, *, changed: bool) -> str:
        """Take in an agent's Lease; the node's name, or empty where it is not an agent's."""
        name = lease.metadata.name
        if not name.startswith(AGENT_LEASE_PREFIX):
            return ""
        node_name = name.removeprefix(AGENT_LEASE_PREFIX)
        known = self._sights.get(node_name)
        if known is None:
            self._sights[node_name] = Sight(lease, self._clock.monotonic())
        elif changed or known.lease.spec.renew_time != lease.spec.renew_time:
            self._sights[node_name] = Sight(lease, self._clock.monotonic(), moving=True)
        return node_name

    def lost_lease(self, lease: Lease) -> None:
        """An agent's Lease was deleted: silence goes on counting from the last sight."""
        node_name = lease.metadata.name.removeprefix(AGENT_LEASE_PREFIX)
        if self.nodes.get(node_name) is None:
            self._sights.pop(node_name, None)

    def sight(self, node_name: str) -> AgentSight:
        """What is known of a node's agent now."""
        sight = self._sights.get(node_name)
        if sight is None:
            return AgentSight(silent_s=self._unheard_s(node_name))
        self._unheard.pop(node_name, None)
        return AgentSight(sight.lease, self._clock.monotonic() - sight.changed_s, sight.moving)

    def _unheard_s(self, node_name: str) -> float | None:
        """How long a node has had a NodeHealth before our eyes and no Lease: an agent that may be dead."""
        if self.healths.get(node_name) is None:
            self._unheard.pop(node_name, None)
            return None
        now_s = self._clock.monotonic()
        return now_s - self._unheard.setdefault(node_name, now_s)

    def _missing_s(self, node_name: str, node: Node | None) -> float:
        if node is not None:
            self._missing.pop(node_name, None)
            return 0.0
        now_s = self._clock.monotonic()
        return now_s - self._missing.setdefault(node_name, now_s)

    def forget_node(self, node_name: str) -> None:
        """A node is gone and has no open incident: nothing about it is kept."""
        for memory in (self._missing, self._unheard, self._sights, self._own_nodes, self.refusals):
            memory.pop(node_name, None)

    def situation(self, node_name: str) -> Situation:
        """Everything known about a node, without its pods."""
        node = self.node(node_name)
        incident = self.open_incident(node_name)
        attempt = incident.status.open_attempt if incident is not None else None
        job = self.jobs.get(attempt.job_name, self._namespace) if attempt and attempt.job_name else None
        refusals = self.refusals.get(node_name, {})
        return Situation(
            node_name=node_name,
            node=node,
            missing_s=self._missing_s(node_name, node) if incident is not None else 0.0,
            health=self.healths.get(node_name),
            agent=self.sight(node_name),
            incident=incident,
            past=self.closed_incidents(node_name),
            namespace=self._namespace,
            job=job,
            refusals={uid: refusal.why for uid, refusal in refusals.items()},
        )
