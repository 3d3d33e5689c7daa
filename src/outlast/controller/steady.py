"""Wall time that never steps within one process: deadlines in objects are compared with it.

Objects carry wall times, because they outlive processes. Inside a process the wall clock is read once;
from there monotonic time leads, so a clock step neither fires a deadline nor holds one back.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from outlast.ports.clock import Clock


class SteadyTime:
    """The wall time of this process's start, moved on by monotonic time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall = clock.now()
        self._mono = clock.monotonic()

    def now(self) -> datetime:
        """The present, in UTC."""
        return self._wall + timedelta(seconds=self._clock.monotonic() - self._mono)
