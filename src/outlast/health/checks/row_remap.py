"""Row remapping: a bad memory row is swapped for a spare one at the next reset, until spares run out.

A failed remap is the end of the board, however well it looks after a reset.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import all_alike, driver_absent
from outlast.health.finding import Assessment, Level, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import GpuSurvey

NAME: Final = "row_remap"
RANK_FAILED: Final = 3
RANK_PENDING: Final = 8


def run(view: View) -> Assessment | None:
    """A finding for each GPU with a failed or a waiting remap; failed hides waiting."""
    if view.gpu is None or driver_absent(view):
        return None
    read = [gpu for gpu in view.gpu.gpus if gpu.remap_failed is not None or gpu.remap_pending is not None]
    bad = []
    for gpu in read:
        if gpu.remap_failed:
            bad.append(
                Level(
                    code="remap/failed",
                    reason=Reason.ROW_REMAP_FAILED,
                    fault_class=FaultClass.HARDWARE_GONE,
                    rank=RANK_FAILED,
                    proof=Proof.HARDWARE_LEFT,
                    gpu=gpu.pci_address,
                    subsystem=Subsystem.GPU,
                    scope=Scope.GPU,
                    source=GpuSurvey.source,
                    text="row remapper: failure",
                    summary=f"GPU {gpu.pci_address} could not replace a bad memory row; replace the board.",
                )
            )
        elif gpu.remap_pending:
            bad.append(
                Level(
                    code="remap/pending",
                    reason=Reason.ROW_REMAP_PENDING,
                    fault_class=FaultClass.RESET_CURES,
                    rank=RANK_PENDING,
                    proof=Proof.LEVEL_GOOD,
                    gpu=gpu.pci_address,
                    subsystem=Subsystem.GPU,
                    scope=Scope.GPU,
                    source=GpuSurvey.source,
                    text="row remapper: pending",
                    summary=f"GPU {gpu.pci_address} replaces a bad memory row at its next reset.",
                )
            )
    doubt = all_alike(bad, read, "remap/failed", "a bad memory row could not be replaced")
    if doubt is not None:
        return Assessment(check=NAME, notes=(doubt,), covers=frozenset())
    return Assessment(check=NAME, bad=tuple(bad), covers=frozenset(gpu.pci_address for gpu in read))


CHECK: Final = LevelCheck(NAME, "memory rows replaced by spare ones", frozenset({GpuSurvey}), run)
