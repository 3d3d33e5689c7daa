"""Does every GPU answer NVML? Some errors prove a fault, all others only say that nobody knows.

While anybody resets a GPU its handle fails for a moment, so several polls have to agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import driver_absent
from outlast.health.finding import Assessment, Level, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import GpuReading, GpuSurvey

NAME: Final = "gpu_answers"
LOST_POLLS: Final = 3
ANSWER_POLLS: Final = 3
UNKNOWN_POLLS: Final = 8
"""At the default poll of 15 s: two minutes, longer than anybody's reset takes."""


@dataclass(frozen=True, slots=True)
class ErrorMeaning:
    """What one NVML error proves."""

    code: str
    reason: Reason
    fault_class: FaultClass
    rank: int
    polls: int
    text: str


ERRORS: Final[dict[str, ErrorMeaning]] = {
    "GPU_IS_LOST": ErrorMeaning(
        "gpu/lost", Reason.GPU_LOST, FaultClass.REBOOT_CURES, 1, LOST_POLLS, "is lost to the driver"
    ),
    "RESET_REQUIRED": ErrorMeaning(
        "gpu/reset-required",
        Reason.GPU_RESET_REQUIRED,
        FaultClass.RESET_CURES,
        9,
        ANSWER_POLLS,
        "needs a reset",
    ),
    "INSUFFICIENT_POWER": ErrorMeaning(
        "gpu/power",
        Reason.POWER_CABLE_MISSING,
        FaultClass.HARDWARE_GONE,
        4,
        ANSWER_POLLS,
        "has too little power; look at its cables",
    ),
}
"""Names of nvmlReturn_t without their prefix."""

NOT_STARTED: Final = ErrorMeaning(
    "gpu/not-in-nvml",
    Reason.GPU_INIT_FAILED,
    FaultClass.RESET_CURES,
    5,
    UNKNOWN_POLLS,
    "is on the bus and has its driver, but NVML does not know it",
)
"""While other GPUs answer; where none does, the driver is the news."""
UNKNOWN_TO_NVML: Final = "NOT_FOUND"
NVIDIA_DRIVER: Final = "nvidia"


def run(view: View) -> Assessment | None:
    """A finding for each GPU whose NVML error proves a fault."""
    if view.gpu is None or view.initializing or driver_absent(view):
        return None
    bad = [
        Level(
            code=meaning.code,
            reason=meaning.reason,
            fault_class=meaning.fault_class,
            subsystem=Subsystem.GPU,
            scope=Scope.GPU,
            rank=meaning.rank,
            proof=Proof.READABLE,
            polls=meaning.polls,
            gpu=gpu.pci_address,
            source=GpuSurvey.source,
            text=f"NVML: {gpu.error}",
            summary=f"GPU {gpu.pci_address} {meaning.text}.",
        )
        for gpu in view.gpu.gpus
        if (meaning := _meaning(view, gpu)) is not None
    ]
    covers = frozenset(gpu.pci_address for gpu in view.gpu.gpus)
    return Assessment(check=NAME, bad=tuple(bad), covers=covers)


CHECK: Final = LevelCheck(NAME, "GPUs in NVML", frozenset({GpuSurvey}), run)


def _meaning(view: View, gpu: GpuReading) -> ErrorMeaning | None:
    if gpu.error != UNKNOWN_TO_NVML:
        return ERRORS.get(gpu.error)
    others_answer = view.gpu is not None and any(not other.error for other in view.gpu.gpus)
    bound = view.pci is not None and any(
        device.address == gpu.pci_address and device.driver == NVIDIA_DRIVER and device.responds
        for device in view.pci.gpus
    )
    return NOT_STARTED if others_answer and bound else None
