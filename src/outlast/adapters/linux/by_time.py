"""What log sources without sequence numbers share: records named by kernel time, and a position by it.

The kernel's time is the same in /dev/kmsg, syslog(2) and the journal, so a fault keeps its id and a
position its meaning when one of them takes over from another.
"""

from __future__ import annotations

from outlast.adapters.linux.position import Position, decode_position, encode_position
from outlast.health.replay.line import SECOND_US, LogLine
from outlast.model.observation import KernelRecord
from outlast.ports.node import StateFile

_INT64_MAX = 2**63 - 1


def record_of(line: LogLine, time_us: int, *, replayed: bool) -> KernelRecord:
    """The record in a line, named by its time."""
    time_us = min(time_us, _INT64_MAX)
    return KernelRecord(
        sequence=time_us, timestamp_us=time_us, priority=line.priority, text=line.text, replayed=replayed
    )


def time_of(line: LogLine, otherwise_us: int) -> int:
    """Kernel time where the line has it, else its date, else the time of the line before."""
    if line.uptime_us is not None:
        return line.uptime_us
    return int(line.wall.timestamp()) * SECOND_US if line.wall is not None else otherwise_us


class SavedTime:
    """A position in a log of one boot: everything up to this kernel time was delivered and judged."""

    def __init__(self, state: StateFile, boot_id: str) -> None:
        self._state = state
        self._boot_id = boot_id
        self._saved: int | None = None
        self.doubt = ""
        """Why a position that was there could not be used."""

    def load(self) -> int | None:
        """The saved position of this boot."""
        content = self._state.load()
        if content is None:
            return None
        position = decode_position(content)
        if position is None:
            self.doubt = "the saved position is unreadable; started at the oldest record"
            return None
        self._saved = position.sequence if position.boot_id == self._boot_id else None
        return self._saved

    def save(self, time_us: int | None) -> None:
        """Remember a position; writes only when it has moved."""
        if not self._boot_id or time_us is None or time_us == self._saved:
            return
        if self._state.save(encode_position(Position(self._boot_id, time_us))):
            self._saved = time_us
