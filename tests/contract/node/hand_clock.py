"""A clock that a test moves, for adapters that remember when something was."""


class HandClock:
    """Monotonic seconds that stand still until a test lets them go on."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
