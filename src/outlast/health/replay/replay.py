"""Recorded kernel logs through the judge: bytes in, in the order of the files, one report out.

Constant memory, whatever comes: every list has a limit, and what a limit cuts off is counted.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime
from typing import Final

from outlast.health.catalogue import Catalogue
from outlast.health.replay.line import LogLine, read_line
from outlast.health.replay.machine import Machine
from outlast.health.replay.scan import (
    BOOT_LITERALS,
    DRIVER_LITERALS,
    JOURNAL_LITERALS,
    RELATIVE_LITERALS,
    Scanner,
)
from outlast.health.replay.story import (
    ENTRIES_MAX,
    EXAMPLE_CHARACTERS_MAX,
    EXAMPLES_MAX,
    STORIES_MAX,
    TALLIES_MAX,
    Entry,
    FaultStory,
    FileRead,
    Report,
    Tally,
    Where,
)
from outlast.health.sources import kernel_text
from outlast.health.verdict import Settings

_DRIVER_WORDS: Final = tuple(literal.decode() for literal in DRIVER_LITERALS)
MACHINES_MAX: Final = 1_000
LITERALS: Final = (*kernel_text.LITERALS, *BOOT_LITERALS, *RELATIVE_LITERALS, *JOURNAL_LITERALS)


class Replay:
    """Feed files in order; `report` ends it. Any bytes are accepted and none make it fail."""

    def __init__(
        self, catalogue: Catalogue, settings: Settings | None = None, since: datetime | None = None
    ) -> None:
        """`since`: judge no line with an earlier date; what a date lacks (year, zone) is not compared."""
        self._since = since
        self._before = 0
        self._catalogue = catalogue
        self._settings = settings or Settings()
        self._machines: dict[str, Machine] = {}
        self._scanner = Scanner(LITERALS)
        self._file_starts: list[int] = []
        self._files: list[FileRead] = []
        self._timeline: list[Entry] = []
        self._stories: list[FaultStory] = []
        self._tallies: list[Tally] = []
        self._left_out: dict[str, int] = {}
        self._foreign = 0
        self._foreign_examples: list[str] = []

    @property
    def size_bytes(self) -> int:
        """How much was read so far."""
        return sum(file.size_bytes for file in self._files[:-1]) + self._scanner.size_bytes

    def begin_file(self, name: str) -> None:
        """What is fed now comes from this file."""
        start = self._file_starts[-1] + self._files[-1].lines if self._files else 0
        self._file_starts.append(start)
        self._files.append(FileRead(name=name))
        self._scanner = Scanner(LITERALS)

    def feed(self, data: bytes) -> None:
        """More bytes of the file."""
        base = self._file_starts[-1]
        for number, raw in self._scanner.feed(data):
            self._line(base + number, raw)

    def end_file(self, note: str = "") -> FileRead:
        """The file is over; `note` says what was wrong with it."""
        for number, raw in self._scanner.finish():
            self._line(self._file_starts[-1] + number, raw)
        file = self._files[-1]
        file.lines, file.size_bytes = self._scanner.lines, self._scanner.size_bytes
        file.not_text, file.note = self._scanner.not_text, note
        return file

    def report(self) -> Report:
        """Everything that was found."""
        for machine in self._machines.values():
            machine.finish()
        machines = self._machines.values()
        if dropped := sum(machine.faults_dropped for machine in machines):
            self._cut("faults", dropped)
        return Report(
            files=self._files,
            hosts=[host for host in self._machines if host],
            boots=sum(machine.boots for machine in machines),
            faults=self._stories,
            timeline=self._timeline,
            tallies=self._tallies,
            not_from_kernel=self._foreign,
            not_from_kernel_examples=self._foreign_examples,
            before=self._before,
            since_unused=self._since is not None
            and not self._before
            and not any(machine.time.dated for machine in machines),
            repeated=sum(machine.repeated for machine in machines),
            undated=any(not machine.time.timed for machine in machines),
            left_out=self._left_out,
        )

    def _line(self, number: int, raw: bytes) -> None:
        line = read_line(raw)
        if not line.relevant:
            return
        if self._since is not None and line.wall is not None and self._is_before(line, line.wall):
            self._before += 1
            return
        if not line.kernel:
            self._not_from_kernel(line)
            return
        machine = self._machine(line)
        if machine is not None:
            machine.take(line, number)

    def _is_before(self, line: LogLine, wall: datetime) -> bool:
        since = self._since
        if since is None:
            return False
        if not line.zone:
            since = since.replace(tzinfo=UTC)
        if not line.year:
            return (wall.month, wall.day, wall.time()) < (since.month, since.day, since.time())
        return wall < since

    def _machine(self, line: LogLine) -> Machine | None:
        machine = self._machines.get(line.host)
        if machine is not None:
            return machine
        if not line.host and len(self._machines) == 1:
            return next(iter(self._machines.values()))
        if line.host and "" in self._machines and len(self._machines) == 1:
            # The log names its machine only in some of its formats.
            machine = self._machines[line.host] = self._machines.pop("")
            machine.host = line.host
            return machine
        if len(self._machines) >= MACHINES_MAX:
            self._cut("machines", 1)
            return None
        machine = self._machines[line.host] = Machine(line.host, self, self._catalogue, self._settings)
        return machine

    def _not_from_kernel(self, line: LogLine) -> None:
        if not any(word in line.text for word in _DRIVER_WORDS):
            return
        self._foreign += 1
        if len(self._foreign_examples) < EXAMPLES_MAX:
            self._foreign_examples.append(line.text[:EXAMPLE_CHARACTERS_MAX])

    def _cut(self, what: str, count: int) -> None:
        self._left_out[what] = self._left_out.get(what, 0) + count

    # --- the machines' book

    def where(self, number: int) -> Where:
        """File and line of a line's number in the whole replay."""
        file = max(0, bisect_right(self._file_starts, number - 1) - 1)
        # An empty file begins where the next one does; the line is in the last of them.
        return Where(self._files[file].name, number - self._file_starts[file])

    def tell(self, entry: Entry) -> None:
        """One more event of the timeline."""
        if len(self._timeline) >= ENTRIES_MAX:
            self._cut("timeline entries", 1)
            return
        self._timeline.append(entry)

    def open(self, story: FaultStory) -> bool:
        """One more fault, which gets its number."""
        if len(self._stories) >= STORIES_MAX:
            self._cut("faults", 1)
            return False
        self._stories.append(story)
        story.number = len(self._stories)
        return True

    def tally(self, tally: Tally) -> bool:
        """One more kind of line."""
        if len(self._tallies) >= TALLIES_MAX:
            self._cut("kinds of lines", 1)
            return False
        self._tallies.append(tally)
        return True
