"""Growth of counters: baseline, new life, limit, silence."""

from __future__ import annotations

from outlast.health.counters import CHANGES_MAX, COUNTERS_MAX, CounterBook, absorb
from outlast.model.observation import CounterReading


def book(*values: tuple[float, int], limit: int | None = None) -> CounterBook:
    """A book that saw one counter with these values at these seconds."""
    result = CounterBook()
    for at, value in values:
        result = absorb(result, [CounterReading(device="d", name="c", value=value, limit=limit)], at)
    return result


def test_the_first_sample_is_a_baseline() -> None:
    """A large value on the first look says nothing."""
    assert book((0, 5000)).grown("d", "c", 60) is None


def test_growth_is_counted_from_the_value_at_the_begin_of_the_span() -> None:
    """Changes before the span are not growth within it."""
    seen = book((0, 1), (100, 4), (200, 9), (210, 9))
    assert seen.grown("d", "c", 60) == 5
    assert seen.grown("d", "c", 150) == 8
    assert seen.grown("d", "c", 5000) == 8


def test_no_change_is_no_growth() -> None:
    """Zero is an answer, other than not knowing."""
    assert book((0, 7), (15, 7)).grown("d", "c", 60) == 0


def test_a_counter_that_went_back_begins_anew() -> None:
    """A driver reload sets counters to zero; that is a new baseline."""
    seen = book((0, 100), (15, 2))
    assert seen.grown("d", "c", 60) is None
    again = absorb(seen, [CounterReading(device="d", name="c", value=5)], 30)
    assert again.grown("d", "c", 60) == 3


def test_a_counter_at_its_limit_says_nothing() -> None:
    """An 8-bit counter that stands at 255 may have grown by anything."""
    assert book((0, 250), (15, 255), limit=255).grown("d", "c", 60) is None


def test_a_counter_that_is_no_longer_seen_says_nothing() -> None:
    """Another device's look does not vouch for this one."""
    seen = book((0, 1), (15, 2))
    later = absorb(seen, [CounterReading(device="e", name="c", value=1)], 1000)
    assert later.grown("d", "c", 60) is None


def test_history_is_bounded_and_recent_growth_stays_exact() -> None:
    """A counter that changes at every look keeps a bounded number of samples, the newest among them."""
    seen = book(*[(15.0 * n, n) for n in range(1000)])
    assert len(seen.histories["d", "c"].samples) <= CHANGES_MAX
    assert seen.grown("d", "c", 15) == 1
    many = absorb(CounterBook(), [CounterReading(device=str(n), name="c", value=0) for n in range(9000)], 0)
    assert len(many.histories) == COUNTERS_MAX
    assert many.dropped == 9000 - COUNTERS_MAX
