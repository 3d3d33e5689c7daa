"""An event loop whose time jumps: when nothing is left to do now, it is later.

An hour of a fleet's life takes seconds and every run is the same. For work that waits on this process
alone; real input and output have no place in it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class NothingWillHappen(Exception):
    """All tasks wait for each other, and no timer is set: a deadlock."""


class _JumpingSelector(selectors.SelectSelector):
    """Waits for no time at all, but tells the loop that all of it has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now; else let the time to the next timer pass at once."""
        ready = super().select(0)
        if ready or timeout is None or timeout <= 0:
            if not ready and timeout is None:
                raise NothingWillHappen("every task waits and no timer is set")
            return ready
        self.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual seconds."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now_s


class VirtualClock:
    """The running virtual loop as a `Clock`."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start

    def now(self) -> datetime:
        """Virtual wall time."""
        return self._start + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    async def sleep(self, delay_s: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(max(0.0, delay_s))  # noqa: TID251 - this is the clock


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a virtual loop. Raises NothingWillHappen for a deadlock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
