"""Is a GPU idle but for us? Somebody else's process, a hidden one, or nobody who can tell: then it is not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from outlast.active.plan import Candidate, foreign
from outlast.model.observation import GpuReading, GpuSurvey
from outlast.model.observation.active import NotTested

IDLE_MEMORY_BYTES_MAX: Final = 1 << 30
"""More than the driver keeps for itself: with this much in use and no process listed, somebody is hidden."""
HOST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the first pid namespace of a machine (PROC_PID_INIT_INO of the kernel)."""


def refusal(
    gpus: Sequence[Candidate],
    survey: GpuSurvey,
    own: Collection[int],
    *,
    host_pids: bool,
    started: bool = False,
) -> tuple[NotTested, str] | None:
    """Why tests may not run there, or go on; None when these GPUs are idle but for us."""
    readings = {gpu.pci_address: gpu for gpu in survey.gpus}
    for gpu in gpus:
        reading = readings.get(gpu.address)
        if reading is None:
            why = survey.message or "NVML gives no answer"
            return NotTested.NOT_HEALTHY, f"nobody can tell whether it is idle: {why}"
        if reading.error:
            return NotTested.NOT_HEALTHY, f"NVML says {reading.error}"
        busy = _busy(reading, own, host_pids=host_pids, started=started)
        if busy:
            return NotTested.GPU_BUSY_FOREIGN, busy
    return None


def _busy(reading: GpuReading, own: Collection[int], *, host_pids: bool, started: bool) -> str:
    """Who uses it beside us; empty when nobody does."""
    if reading.process_ids is None:
        return "the driver does not say who uses it"
    # Numbers of another pid namespace cannot be compared: there our one worker may be on it, and no more.
    ours = own if host_pids else {0} if started else set()
    strange = foreign(reading.process_ids, ours, host_pids=host_pids)
    if strange:
        began = "began to use it" if started else "uses it"
        others = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        return f"process {strange[0]}{others} {began}"
    used = reading.memory_used_bytes or 0
    if not started and not reading.process_ids and used > IDLE_MEMORY_BYTES_MAX:
        return f"{used / (1 << 30):.1f} GiB of its memory are in use by a process that is not listed"
    return ""


def in_host_pid_namespace() -> bool:
    """Whether NVML's process numbers are the same numbers here."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == HOST_PID_NAMESPACE
    except OSError:
        return False
