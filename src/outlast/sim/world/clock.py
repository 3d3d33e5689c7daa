"""Fast time that never runs ahead of the program: when the event loop stalls, time stalls with it.

A plain scaled clock turns a second of a busy machine into a minute of missed deadlines. This one moves
by bounded ticks of the loop itself, so a slow machine only makes the demo longer.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from outlast.ports.clock import Clock

TICK_S: Final = 0.005
STALL_MAX_S: Final = 0.01
"""Real time between two ticks that still counts; what the loop was away longer is left out."""
_SLEEP_MIN_S: Final = 0.002


class PacedClock:
    """Implements `outlast.ports.clock.Clock`: `rate` times as fast as `pace`, while `run` runs."""

    def __init__(self, rate: float, start: datetime, pace: Clock) -> None:
        if not rate > 0:
            raise ValueError(f"a clock needs a rate above zero, not {rate:g}")
        self.rate = rate
        self._start = start.astimezone(UTC)
        self._pace = pace
        self._looked_s = pace.monotonic()
        self._passed_s = 0.0
        self.left_out_s = 0.0
        """Real seconds that were not counted because the loop was away."""

    def now(self) -> datetime:
        """Simulated wall time."""
        return self._start + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        """Simulated seconds since the start."""
        return self._passed_s + self._counted_s() * self.rate

    def _counted_s(self) -> float:
        return min(self._pace.monotonic() - self._looked_s, STALL_MAX_S)

    def set_rate(self, rate: float) -> None:
        """Go on at another speed; time makes no jump."""
        self._tick()
        self.rate = rate

    def _tick(self) -> None:
        gone_s = self._pace.monotonic() - self._looked_s
        counted_s = min(gone_s, STALL_MAX_S)
        self.left_out_s += gone_s - counted_s
        self._passed_s += counted_s * self.rate
        self._looked_s += gone_s

    async def sleep(self, delay_s: float) -> None:
        """Wait for `delay_s` simulated seconds; zero or less yields once."""
        until_s = self.monotonic() + delay_s
        left_s = delay_s
        while True:
            await self._pace.sleep(max(_SLEEP_MIN_S, left_s / self.rate) if left_s > 0 else 0)
            left_s = until_s - self.monotonic()
            if left_s <= 0:
                return

    async def run(self) -> None:
        """Let time pass. Ends by cancellation only."""
        while True:
            self._tick()
            await self._pace.sleep(TICK_S)
