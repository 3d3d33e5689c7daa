"""Counters have a history: only their growth within one life of them says anything.

The first sample is a baseline, a counter that went back has begun a new life, one at its limit says
nothing any more, and what happened while nobody looked (suspend, a new boot) is not growth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import inf
from typing import Final

import msgspec

from outlast.model.observation import CounterReading

CHANGES_MAX: Final = 12
"""Changes of one counter that are remembered; beyond it the two closest in time melt together."""

COUNTERS_MAX: Final = 8192
"""More counters than 8 GPUs, 18 links each and 32 network devices have; the rest is not watched."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """A value, from this moment on."""

    at: float
    value: int


class History(msgspec.Struct, frozen=True, gc=False):
    """One counter: its baseline, then each change. `seen` is the newest look, changed or not."""

    samples: tuple[Sample, ...]
    seen: float
    saturated: bool = False


class CounterBook(msgspec.Struct, frozen=True):
    """All counters of a machine."""

    histories: Mapping[tuple[str, str], History] = {}
    now: float = 0.0
    dropped: int = 0
    """Counters beyond the limit."""

    def grown(self, device: str, name: str, within_s: float) -> int | None:
        """Growth in the last `within_s` seconds, or since the baseline where that is younger.

        None: never seen, seen once only, at its limit, or not seen for as long as the question reaches back.
        """
        history = self.histories.get((device, name))
        if history is None or history.saturated or self.now - history.seen > within_s:
            return None
        newest, oldest = history.samples[-1], history.samples[0]
        if history.seen <= oldest.at:
            return None
        if newest is oldest:
            return 0
        since = self.now - within_s
        before = oldest
        for sample in history.samples:
            if sample.at > since:
                break
            before = sample
        return newest.value - before.value


def absorb(book: CounterBook, readings: Iterable[CounterReading], now: float) -> CounterBook:
    """The book after one more look at some counters, at monotonic second `now`."""
    histories: dict[tuple[str, str], History] | None = None
    dropped = 0
    for reading in readings:
        if histories is None:
            histories = dict(book.histories)
        key = (reading.device, reading.name)
        old = histories.get(key)
        if old is not None and old.samples[-1].value == reading.value:
            histories[key] = History(old.samples, now, old.saturated)
            continue
        if old is None and len(histories) >= COUNTERS_MAX:
            dropped += 1
            continue
        histories[key] = _after(old, reading, now)
    if histories is None:
        return CounterBook(book.histories, now, book.dropped)
    return CounterBook(histories, now, dropped)


def rebaselined() -> CounterBook:
    """A book that knows nothing: after a new boot, or a span in which the machine did not run."""
    return CounterBook()


def _after(old: History | None, reading: CounterReading, now: float) -> History:
    saturated = reading.limit is not None and reading.value >= reading.limit
    sample = Sample(now, reading.value)
    if old is None or reading.value < old.samples[-1].value:
        return History((sample,), now, saturated)
    samples = (*old.samples, sample)
    if len(samples) > CHANGES_MAX:
        gaps = [later.at - sooner.at for sooner, later in pairwise(samples)]
        gaps[0] = gaps[-1] = inf  # the baseline and the newest stay
        closest = gaps.index(min(gaps))
        samples = (*samples[:closest], *samples[closest + 1 :])
    return History(samples, now, saturated)
