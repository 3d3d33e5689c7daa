"""Repairs of memory beyond single rows: banks, channels, processing clusters, pages of older GPUs.

What waits is done at the next reset; what cannot be repaired ends the board.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import all_alike, assessment, finding, readable
from outlast.health.finding import DETAIL_SPACING_S, Assessment, Level, Note, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Subsystem
from outlast.model.observation import GpuDetail, GpuReading, GpuSurvey

NAME: Final = "memory_repair"
RANK_UNREPAIRABLE: Final = 3
RANK_PENDING: Final = 8
UNREPAIRABLE_POLLS: Final = 2


def run(view: View) -> Assessment | None:
    """Per GPU: unrepairable memory, else the first repair that waits; and a note where spares ran out."""
    judged, bad, notes = [], [], []
    for gpu in readable(view):
        detail = gpu.detail
        if detail is None:
            continue
        judged.append(gpu)
        if (level := _level(gpu, detail)) is not None:
            bad.append(level)
        elif _spares_used_up(detail):
            text = (
                f"GPU {gpu.pci_address} has memory banks without a spare row; the next bad row there ends it."
            )
            notes.append(Note(subsystem=Subsystem.GPU, text=text))
    doubt = all_alike(bad, judged, "repair/unrepairable", "their memory cannot be repaired")
    if doubt is not None:
        return Assessment(check=NAME, notes=(doubt,), covers=frozenset())
    return assessment(NAME, judged, bad, notes=notes)


CHECK: Final = LevelCheck(NAME, "repairs of GPU memory", frozenset({GpuSurvey}), run)


def _level(gpu: GpuReading, detail: GpuDetail) -> Level | None:
    if detail.memory_unrepairable:
        return finding(
            gpu,
            "repair/unrepairable",
            Reason.REPAIR_FAILED,
            FaultClass.HARDWARE_GONE,
            RANK_UNREPAIRABLE,
            "has memory that cannot be repaired; replace the board",
            proof=Proof.HARDWARE_LEFT,
            polls=UNREPAIRABLE_POLLS,
            spacing_s=DETAIL_SPACING_S,
        )
    for waits, code, reason, what in (
        (detail.bank_remap_pending, "remap/bank-pending", Reason.ROW_REMAP_PENDING, "replaces a memory bank"),
        (detail.channel_repair_pending, "repair/channel", Reason.REPAIR_PENDING, "repairs a memory channel"),
        (
            detail.tpc_repair_pending,
            "repair/tpc",
            Reason.REPAIR_PENDING,
            "takes a processing cluster out of use",
        ),
        (detail.pages_pending, "pages/pending", Reason.PAGE_RETIREMENT_PENDING, "retires a bad memory page"),
    ):
        if waits:
            text = f"{what} at its next reset"
            return finding(gpu, code, reason, FaultClass.RESET_CURES, RANK_PENDING, text)
    return None


def _spares_used_up(detail: GpuDetail) -> bool:
    rows = detail.remap_histogram
    return bool((rows is not None and rows[4]) or detail.bank_groups_exhausted)
