"""Exponential back-off with full jitter, as a value that is asked for the next delay.

Half of each step is fixed and half random: never a hot loop, never a herd in step.
"""

from random import Random


class Backoff:
    """Delays that double from `base_s` to `max_s`; `reset` after progress."""

    def __init__(self, base_s: float, max_s: float, rng: Random) -> None:
        self._base_s = base_s
        self._max_s = max_s
        self._rng = rng
        self._steps = 0

    def next_s(self) -> float:
        """The delay before the next try, in seconds."""
        step_s: float = min(self._max_s, self._base_s * 2.0 ** min(self._steps, 32))
        self._steps += 1
        return step_s * (0.5 + 0.5 * self._rng.random())

    def reset(self) -> None:
        """Start from the base again."""
        self._steps = 0
