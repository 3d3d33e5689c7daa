"""What the players of the world will do, and when: one queue of due actions, in order of time.

An action whose object is gone or changed is dropped: the change that overtook it has made its own entry.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Final

from outlast.ports.clock import Clock
from outlast.sim.apiserver import ApiError

LOOK_S: Final = 0.5
"""Simulated seconds between two looks at the queue."""
ENTRIES_MAX: Final = 100_000
_OVERTAKEN: Final = (404, 409)


class Agenda:
    """Actions at simulated times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do this in `delay_s` simulated seconds. Raises OverflowError on a runaway scenario."""
        if len(self._queue) >= ENTRIES_MAX:
            raise OverflowError(f"more than {ENTRIES_MAX} actions wait")
        heapq.heappush(self._queue, (self._clock.monotonic() + delay_s, next(self._numbers), action))

    def every(self, period_s: float, action: Callable[[], None], *, first_s: float = 0.0) -> None:
        """Do this again and again."""

        def again() -> None:
            try:
                action()
            finally:
                self.after(period_s, again)

        self.after(first_s, again)

    async def run(self) -> None:
        """Do what is due. Ends by cancellation only."""
        while True:
            self.do_what_is_due()
            await self._clock.sleep(LOOK_S)

    def do_what_is_due(self) -> None:
        """Do everything whose time has come, in order of time."""
        now_s = self._clock.monotonic()
        while self._queue and self._queue[0][0] <= now_s:
            action = heapq.heappop(self._queue)[2]
            try:
                action()
            except ApiError as error:
                if error.code not in _OVERTAKEN:
                    raise
