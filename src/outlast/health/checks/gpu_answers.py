"""Does every GPU answer NVML? Some errors prove a fault, all others only say that nobody knows.

While anybody resets a GPU its handle fails for a moment, so several polls have to agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import ALL_MIN, driver_absent, finding, of_node
from outlast.health.finding import Assessment, Level, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass
from outlast.model.observation import GpuReading, GpuSurvey

NAME: Final = "gpu_answers"
ALL: Final = "GPUs"
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
    """A finding for each GPU whose NVML error proves a fault; one where it is the same for all of several."""
    if view.gpu is None or view.initializing or driver_absent(view):
        return None
    gpus = view.gpu.gpus
    found = [(gpu, meaning) for gpu in gpus if (meaning := _meaning(view, gpu)) is not None]
    if len(found) == len(gpus) >= ALL_MIN and len({meaning.code for _, meaning in found}) == 1:
        # Nothing is told from the rest, so nothing is over for any of them either.
        level = _of_all(len(gpus), found[0][1], gpus[0].error)
        return Assessment(check=NAME, bad=(level,), covers=frozenset({ALL}))
    bad = tuple(_level(gpu, meaning) for gpu, meaning in found)
    covers = frozenset(gpu.pci_address for gpu in gpus)
    return Assessment(check=NAME, bad=bad, covers=covers | {ALL} if gpus else covers)


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


def _level(gpu: GpuReading, meaning: ErrorMeaning) -> Level:
    return finding(
        gpu,
        meaning.code,
        meaning.reason,
        meaning.fault_class,
        meaning.rank,
        f"NVML: {gpu.error}",
        proof=Proof.READABLE,
        polls=meaning.polls,
        summary=f"GPU {gpu.pci_address} {meaning.text}.",
    )


def _of_all(gpus: int, meaning: ErrorMeaning, error: str) -> Level:
    """What all have in common failed, or somebody resets all of them: that takes longer than one."""
    return of_node(
        ALL,
        f"{meaning.code}-all",
        meaning.reason,
        meaning.fault_class,
        meaning.rank,
        f"NVML: {error} for all {gpus} GPUs",
        proof=Proof.READABLE,
        polls=UNKNOWN_POLLS,
        summary=f"Each of the {gpus} GPUs {meaning.text}: no board of its own fault.",
    )
