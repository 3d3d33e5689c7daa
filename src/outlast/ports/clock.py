"""Time as a dependency.

Wall time is for people and for objects that outlive the process; everything that measures a span
(leases, deadlines, back-off) uses monotonic time, so a clock step changes nothing.
"""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time, monotonic time and waiting, from one source."""

    def now(self) -> datetime:
        """Wall time, aware, in UTC. May step; never subtract two of these to decide anything."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean something."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Return after ``delay_s`` seconds of this clock's monotonic time."""
        ...
