"""Kernel log readings: records, gaps between them, and the loss of the log itself."""

from __future__ import annotations

from outlast.model.observation.base import Reading

KERNEL_FACILITY = 0
"""Only records of this facility come from the kernel; user space can write all others to /dev/kmsg."""

KERNEL_LINE_BYTES_MAX = 64 * 1024
"""A longer line is cut here, and the cut is reported as a gap."""

KERNEL_PROPERTIES_MAX = 16


class KernelRecord(Reading, frozen=True, kw_only=True):
    """One kernel log record. `text` is unescaped and may hold several lines."""

    sequence: int
    timestamp_us: int
    """Kernel clock since boot; orders records, joins nothing else."""
    priority: int
    """facility * 8 + level, as /dev/kmsg gives it."""
    flags: str = "-"
    text: str = ""
    properties: tuple[str, ...] = ()
    """The record's own `KEY=value` lines (SUBSYSTEM, DEVICE); never to be searched as text."""
    replayed: bool = False
    """Was already in the log when the reader opened it; its arrival time says nothing about its age."""

    @property
    def facility(self) -> int:
        """0 for the kernel itself."""
        return self.priority >> 3


class KernelLogGap(Reading, frozen=True, kw_only=True):
    """Records were lost (overwritten before they were read) or could not be parsed."""

    lost: int
    """How many at least; 0 where only the kind of trouble is known."""
    reason: str


class KernelLogCaughtUp(Reading, frozen=True, kw_only=True):
    """All that was in the log has been delivered: the log is readable, and what follows is live.

    Comes once after each successful opening, so also tells that a lost log is back.
    """

    replayed: int = 0
    """Records delivered since the opening."""
    source: str = ""
    """Which way to the log was opened, where there are several."""


class KernelLogLost(Reading, frozen=True, kw_only=True):
    """The kernel log cannot be read at all; the reader keeps trying."""

    message: str
