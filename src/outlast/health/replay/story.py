"""What a replay tells: a timeline, the faults with the lines that prove them, and what else was counted."""

from __future__ import annotations

from typing import Final

import msgspec

REPLAY_VERSION: Final = 1
ENTRIES_MAX: Final = 5_000
STORIES_MAX: Final = 2_000
TALLIES_MAX: Final = 4_000
EXAMPLES_MAX: Final = 5
EXAMPLE_CHARACTERS_MAX: Final = 200
PIDS_MAX: Final = 64


class Where(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a file."""

    file: str
    line: int


class Code(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One code of a fault and the line that brought it."""

    code: str
    fault_class: str = msgspec.field(name="class")
    summary: str
    at: str
    where: Where


class FaultStory(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One fault from its first line to the end of the log."""

    number: int
    id: str
    host: str = ""
    boot: int
    gpu: str = ""
    device: str = ""
    subsystem: str
    scope: str
    root: str
    fault_class: str = msgspec.field(name="class")
    summary: str
    opened_at: str
    where: Where
    codes: list[Code]
    evidence: str
    lines: int = 0
    """Lines of its codes about its device, in all of the log."""
    state: str
    clears_by: str
    ended: str = ""
    """How it ended; empty when the log does not tell."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of the timeline."""

    kind: str
    """boot, driver, opened, joined, class, again, ended or condition."""
    at: str
    text: str
    host: str = ""
    boot: int = 0
    where: Where | None = None
    fault: int | None = None
    gpu: str = ""


class Tally(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All lines of one code about one device."""

    code: str
    role: str
    key: str
    host: str = ""
    summary: str = ""
    count: int = 0
    first: Where
    last: Where
    first_at: str = ""
    last_at: str = ""
    pids: int = 0
    """Different processes that the lines name, at most `PIDS_MAX`."""
    in_fault: bool = False
    pid_set: set[str] = msgspec.field(default_factory=set)
    last_number: int = 0
    burst_line: int = 0
    burst_us: int = 0
    burst_boot: int = 0


class FileRead(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One file."""

    name: str
    lines: int = 0
    size_bytes: int = 0
    not_text: int = 0
    """Lines with bytes that no log contains."""
    note: str = ""
    """What went wrong with it, or is worth knowing."""

    @property
    def is_log(self) -> bool:
        """At least half of its lines are text; even random bytes have short lines that look like it."""
        return 2 * self.not_text <= self.lines and self.lines > 0


class Report(msgspec.Struct, kw_only=True):
    """All of it."""

    version: int = REPLAY_VERSION
    files: list[FileRead]
    hosts: list[str]
    boots: int
    faults: list[FaultStory]
    timeline: list[Entry]
    tallies: list[Tally]
    not_from_kernel: int = 0
    not_from_kernel_examples: list[str]
    before: int = 0
    """Lines that are older than what was asked for."""
    since_unused: bool = False
    """A date was asked for, and the log has none to compare."""
    repeated: int = 0
    """Lines that a later part of the log repeats."""
    undated: bool = False
    left_out: dict[str, int]
    """What a limit has cut off, by its name."""
