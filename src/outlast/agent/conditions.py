"""Our five conditions on our own Node: written on change, kept against other writers, never more.

A strategic merge patch touches only our entries, and the uid in it makes a write to a replaced Node
fail. `lastTransitionTime` moves when the status flips, and survives restarts because it is read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import structlog

from outlast.agent.options import JITTER, REASSERT_DELAY_S, WRITE_SPACING_S, Options
from outlast.agent.patience import Patience
from outlast.agent.telemetry import Telemetry
from outlast.agent.waiting import news_or_time
from outlast.model.cluster import NODES, Condition, Node
from outlast.ports.clock import Clock
from outlast.ports.cluster import (
    Change,
    Cluster,
    ClusterError,
    Conflict,
    Invalid,
    NotFound,
    Patch,
    PatchType,
    Removed,
    Upserted,
)

log = structlog.get_logger("outlast.agent")

_COMPARED: Final = ("status", "reason", "message")


class ConditionPublisher:
    """Keeps the Node's conditions level with what the judge says."""

    def __init__(
        self, cluster: Cluster, options: Options, clock: Clock, rng: Random, telemetry: Telemetry
    ) -> None:
        self._cluster = cluster
        self._telemetry = telemetry
        self._options = options
        self._clock = clock
        self._rng = rng
        self._wanted: tuple[Condition, ...] = ()
        self._written: tuple[Condition, ...] = ()
        self._checked_at: datetime | None = None
        self._written_heartbeat: datetime | None = None
        self._news = asyncio.Event()
        self._node: Node | None = None
        self._heartbeat_due_s = 0.0
        self._recheck_s: float | None = None
        self._news_s: float | None = None
        self.writes = 0
        self.on_node: Callable[[Node | None], None] = lambda _: None
        """Told of every sight of the own Node, and of its end."""

    @property
    def node_uid(self) -> str:
        """uid of our Node; empty before it was seen."""
        return self._node.metadata.uid if self._node else ""

    def want(self, wanted: tuple[Condition, ...], checked_at: datetime | None) -> None:
        """Say what is to be published. Cheap; only a difference wakes the writer."""
        self._checked_at = checked_at
        if not _same(wanted, self._wanted):
            self._wanted = wanted
            self._news_s = self._clock.monotonic() if self._news_s is None else self._news_s
            self._news.set()

    async def run(self) -> None:
        """Write for ever."""
        patience = Patience("node conditions", self._options.node_name, self._clock, self._rng)
        while True:
            await news_or_time(self._news, self._clock, self._until_next_s())
            if not self._wanted or not self._must_write():
                continue
            try:
                await self._write()
            except ClusterError as error:
                if isinstance(error, Conflict | Invalid | NotFound):
                    self._node = None  # replaced under its name: read the new uid
                self._telemetry.wrote("conditions", type(error).__name__)
                await self._clock.sleep(patience.failed(error))
                self._news.set()
            else:
                patience.succeeded()
                await self._clock.sleep(WRITE_SPACING_S)

    async def follow(self) -> None:
        """Watch the own Node for ever."""
        name = self._options.node_name
        await self._cluster.cache(NODES, field_selector=f"metadata.name={name}").run(self._changed)

    def _changed(self, change: Change) -> None:
        if isinstance(change, Upserted) and isinstance(change.new, Node):
            if change.new.metadata.name != self._options.node_name:
                return
            self._node = change.new
            self.on_node(change.new)
            if self._written and self._recheck_s is None and not self._still_written():
                # Or only the echo of our own write, which may overtake its answer: look again in a moment.
                self._recheck_s = self._clock.monotonic() + REASSERT_DELAY_S
                self._news.set()
        elif isinstance(change, Removed) and change.old.metadata.name == self._options.node_name:
            self._node, self._written = None, ()
            self.on_node(None)
            self._news.set()

    def _must_write(self) -> bool:
        if self._recheck_s is not None and self._clock.monotonic() >= self._recheck_s:
            self._recheck_s = None
            if not self._still_written():
                log.warning("another writer changed our conditions", node=self._options.node_name)
                return True
        return not _same(self._wanted, self._written) or self._heartbeat_is_due()

    def _still_written(self) -> bool:
        """Whether the Node, as far as we see it, says what we last wrote."""
        if self._node is None:
            return True
        return _same(self._written, tuple(self._node.condition(c.type) for c in self._written))

    def _until_next_s(self) -> float | None:
        if not self._written:
            return None
        next_s = (
            self._heartbeat_due_s if self._recheck_s is None else min(self._heartbeat_due_s, self._recheck_s)
        )
        return max(0.05, next_s - self._clock.monotonic())

    def _heartbeat_is_due(self) -> bool:
        """Only a completed check is worth a heartbeat: silence of the sources must show."""
        if self._clock.monotonic() < self._heartbeat_due_s:
            return False
        if self._checked_at is not None and self._checked_at != self._written_heartbeat:
            return True
        self._plan_heartbeat()
        return False

    def _plan_heartbeat(self) -> None:
        spread = 1 + JITTER * (2 * self._rng.random() - 1)
        self._heartbeat_due_s = self._clock.monotonic() + self._options.heartbeat_s * spread

    async def _write(self) -> None:
        if self._node is None:
            self._node = await self._cluster.get(NODES, self._options.node_name)
        wanted, checked_at = self._wanted, self._checked_at
        body = patch_body(wanted, self._node, checked_at)
        written = await self._cluster.patch(
            NODES, self._options.node_name, Patch(PatchType.STRATEGIC, body), subresource="status"
        )
        self._node, self._written = written, wanted
        self.writes += 1
        self._telemetry.wrote("conditions", "ok")
        if self._news_s is not None:
            self._telemetry.published(self._clock.monotonic() - self._news_s)
            self._news_s = None
        self._written_heartbeat = checked_at or self._clock.now()
        self._plan_heartbeat()


def patch_body(wanted: tuple[Condition, ...], node: Node, checked_at: datetime | None) -> dict[str, Any]:
    """The strategic merge patch that publishes `wanted` on `node`."""
    entries = []
    for condition in wanted:
        here = node.condition(condition.type)
        since = condition.last_transition_time
        if here is not None and here.status == condition.status and here.last_transition_time is not None:
            since = here.last_transition_time
        # Spelled out: the shape leaves out defaults, and "Unknown" is one.
        entry = {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": _timestamp(since),
            "lastHeartbeatTime": _timestamp(checked_at),
        }
        entries.append({name: value for name, value in entry.items() if value is not None})
    return {"metadata": {"uid": node.metadata.uid}, "status": {"conditions": entries}}


def _timestamp(moment: datetime | None) -> str | None:
    """metav1.Time: UTC, no fractions."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


def _same(one: tuple[Condition, ...], other: tuple[Condition | None, ...]) -> bool:
    return len(one) == len(other) and all(
        b is not None and all(getattr(a, name) == getattr(b, name) for name in _COMPARED)
        for a, b in zip(one, other, strict=True)
    )
