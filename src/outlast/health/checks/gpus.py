"""What the checks of NVML readings share: which GPUs a poll could read, and how a finding about one looks.

While the driver is away or being changed nothing is said about a GPU, whatever an old library answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from outlast.health.checks.declaration import KnownGpu, View
from outlast.health.finding import Assessment, Level, Note, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import GpuReading, GpuSurvey

IDLE: Final = 0x1
"""Clocks event reason: nothing runs, so the clocks are low."""
USED_SHARE: Final = 0.05
"""More memory than a driver keeps for itself."""
ALL_MIN: Final = 2
"""GPUs of a machine from which on "all of them" means something."""
REASONS_END: Final = 1 << 32
"""No reason has so high a bit; all ones is what a dead device reads as."""


def driver_absent(view: View) -> bool:
    """Whether the kernel says that NVIDIA's driver is not loaded."""
    return view.pci is not None and view.pci.driver_loaded is False


def readable(view: View) -> list[GpuReading]:
    """GPUs whose readings mean something in this poll."""
    if view.gpu is None or driver_absent(view):
        return []
    return [gpu for gpu in view.gpu.gpus if not gpu.error]


def clock_reasons(gpu: GpuReading) -> int | None:
    """Why the clocks are what they are; None where the answer is no answer."""
    reasons = gpu.clocks_event_reasons
    return reasons if reasons is not None and 0 <= reasons < REASONS_END else None


def busy(gpu: GpuReading) -> bool:
    """Whether the GPU works at full clocks for a program, so that links and memory are in use."""
    reasons = clock_reasons(gpu)
    awake = reasons is not None and not reasons & IDLE
    return awake and gpu.performance_state in (0, None) and _used(gpu)


def _used(gpu: GpuReading) -> bool:
    """A program is there; its memory shows it where process ids are hidden from our container."""
    used, total = gpu.memory_used_bytes or 0, gpu.memory_total_bytes or 0
    return bool(gpu.process_ids) or used > USED_SHARE * total > 0


def reconfiguring(gpu: GpuReading) -> bool:
    """Whether the MIG layout moves, or a changed mode waits for a reset."""
    return gpu.mig_changed or (gpu.mig_pending is not None and gpu.mig_pending != gpu.mig_enabled)


def known(view: View, gpu: GpuReading) -> KnownGpu | None:
    """What is remembered of the board at this address."""
    found = (k for k in view.expected.known_gpus if k.pci_address == gpu.pci_address)
    return next(found, None)


def peers(gpu: GpuReading, gpus: Iterable[GpuReading]) -> list[GpuReading]:
    """The other GPUs of the same model."""
    return [other for other in gpus if other.name == gpu.name and other.pci_address != gpu.pci_address]


def finding(
    gpu: GpuReading, code: str, reason: Reason, fault_class: FaultClass, rank: int, text: str, **more: Any
) -> Level:
    """A level about one GPU; `text` completes "GPU <address> ..."."""
    values: dict[str, Any] = {
        "subsystem": Subsystem.GPU,
        "scope": Scope.GPU,
        "proof": Proof.LEVEL_GOOD,
        "source": GpuSurvey.source,
        "text": text,
        "summary": f"GPU {gpu.pci_address} {text}.",
        **more,
    }
    return Level(code=code, reason=reason, fault_class=fault_class, rank=rank, gpu=gpu.pci_address, **values)


def of_node(
    device: str, code: str, reason: Reason, fault_class: FaultClass, rank: int, text: str, **more: Any
) -> Level:
    """A level about something that all GPUs share."""
    values: dict[str, Any] = {
        "subsystem": Subsystem.GPU,
        "proof": Proof.LEVEL_GOOD,
        "source": GpuSurvey.source,
        "summary": f"{text}.",
        **more,
    }
    return Level(
        code=code,
        reason=reason,
        fault_class=fault_class,
        rank=rank,
        scope=Scope.NODE,
        device=device,
        text=text,
        **values,
    )


def all_alike(bad: Sequence[Level], judged: Sequence[GpuReading], code: str, what: str) -> Note | None:
    """Boards do not end all at once: when every one of several says so, the doubt is about the driver."""
    if not len(judged) == sum(1 for level in bad if level.code == code) >= ALL_MIN:
        return None
    text = f"all {len(judged)} GPUs say at once that {what}: look at the driver, boards do not fail together"
    return Note(subsystem=Subsystem.GPU, text=text, doubt=Reason.GPU_NOT_READABLE)


def assessment(
    check: str,
    judged: Iterable[GpuReading],
    bad: Iterable[Level],
    *,
    notes: Iterable[Note] = (),
    also: Iterable[str] = (),
) -> Assessment | None:
    """What a check says of the GPUs that it could judge; None when there were none."""
    covers = frozenset(gpu.pci_address for gpu in judged)
    found = tuple(bad)
    if not covers and not found:
        return None
    return Assessment(check=check, bad=found, notes=tuple(notes), covers=covers | frozenset(also))
