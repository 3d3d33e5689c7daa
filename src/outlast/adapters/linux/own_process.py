"""What this process itself costs, as the kernel counts it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = Path("/proc/self/statm")


class OwnProcess(NamedTuple):
    """Resident memory and processor time of this process, without its children."""

    memory_bytes: int
    cpu_s: float


def own_process() -> OwnProcess:
    """Read it now; 0 bytes where there is no /proc."""
    try:
        memory_bytes = int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        memory_bytes = 0
    return OwnProcess(memory_bytes, time.process_time())
