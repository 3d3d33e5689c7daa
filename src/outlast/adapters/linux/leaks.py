"""Workers that were killed and could not die, found in /proc, those of an earlier agent too.

Reads only `comm` and task `status`: /proc/PID/cmdline and environ take the process's memory lock, which
a thread stuck in the driver may hold, and would then hang the agent as well.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

NVML_WORKER: Final = "outlast-nvml"
"""How the worker calls itself; the kernel keeps 15 bytes."""
PROCESSES_MAX = 65536
"""Processes looked at in one scan."""

_STATUS_BYTES_MAX = 8192
_SIGKILL_BIT = 1 << (9 - 1)


def leaked_workers(proc: Path = Path("/proc"), worker: str = NVML_WORKER) -> tuple[int, ...]:
    """Pids of our workers of this name with a task in uninterruptible sleep that a SIGKILL waits for.

    A zombie whose other thread still sleeps counts: the kernel shows such a process as dead while it
    holds the GPU. Only processes of our own user are believed to be ours. Takes some 10 us a process.
    """
    try:
        names = [name for name in os.listdir(proc) if name.isdigit()][:PROCESSES_MAX]  # noqa: PTH208 - fast
    except OSError:
        return ()
    return tuple(sorted(int(name) for name in names if _is_leaked(proc / name, worker)))


def _is_leaked(process: Path, worker: str) -> bool:
    try:
        if _read(process / "comm").strip() != worker or process.stat().st_uid != os.geteuid():
            return False
        return any(_sleeps_killed(_read(task / "status")) for task in (process / "task").iterdir())
    except OSError:
        return False  # It ended while we looked.


def _sleeps_killed(status: str) -> bool:
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    asleep = fields.get("State", "").strip().startswith("D")
    return asleep and any(_kill_waits(fields.get(key, "")) for key in ("SigPnd", "ShdPnd"))


def _kill_waits(mask: str) -> bool:
    try:
        return bool(int(mask.strip() or "0", 16) & _SIGKILL_BIT)
    except ValueError:
        return False


def _read(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return (file.read(_STATUS_BYTES_MAX) or b"").decode("ascii", "replace")
