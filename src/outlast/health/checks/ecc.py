"""Lost data: errors that ECC could not correct, now or so often that the chip itself is worn.

The count of a driver's life says nothing: programs were ended, and the GPU went on. Only its growth is
news, for a few minutes; what has to be repaired afterwards is said by remap, repair and recovery action.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import all_alike, assessment, finding, readable
from outlast.health.finding import Assessment, Level, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass
from outlast.model.observation import GpuReading, GpuSurvey

NAME: Final = "ecc"
WINDOW_S: Final = 300.0
"""A rise is news for so long; the program that lost data has ended by then."""
THRESHOLD_POLLS: Final = 2
RANK_WORN: Final = 3
RANK_LOST_DATA: Final = 10


def run(view: View) -> Assessment | None:
    """Per GPU: the SRAM limit of the vendor, else a rise of uncorrected errors."""
    judged = [gpu for gpu in readable(view) if _counts(gpu)]
    bad = [level for gpu in judged if (level := _level(view, gpu)) is not None]
    doubt = all_alike(bad, judged, "ecc/sram-threshold", "their on-chip memory is worn out")
    if doubt is not None:
        return Assessment(check=NAME, notes=(doubt,), covers=frozenset())
    return assessment(NAME, judged, bad)


CHECK: Final = LevelCheck(NAME, "memory errors that were not corrected", frozenset({GpuSurvey}), run)


def _counts(gpu: GpuReading) -> bool:
    values = (gpu.ecc_uncorrected_volatile, gpu.sram_uncorrected, gpu.sram_threshold_exceeded)
    return any(value is not None for value in values)


def _level(view: View, gpu: GpuReading) -> Level | None:
    if gpu.sram_threshold_exceeded:
        return finding(
            gpu,
            "ecc/sram-threshold",
            Reason.SRAM_THRESHOLD_EXCEEDED,
            FaultClass.HARDWARE_GONE,
            RANK_WORN,
            "had more uncorrected errors in its on-chip memory than the vendor allows; replace the board",
            proof=Proof.HARDWARE_LEFT,
            polls=THRESHOLD_POLLS,
        )
    rises = {
        "in memory": view.grown(gpu.pci_address, "ecc_uncorrected_volatile", WINDOW_S),
        "on the chip": view.grown(gpu.pci_address, "sram_uncorrected", WINDOW_S),
    }
    rose = [f"{rise} {where}" for where, rise in rises.items() if rise]
    if not rose:
        return None
    return finding(
        gpu,
        "ecc/uncorrected",
        Reason.CONTAINED_MEMORY_ERROR,
        FaultClass.TRANSIENT,
        RANK_LOST_DATA,
        f"had new errors that could not be corrected ({', '.join(rose)})",
    )
