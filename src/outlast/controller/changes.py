"""What a change in a cache means: which nodes have to be looked at, and how urgently.

Heartbeats are most of what a cluster says. Only differences in fields that a decision reads mark a
node, so the cost follows trouble and not the size of the fleet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outlast.controller.fleet import FleetLedger
from outlast.controller.policies import PolicyBook
from outlast.controller.queue import DirtyQueue, Lane
from outlast.controller.reconcile import Reconciler
from outlast.controller.world import World
from outlast.model.cluster import Job, Lease, Node
from outlast.model.health import NodeHealth
from outlast.model.incident import Incident
from outlast.model.names import (
    ACCELERATED_HARDWARE_READY,
    CORDON_ANNOTATION,
    HOLD_ANNOTATION,
    MANAGED_ANNOTATION,
)
from outlast.model.policy import RemediationPolicy
from outlast.ports.cluster import Change, Removed, Upserted

_MARKS = (CORDON_ANNOTATION, HOLD_ANNOTATION, MANAGED_ANNOTATION)


def _node_facts(node: Node) -> tuple[Any, ...]:
    """The fields of a Node that decisions and budgets read."""
    conditions = [node.condition(type_) for type_ in ("Ready", ACCELERATED_HARDWARE_READY)]
    return (
        node.metadata.uid,
        node.metadata.labels,
        [node.metadata.annotations.get(mark) for mark in _MARKS],
        node.spec.unschedulable,
        node.status.node_info,
        [(c.status, c.reason) if c is not None else None for c in conditions],
    )


class Changes:
    """Follows all caches; its methods are their `on_change`."""

    def __init__(
        self,
        world: World,
        book: PolicyBook,
        ledger: FleetLedger,
        reconciler: Reconciler,
        queue: DirtyQueue,
        on_synced: Callable[[], None],
    ) -> None:
        self._world = world
        self._book = book
        self._ledger = ledger
        self._reconciler = reconciler
        self._queue = queue
        self._on_synced = on_synced

    def _mark(self, node_name: str) -> None:
        known = self._world.open_incident(node_name) is not None
        self._queue.mark(node_name, Lane.RECORD if known else Lane.BLOCK)

    def of_node(self, change: Change) -> None:
        """Cordons, annotations, readiness, boot id, labels."""
        if isinstance(change, Upserted):
            node, old = change.new, change.old
            if old is not None and _node_facts(node) == _node_facts(old):
                return
            self._reconciler.count(node.metadata.name)
            self._mark(node.metadata.name)
        elif isinstance(change, Removed):
            name = change.old.metadata.name
            self._reconciler.count(name)
            if self._world.open_incident(name) is not None:
                self._mark(name)
        else:
            self._on_synced()

    def of_health(self, change: Change) -> None:
        """Verdicts and faults."""
        if isinstance(change, Upserted):
            health: NodeHealth = change.new
            if change.old is not None and change.old.status == health.status:
                return
            # The first word of a node may bring it under a policy.
            self._reconciler.count(health.metadata.name)
            self._mark(health.metadata.name)
        elif isinstance(change, Removed):
            self._mark(change.old.metadata.name)
        else:
            self._on_synced()

    def of_incident(self, change: Change) -> None:
        """Records, by us or by a leader before us; cancel annotations by people."""
        if isinstance(change, Upserted):
            incident: Incident = change.new
            if self._world.saw_incident(incident):
                self._ledger.saw_incident(incident)
                self._reconciler.count(incident.spec.node_name)
                self._mark(incident.spec.node_name)
        elif isinstance(change, Removed):
            self._world.lost_incident(change.old)
            self._reconciler.count(change.old.spec.node_name)
            self._mark(change.old.spec.node_name)
        else:
            self._on_synced()

    def of_policy(self, change: Change) -> None:
        """A policy may change the rule of every node."""
        if isinstance(change, Upserted):
            policy: RemediationPolicy = change.new
            if not self._book.put(policy):
                return
        elif isinstance(change, Removed):
            self._book.drop(change.old.metadata.name)
        else:
            self._on_synced()
            return
        self.mark_all()

    def mark_all(self) -> None:
        """Look at every node again, and count it again."""
        names = {node.metadata.name for node in self._world.nodes.values()}
        for name in names.union(self._world.nodes_with_open_incidents()):
            self._reconciler.count(name)
            self._mark(name)

    def of_lease(self, change: Change) -> None:
        """An agent speaks: news only where its silence, or the proof of its life, mattered."""
        if isinstance(change, Upserted):
            lease: Lease = change.new
            old = change.old
            changed = old is not None and old.spec.renew_time != lease.spec.renew_time
            name = self._world.saw_lease(lease, changed=changed)
            if not name:
                return
            if old is None or self._world.open_incident(name) is not None:
                self._mark(name)
        elif isinstance(change, Removed):
            self._world.lost_lease(change.old)
        else:
            self._on_synced()

    def of_job(self, change: Change) -> None:
        """A repair Job moved on."""
        if isinstance(change, Upserted | Removed):
            job: Job = change.new if isinstance(change, Upserted) else change.old
            incident = job.metadata.annotations.get("outlast.dev/incident", "")
            for name in self._world.nodes_with_open_incidents():
                known = self._world.open_incident(name)
                if known is not None and known.metadata.name == incident:
                    self._mark(name)
        else:
            self._on_synced()
