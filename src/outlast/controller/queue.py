"""Which nodes have to be looked at: a set, not a list of events.

A node waits at most once, is worked on by at most one worker, and two lanes put nodes that may still
have to be blocked before everything else. Time enters as due times; nothing here grows with events.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from enum import IntEnum

STALE_TIMES_MAX = 64
"""Due times beyond twice the names that wait for one; then those that no longer count are dropped."""


class Lane(IntEnum):
    """Which nodes go first."""

    BLOCK = 0
    RECORD = 1


class DirtyQueue:
    """Names that wait, names at work, names that become due."""

    def __init__(self, records_in_flight: int) -> None:
        self._records_max = records_in_flight
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._recording: OrderedDict[str, None] = OrderedDict()
        self._at_work: dict[str, Lane] = {}
        self._again: dict[str, Lane] = {}
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._wakes: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        """Names that wait now."""
        return len(self._waiting) + len(self._recording)

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing is at work; names that are due later do not count."""
        return not (self._waiting or self._recording or self._at_work)

    def mark(self, name: str, lane: Lane) -> None:
        """A node has to be looked at now."""
        self._due.pop(name, None)
        if name in self._at_work:
            self._again[name] = min(lane, self._again.get(name, lane))
            return
        self._put(name, lane)

    def _put(self, name: str, lane: Lane) -> None:
        if lane is Lane.BLOCK:
            self._recording.pop(name, None)
            self._waiting[name] = None
        elif name not in self._waiting:
            self._recording[name] = None
        self._wake()

    def mark_at(self, name: str, due_s: float) -> None:
        """A node has to be looked at when its time has come, unless it is looked at before."""
        known = self._due.get(name)
        if known is not None and known <= due_s:
            return
        self._due[name] = due_s
        heapq.heappush(self._heap, (due_s, name))
        if len(self._heap) > 2 * len(self._due) + STALE_TIMES_MAX:
            # Each look leaves the time it made needless behind: drop those before they outnumber the rest.
            self._heap = [(due, waiting) for waiting, due in self._due.items()]
            heapq.heapify(self._heap)

    def release_due(self, now_s: float) -> int:
        """Mark what has become due; how many names did."""
        released = 0
        while self._heap and self._heap[0][0] <= now_s:
            due_s, name = heapq.heappop(self._heap)
            if self._due.get(name) == due_s:
                released += 1
                self.mark(name, Lane.RECORD)
        return released

    async def take(self) -> tuple[str, Lane]:
        """The next name, which is then at work until `done`."""
        while True:
            found = self._next()
            if found is not None:
                self._at_work[found[0]] = found[1]
                return found
            wake = asyncio.get_running_loop().create_future()
            self._wakes.append(wake)
            try:
                await wake
            finally:
                if wake in self._wakes:
                    self._wakes.remove(wake)

    def _next(self) -> tuple[str, Lane] | None:
        if self._waiting:
            return self._waiting.popitem(last=False)[0], Lane.BLOCK
        # Blocks in flight use up the slots of records too: in a burst, blocking comes first.
        if self._recording and len(self._at_work) < self._records_max:
            return self._recording.popitem(last=False)[0], Lane.RECORD
        return None

    def done(self, name: str) -> None:
        """A name is no longer at work; if it was marked meanwhile it waits again."""
        self._at_work.pop(name, None)
        lane = self._again.pop(name, None)
        if lane is not None:
            self._put(name, lane)
        self._wake()

    def _wake(self) -> None:
        if self._wakes:
            wake = self._wakes.pop(0)
            if not wake.done():
                wake.set_result(None)
