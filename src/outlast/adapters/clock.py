"""Clocks for real processes: the machine's own time, and the same time running faster for the demo.

Monotonic time counts the seconds a machine was suspended where the system can tell (CLOCK_BOOTTIME):
a lease goes on running out while its holder sleeps, so the holder must see that on waking.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta


def _elapsed_s() -> float:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class SystemClock:
    """The time of this machine; implements `outlast.ports.clock.Clock`."""

    def now(self) -> datetime:
        """Wall time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds since boot, those spent suspended included."""
        return _elapsed_s()

    async def sleep(self, delay_s: float) -> None:
        """Wait on the event loop; a delay of zero or less yields once."""
        await asyncio.sleep(max(0.0, delay_s))


class ScaledClock:
    """Time that starts at `start` and runs `rate` times as fast as the machine's.

    Only what asks this clock is scaled. Deadlines of real network requests stay in real seconds.
    Raises ValueError for a rate that is not positive or a start without a time zone.
    """

    def __init__(self, rate: float, start: datetime) -> None:
        if not rate > 0:
            raise ValueError(f"a clock needs a rate above zero, not {rate}")
        if start.tzinfo is None:
            raise ValueError("the start of a clock needs a time zone")
        self.rate = rate
        self._start = start.astimezone(UTC)
        self._origin_s = _elapsed_s()

    def now(self) -> datetime:
        """Scaled wall time in UTC."""
        return self._start + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        """Scaled seconds since this clock was made."""
        return (_elapsed_s() - self._origin_s) * self.rate

    async def sleep(self, delay_s: float) -> None:
        """Wait for `delay_s` scaled seconds."""
        await asyncio.sleep(max(0.0, delay_s) / self.rate)
