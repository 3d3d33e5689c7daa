"""A clock that tests move by hand, and waiting for a condition with a deadline."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

DEADLINE_S = 10.0


class VirtualClock:
    """Implements `outlast.ports.clock.Clock`; an instant one lets every sleep pass at once."""

    def __init__(self, *, instant: bool = False) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []
        self._instant = instant
        self._sleepers: list[tuple[float, int, float, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now_s)

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.slept_s.append(delay_s)
        if self._instant or delay_s <= 0:
            self.now_s += max(0.0, delay_s)
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now_s + delay_s, next(self._numbers), delay_s, future))
        await future

    async def advance(self, span_s: float) -> None:
        """Move on by `span_s`, waking sleepers in order, each with a few turns of the loop."""
        target_s = self.now_s + span_s
        while self._sleepers and self._sleepers[0][0] <= target_s:
            await self._wake()
        self.now_s = target_s
        await _turns()

    async def pass_short_waits(self, shorter_than_s: float) -> None:
        """Wake those at the front that asked for less than that: back-offs, not watchdogs."""
        while self._sleepers and self._sleepers[0][2] < shorter_than_s:
            await self._wake()

    async def _wake(self) -> None:
        due_s, _, _, future = heapq.heappop(self._sleepers)
        if not future.done():
            self.now_s = max(self.now_s, due_s)
            future.set_result(None)
            await _turns()


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def eventually(
    condition: Callable[[], object], clock: VirtualClock | None = None, *, passing_waits_s: float = 10.0
) -> None:
    """Return once `condition()` is true, letting short virtual waits pass; fail after DEADLINE_S."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            if clock is not None:
                await clock.pass_short_waits(passing_waits_s)
            await asyncio.sleep(0.001)
