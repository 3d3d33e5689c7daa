"""Which way the agent takes to the kernel log: the one that was named, or the best that answers.

Only the way that is used costs memory: a fallback's modules are loaded when the one before it is lost.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from outlast.adapters.linux.kernel_log import DevKmsg
from outlast.adapters.linux.kernel_log_chain import KernelLogChain, Source
from outlast.adapters.linux.state_file import AtomicFile, ReadOnlyFile
from outlast.ports.clock import Clock
from outlast.ports.node import KernelLog, StateFile

AUTO: Final = "auto"
SYSLOG: Final = "syslog"
JOURNAL: Final = "journal"
DEVICE: Final = Path("/dev/kmsg")
_FIRST_LINE_BYTES_MAX: Final = 4096


def kernel_source(
    choice: str, *, state_dir: Path, host_root: Path, boot_id: str, clock: Clock, read_only: bool = False
) -> KernelLog:
    """`choice`: auto, syslog, journal, or a path (/dev/kmsg, a FIFO or file in its format, a log file).

    `read_only`: begin at the positions in `state_dir`, and leave them alone.
    """

    def state(name: str) -> StateFile:
        path = state_dir / f"kernel-log{name}.json"
        return ReadOnlyFile(path) if read_only else AtomicFile(path)

    def device() -> KernelLog:
        return DevKmsg(state=state(""), boot_id=boot_id, clock=clock, path=DEVICE)

    def syslog() -> KernelLog:
        from outlast.adapters.linux.syslog_ring import SyslogRing

        return SyslogRing(state=state("-syslog"), boot_id=boot_id, clock=clock)

    def journal() -> KernelLog:
        from outlast.adapters.linux.journal import JournalKernelLog

        folder = None
        if host_root != Path("/"):
            stored = (host_root / "var/log/journal", host_root / "run/log/journal")
            folder = next((path for path in stored if path.is_dir()), stored[0])
        return JournalKernelLog(state=state("-journal"), boot_id=boot_id, clock=clock, folder=folder)

    if choice == SYSLOG:
        return syslog()
    if choice == JOURNAL:
        return journal()
    if choice == AUTO:
        sources = (Source(str(DEVICE), device), Source("syslog(2)", syslog), Source("journal", journal))
        return KernelLogChain(sources, state=state("-source"), boot_id=boot_id, clock=clock)
    path = Path(choice)
    if not _is_log_file(path):
        return DevKmsg(state=state(""), boot_id=boot_id, clock=clock, path=path)
    from outlast.adapters.linux.log_file import LogFile

    return LogFile(state=state("-file"), boot_id=boot_id, clock=clock, path=path)


def _is_log_file(path: Path) -> bool:
    """A regular file whose first line is not in the device's format."""
    from outlast.health.sources.kernel_record import parse_record

    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            first = file.readline(_FIRST_LINE_BYTES_MAX)
    except OSError:
        return False
    return bool(first) and parse_record(first.rstrip(b"\n")) is None
