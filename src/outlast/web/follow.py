"""Follows the cluster: four caches, and the names of nodes that changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from outlast.model.cluster import NODES, Node
from outlast.model.health import NODE_HEALTHS, NodeHealth
from outlast.model.incident import INCIDENTS, Incident
from outlast.model.policy import REMEDIATION_POLICIES, RemediationPolicy
from outlast.ports.clock import Clock
from outlast.ports.cluster import Cache, Change, Cluster, Synced
from outlast.web.live import Hub
from outlast.web.state import FleetState

STATE_S: Final = 0.2
"""A state is at most this old in real time, less than streams wait before they look."""
MEMO_PER_NODE_MAX: Final = 4
"""Derived values kept for each node; more are of nodes that left, and all are made anew."""


class Follower:
    """Keeps a `FleetState` level with the cluster while `run` runs."""

    def __init__(self, cluster: Cluster, hub: Hub, pace: Clock) -> None:
        """`pace` is the machine's time; it only limits how often a new state is put together."""
        self._hub = hub
        self._pace = pace
        self._made_s = 0.0
        self._moved = False
        self._nodes: Cache[Node] = cluster.cache(NODES)
        self._healths: Cache[NodeHealth] = cluster.cache(NODE_HEALTHS)
        self._incidents: Cache[Incident] = cluster.cache(INCIDENTS)
        self._policies: Cache[RemediationPolicy] = cluster.cache(REMEDIATION_POLICIES)
        self._state: FleetState | None = None
        self._memo: dict[Any, Any] = {}

    @property
    def synced(self) -> bool:
        """All four collections are complete and followed."""
        return all(c.synced for c in (self._nodes, self._healths, self._incidents, self._policies))

    def state(self) -> FleetState:
        """The objects as seen within the last `STATE_S`: one value for all who look in that time."""
        now_s = self._pace.monotonic()
        is_old = self._moved and now_s - self._made_s >= STATE_S
        if self._state is None or is_old or self._state.synced != self.synced:
            self._made_s, self._moved = now_s, False
            self._state = FleetState.of(
                self._nodes.values(),
                self._healths.values(),
                self._incidents.values(),
                self._policies.values(),
                synced=self.synced,
                memo=self._memo,
            )
            if len(self._memo) > MEMO_PER_NODE_MAX * len(self._state.nodes) + MEMO_PER_NODE_MAX:
                self._memo.clear()
        return self._state

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run(self._by(lambda o: o.metadata.name)))
            group.create_task(self._healths.run(self._by(lambda o: o.metadata.name)))
            group.create_task(self._incidents.run(self._by(lambda o: o.spec.node_name)))
            group.create_task(self._policies.run(self._by(None)))

    def _by(self, node_name: Callable[[Any], str] | None) -> Callable[[Change], None]:
        def on_change(change: Change) -> None:
            self._moved = True
            if isinstance(change, Synced):
                self._hub.everything()
            elif node_name is None:
                self._hub.changed()
            else:
                seen = getattr(change, "new", None) or change.old
                self._hub.changed(node_name(seen))

        return on_change
