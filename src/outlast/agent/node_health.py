"""The NodeHealth object of this node: created once, its status patched when something changed.

On a quiet node it is read again at each heartbeat, and written again where somebody changed or deleted it.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime
from random import Random
from typing import Any

import msgspec

import outlast
from outlast.agent.options import JITTER, WRITE_SPACING_S, Options
from outlast.agent.patience import Patience
from outlast.agent.telemetry import Telemetry
from outlast.agent.waiting import news_or_time
from outlast.model.cluster import NODES
from outlast.model.health import NODE_HEALTHS, NodeHealthStatus, QuiesceStatus
from outlast.ports.clock import Clock
from outlast.ports.cluster import AlreadyExists, Cluster, ClusterError, NotFound, Patch, PatchType

_FIELDS = tuple(field.encode_name for field in msgspec.structs.fields(NodeHealthStatus))
_QUIESCE_FIELDS = tuple(field.encode_name for field in msgspec.structs.fields(QuiesceStatus))


class NodeHealthPublisher:
    """Keeps the NodeHealth object level with what the judge says."""

    def __init__(
        self, cluster: Cluster, options: Options, clock: Clock, rng: Random, telemetry: Telemetry
    ) -> None:
        self._cluster = cluster
        self._telemetry = telemetry
        self._options = options
        self._clock = clock
        self._rng = rng
        self._started_at: datetime = clock.now()
        self._wanted: NodeHealthStatus | None = None
        self._news = asyncio.Event()
        self._exists = False
        self._node_uid = ""
        self.writes = 0

    def want(self, status: NodeHealthStatus, node_uid: str, quiesce: QuiesceStatus | None = None) -> None:
        """Say what is to be published. Cheap; only a difference wakes the writer."""
        self._node_uid = node_uid or self._node_uid
        status = msgspec.structs.replace(
            status,
            node_uid=self._node_uid,
            agent_version=outlast.__version__,
            started_at=self._started_at,
            quiesce=quiesce,
        )
        news = self._wanted is None or _significant(status) != _significant(self._wanted)
        self._wanted = status
        if news:
            self._news.set()

    async def run(self) -> None:
        """Write for ever."""
        patience = Patience("NodeHealth", self._options.node_name, self._clock, self._rng)
        while True:
            spread = 1 + JITTER * (2 * self._rng.random() - 1)
            news = await news_or_time(self._news, self._clock, self._options.heartbeat_s * spread)
            try:
                if news or not await self._stands():
                    await self._write()
            except ClusterError as error:
                self._exists = self._exists and not isinstance(error, NotFound)
                self._telemetry.wrote("nodehealth", type(error).__name__)
                await self._clock.sleep(patience.failed(error))
                self._news.set()
            else:
                patience.succeeded()
                await self._clock.sleep(WRITE_SPACING_S)

    async def _stands(self) -> bool:
        """Whether the object still says what was last written: anybody may delete it on a quiet node."""
        if self._wanted is None:
            return True
        try:
            found = (await self._cluster.get(NODE_HEALTHS, self._options.node_name)).status
        except NotFound:
            return False
        return _significant(found) == _significant(self._wanted)

    async def _write(self) -> None:
        name = self._options.node_name
        if not self._node_uid:
            with contextlib.suppress(NotFound):
                self._node_uid = (await self._cluster.get(NODES, name)).metadata.uid
        if self._wanted is None:
            return
        wanted = self._wanted = msgspec.structs.replace(self._wanted, node_uid=self._node_uid)
        if not self._exists:
            await self._create(name)
        try:
            await self._patch(name, wanted)
        except NotFound:
            # Somebody deleted it: it is ours to make again.
            await self._create(name)
            await self._patch(name, wanted)
        self.writes += 1
        self._telemetry.wrote("nodehealth", "ok")

    async def _create(self, name: str) -> None:
        with contextlib.suppress(AlreadyExists):
            await self._cluster.create(
                NODE_HEALTHS,
                {
                    "apiVersion": NODE_HEALTHS.api_version,
                    "kind": NODE_HEALTHS.name,
                    "metadata": {"name": name},
                },
            )
        self._exists = True

    async def _patch(self, name: str, wanted: NodeHealthStatus) -> None:
        await self._cluster.patch(
            NODE_HEALTHS, name, Patch(PatchType.MERGE, {"status": status_patch(wanted)}), subresource="status"
        )


def status_patch(status: NodeHealthStatus) -> dict[str, Any]:
    """All fields, absent ones as null, in objects too: a merge patch forgets nothing by itself."""
    present: dict[str, Any] = msgspec.to_builtins(status)
    if status.quiesce is not None:
        answer = present["quiesce"]
        present["quiesce"] = {name: answer.get(name) for name in _QUIESCE_FIELDS}
    return {name: present.get(name) for name in _FIELDS}


def _significant(status: NodeHealthStatus) -> NodeHealthStatus:
    """Without what moves with every poll; whether there was a check at all is news."""
    checked = status.started_at if status.checked_at is not None else None
    return msgspec.structs.replace(status, checked_at=checked)
