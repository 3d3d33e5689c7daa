"""Clocks for real processes."""

from datetime import UTC, datetime, timedelta

import pytest

from outlast.adapters.clock import ScaledClock, SystemClock


@pytest.mark.asyncio
async def test_the_machines_clock_moves_by_what_was_slept() -> None:
    """Wall time is aware and in UTC, monotonic time grows at least by the wait."""
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.01)
    await clock.sleep(-1)
    assert clock.monotonic() - before >= 0.009
    assert clock.now().tzinfo is UTC


@pytest.mark.asyncio
async def test_a_scaled_clock_runs_as_many_times_faster() -> None:
    """An hour passes in the time of 36 ms; wall and monotonic time agree."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    clock = ScaledClock(100_000, start)
    before_s, real = clock.monotonic(), SystemClock()
    real_before_s = real.monotonic()
    await clock.sleep(3600)
    assert clock.monotonic() - before_s >= 3500
    assert real.monotonic() - real_before_s < 10
    assert abs((clock.now() - start) - timedelta(seconds=clock.monotonic())) < timedelta(seconds=3600)


@pytest.mark.parametrize(
    ("rate", "start"),
    [(0.0, datetime(2026, 1, 1, tzinfo=UTC)), (1.0, datetime(2026, 1, 1))],  # noqa: DTZ001
)
def test_a_clock_that_cannot_run_is_refused(rate: float, start: datetime) -> None:
    """Standing still or without a zone."""
    with pytest.raises(ValueError, match=r"a clock|a time zone"):
        ScaledClock(rate, start)
