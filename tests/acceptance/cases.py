"""The table of cases, and what counts as disrupting a node."""

from __future__ import annotations

import csv
from pathlib import Path

from outlast.model.health import FaultClass
from tests.unit.health.builders import Scene

ROOT = Path(__file__).parents[2]
CASES = {
    row["id"]: row
    for row in csv.DictReader((ROOT / "tests/data/cases.tsv").read_text().splitlines(), delimiter="\t")
}
DISRUPTIVE = {FaultClass.RESET_CURES, FaultClass.REBOOT_CURES, FaultClass.HARDWARE_GONE}


def disrupts(scene: Scene) -> bool:
    """Whether any policy would drain this node."""
    return any(
        fault.fault_class in DISRUPTIVE
        or (fault.fault_class is FaultClass.MONITOR_HUNG and fault.second_witness)
        for fault in scene.status.faults
    )


def settled(scene: Scene) -> Scene:
    """After the hold-back."""
    scene.wait(6)
    return scene
