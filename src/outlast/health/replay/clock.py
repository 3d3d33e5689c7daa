"""Virtual time of one machine's log: it goes on by the differences of whatever times the lines print.

It never goes back. A log without any time stands still, and then only the order of its lines counts.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from outlast.health.replay.line import SECOND_US, LogLine

OUT_OF_ORDER_US: Final = 10 * SECOND_US
"""Lines of several cores may be this much out of order; more is another boot."""
NEW_YEAR: Final = timedelta(days=183)
LEAP_YEAR: Final = timedelta(days=366)
BOOT_US: Final = 1_000 * SECOND_US
"""Between boots so much time passes at least, that nothing of the one joins a burst of the other."""
REMEMBERED_MAX: Final = 16_384
"""Lines remembered, twice, to know them again when a file repeats a part of the log."""


class Course(Enum):
    """How a line stands to those before it."""

    ON = 0
    NEW_BOOT = 1
    REPEATED = 2


class VirtualTime:
    """Elapsed time since the first line of this machine, and the words for a moment."""

    def __init__(self) -> None:
        self.elapsed_us = 0
        self._uptime: int | None = None
        self._wall: datetime | None = None
        self._wall_at_us = 0
        self._uptime_at_us = 0
        self._year = self._zone = False
        self._repeating = False
        self._seen: set[int] = set()
        self._seen_before: set[int] = set()

    @property
    def dated(self) -> bool:
        """Whether any line had a date."""
        return self._wall is not None

    @property
    def timed(self) -> bool:
        """Whether any line had a time."""
        return self._wall is not None or self._uptime is not None or self.elapsed_us > 0

    def advance(self, line: LogLine) -> Course:
        """Go on to this line."""
        course = Course.ON
        known = hash((line.uptime_us, line.wall, line.text))
        self._repeating = (self._goes_back(line) or self._repeating) and self._knows(known)
        if self._repeating:
            return Course.REPEATED
        if line.uptime_us is not None or line.wall is not None:
            self._seen.add(known)
            if len(self._seen) > REMEMBERED_MAX:
                self._seen_before, self._seen = self._seen, set()
        if line.relative_us is not None:
            self.elapsed_us += line.relative_us
        on_us = 0
        uptime_counts = False
        if line.uptime_us is not None:
            if self._uptime is not None:
                if line.uptime_us < self._uptime - OUT_OF_ORDER_US and not line.boot_id:
                    course = Course.NEW_BOOT
                else:
                    uptime_counts = True
                    on_us = max(0, line.uptime_us - self._uptime)
            if not uptime_counts or line.uptime_us > self._uptime:  # type: ignore[operator]
                self._uptime = line.uptime_us
        if line.wall is not None:
            since = self._since(line.wall)
            if not uptime_counts and line.relative_us is None and since is not None:
                on_us = max(0, since // timedelta(microseconds=1))
        self.elapsed_us += on_us
        if line.wall is not None:
            self._wall, self._wall_at_us = line.wall, self.elapsed_us
            self._year, self._zone = line.year, line.zone
        if line.uptime_us is not None:
            self._uptime_at_us = self.elapsed_us
        return course

    def repeats(self, line: LogLine) -> bool:
        """Whether a line that marks a boot was there before; told by its date, for uptimes begin again."""
        known = hash((line.uptime_us, line.wall, line.text))
        self._repeating = line.wall is not None and self._knows(known)
        return self._repeating

    def boot(self) -> None:
        """What comes now is of another boot: uptimes start again."""
        self._uptime = None
        self.elapsed_us += BOOT_US
        self._wall_at_us += BOOT_US

    def at(self, elapsed_us: int | None = None) -> str:
        """A moment in the log's own words; empty when the log has no times."""
        elapsed_us = self.elapsed_us if elapsed_us is None else elapsed_us
        at = self._date(elapsed_us)
        if at is not None:
            words = f"{at:%Y-%m-%d %H:%M:%S}" if self._year else f"{at:%b %d %H:%M:%S}"
            return words + (f"{at:%z}" if self._zone else "")
        if self._uptime is not None:
            since_us = self._uptime + elapsed_us - self._uptime_at_us
            return f"{since_us / SECOND_US:.6f}"
        return f"+{elapsed_us / SECOND_US:.6f}" if elapsed_us else ""

    def moment(self) -> datetime | None:
        """The date of the newest line, where it has one with a year."""
        return self._wall if self._year else None

    def _date(self, elapsed_us: int) -> datetime | None:
        """None where the log has no dates, or its other times lead beyond all of them."""
        if self._wall is None:
            return None
        try:
            return self._wall + timedelta(microseconds=elapsed_us - self._wall_at_us)
        except OverflowError:
            return None

    def _knows(self, line: int) -> bool:
        return line in self._seen or line in self._seen_before

    def _goes_back(self, line: LogLine) -> bool:
        if line.uptime_us is not None and self._uptime is not None and line.uptime_us < self._uptime:
            return True
        since = self._since(line.wall) if line.wall is not None else None
        return since is not None and since < timedelta(0)

    def _since(self, wall: datetime) -> timedelta | None:
        if self._wall is None:
            return None
        since = wall - self._wall
        return since + LEAP_YEAR if not self._year and since < -NEW_YEAR else since
