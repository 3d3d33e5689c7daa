"""Writes Kubernetes Events without ever holding anything up.

Notes wait in a bounded queue; the same note again only raises a count, as kubectl shows it ("x12 over
5m"). What cannot be written in a few tries is dropped and counted: an Event is news, not state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

import structlog

from outlast.adapters.kubernetes.backoff import Backoff
from outlast.adapters.kubernetes.codec import micro_time
from outlast.model.cluster import EVENTS
from outlast.ports.clock import Clock
from outlast.ports.cluster import (
    AlreadyExists,
    Cluster,
    ClusterError,
    EventNote,
    NotFound,
    Patch,
    PatchType,
    Unavailable,
)

QUEUE_MAX = 1000
REMEMBERED_MAX = 4096
"""Events whose name is remembered, so that a repetition is a patch; the same number client-go keeps."""
TRIES_MAX = 3
MESSAGE_CHARS_MAX = 1024
REASON_CHARS_MAX = 128
NAME_CHARS_MAX = 253

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Pending:
    """A note that waits, and how often it came while it waited."""

    note: EventNote
    count: int
    first: datetime
    last: datetime
    name: str = ""


@dataclass(slots=True)
class _Written:
    """An Event on the server."""

    name: str
    count: int


class QueuedEvents:
    """Implements `outlast.ports.cluster.EventRecorder`; nothing is written until `run` is awaited."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        clock: Clock,
        rng: Random,
        component: str = "outlast-controller",
        host: str = "",
        queue_max: int = QUEUE_MAX,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._rng = rng
        self._component = component
        self._host = host
        self._queue_max = queue_max
        self._pending: OrderedDict[EventNote, _Pending] = OrderedDict()
        self._written: OrderedDict[EventNote, _Written] = OrderedDict()
        self._arrived = asyncio.Event()
        self._is_full = False
        self.dropped = 0
        """Notes that were not written: the queue was full, or the server did not take them."""

    def record(self, note: EventNote) -> None:
        """Queue a note; a full queue drops it and counts the drop."""
        now = self._clock.now()
        pending = self._pending.get(note)
        if pending is not None:
            pending.count += 1
            pending.last = now
        elif len(self._pending) >= self._queue_max:
            self.dropped += 1
            if not self._is_full:
                self._is_full = True
                _log.warning("events are dropped until the queue is written", queue_max=self._queue_max)
        else:
            self._pending[note] = _Pending(note, 1, now, now)
            self._arrived.set()

    async def run(self) -> None:
        """Write notes as they come, for ever."""
        while True:
            await self._arrived.wait()
            await self.flush()

    async def flush(self) -> None:
        """Write all that waits now; returns when the queue is empty."""
        while self._pending:
            _, pending = self._pending.popitem(last=False)
            await self._deliver(pending)
        self._arrived.clear()
        if self._is_full:
            self._is_full = False
            _log.info("the queue of events is written", dropped=self.dropped)

    async def _deliver(self, pending: _Pending) -> None:
        backoff = Backoff(1.0, 5.0, self._rng)
        why = ""
        for attempt in range(TRIES_MAX):
            if attempt:
                await self._clock.sleep(backoff.next_s())
            try:
                await self._write(pending)
                return
            except Unavailable as error:
                why = str(error)
            except ClusterError as error:
                why = str(error)
                break
        self.dropped += pending.count
        _log.warning("event dropped", reason=pending.note.reason, object=pending.note.name, why=why)

    async def _write(self, pending: _Pending) -> None:
        note = pending.note
        namespace = note.namespace or "default"
        written = self._written.get(note)
        if written is not None:
            count = written.count + pending.count
            body = {"count": count, "lastTimestamp": _seconds(pending.last)}
            try:
                await self._cluster.patch(EVENTS, written.name, Patch(PatchType.MERGE, body), namespace)
            except NotFound:
                # The server lets Events expire; this one starts a new life.
                self._written.pop(note, None)
            else:
                written.count = count
                self._written.move_to_end(note)
                return
        # The name is kept for a second try: should the first have worked unnoticed, it is taken.
        pending.name = pending.name or self._name_for(note)
        with contextlib.suppress(AlreadyExists):
            await self._cluster.create(EVENTS, self._event(pending, namespace), namespace)
        self._written[note] = _Written(pending.name, pending.count)
        if len(self._written) > REMEMBERED_MAX:
            self._written.popitem(last=False)

    def _name_for(self, note: EventNote) -> str:
        suffix = f".{self._rng.getrandbits(64):016x}"
        return note.name[: NAME_CHARS_MAX - len(suffix)] + suffix

    def _event(self, pending: _Pending, namespace: str) -> dict[str, Any]:
        note = pending.note
        return {
            "metadata": {"name": pending.name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": note.kind.api_version,
                "kind": note.kind.name,
                "name": note.name,
                "namespace": note.namespace,
                "uid": note.uid,
            },
            "reason": note.reason[:REASON_CHARS_MAX],
            "message": _shortened(note.message),
            "type": "Warning" if note.warning else "Normal",
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": _seconds(pending.first),
            "lastTimestamp": _seconds(pending.last),
            "count": pending.count,
        }


def _seconds(moment: datetime) -> str:
    return micro_time(moment.replace(microsecond=0))


def _shortened(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARS_MAX else message[: MESSAGE_CHARS_MAX - 1] + "…"
