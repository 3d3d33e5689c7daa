"""What the agent counts about itself while it works, and when each of its loops was last alive.

Plain numbers in bounded tables; agent/metrics.py makes a page of them.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from outlast.model.observation import KernelLogCaughtUp, KernelLogGap, KernelLogLost, KernelRecord, Survey
from outlast.ports.clock import Clock
from outlast.ports.node import KernelLogItem

SERIES_MAX: Final = 64
"""Of any table with labels; what comes later is not counted."""
SURVEY_LIMIT_S: Final = 120.0
"""No survey takes longer, whatever hangs: each adapter has a deadline below it."""

Totals = dict[tuple[str, ...], tuple[float, int]]
Counts = dict[tuple[str, ...], float]


class Telemetry:
    """Counters of one agent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_s = clock.monotonic()
        self.started_at = clock.now()
        self.records = 0
        self.lost_records = 0
        self.log_readable: bool | None = None
        self.surveys: Totals = {}
        self.survey_failures: Counts = {}
        self.answered_s: dict[tuple[str, ...], float] = {}
        """When a source last answered without a failure of its own."""
        self.leaked_workers = 0
        self.writes: Counts = {}
        self.publishing = (0.0, 0)
        """Seconds from a changed verdict to its condition on the Node: sum and count."""
        self._due_s: dict[str, float] = {}

    def heard(self, item: KernelLogItem) -> None:
        """The kernel log delivered something."""
        match item:
            case KernelRecord():
                self.records += 1
            case KernelLogGap():
                self.lost_records += item.lost
            case KernelLogLost():
                self.log_readable = False
            case KernelLogCaughtUp():
                self.log_readable = True

    def surveyed(self, survey: Survey, took_s: float) -> None:
        """A source answered."""
        source = (survey.source,)
        total_s, count = self.surveys.get(source, (0.0, 0))
        if source in self.surveys or len(self.surveys) < SERIES_MAX:
            self.surveys[source] = total_s + took_s, count + 1
            if not (problem := problem_of(survey)):
                self.answered_s[source] = self._clock.monotonic()
            else:
                self._count(self.survey_failures, (survey.source, problem))

    def wrote(self, what: str, result: str) -> None:
        """A request that changes an object ended: `ok`, or the kind of the error."""
        self._count(self.writes, (what, result))

    def published(self, after_s: float) -> None:
        """A changed verdict has arrived on the Node."""
        total_s, count = self.publishing
        self.publishing = total_s + after_s, count + 1

    def alive(self, loop: str, within_s: float | None) -> None:
        """A loop turns, and will again within this time; None: when there is something to do."""
        if within_s is None:
            self._due_s.pop(loop, None)
        else:
            self._due_s[loop] = self._clock.monotonic() + within_s

    def overdue(self) -> tuple[str, ...]:
        """Loops that should have turned by now: a fault of this program, never of the machine."""
        now_s = self._clock.monotonic()
        return tuple(sorted(loop for loop, due_s in self._due_s.items() if now_s > due_s))

    def health(self) -> tuple[bool, str]:
        """Whether every loop turns. A hung driver or API server is no illness of this process."""
        overdue = self.overdue()
        if overdue:
            return False, f"these loops do not turn: {', '.join(overdue)}\n"
        return True, "every loop turns\n"

    def _count(self, table: Counts, labels: tuple[str, ...]) -> None:
        if labels in table or len(table) < SERIES_MAX:
            table[labels] = table.get(labels, 0) + 1


def problem_of(survey: Survey) -> str:
    """The kind of a source's own failure, from the closed list that it has; empty where it answered."""
    problem = getattr(survey, "problem", None)
    if isinstance(problem, Enum):
        return str(problem.value)
    failed = bool(problem) or getattr(survey, "readable", True) is False
    return "Failed" if failed else ""
