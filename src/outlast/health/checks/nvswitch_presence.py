"""Are all NVSwitches on the bus? An HGX board has a fixed number of them, by generation."""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpu_presence import VM_DRIVER
from outlast.health.finding import Assessment, Level, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import PciSurvey

NAME: Final = "nvswitch_presence"
POLLS: Final = 2
RANK: Final = 4
PER_BOARD: Final = {0x1AC2: 6, 0x1AF1: 6, 0x22A3: 4}
"""By PCI device id, V100, A100 and H100 generation: switches of a board with eight GPUs (HGX data sheets)."""
GPUS_PER_BOARD: Final = 8
DEVICE: Final = "NVSwitches"


def run(view: View) -> Assessment | None:
    """A finding when a board lacks some of its switches; a machine that shows none has none to show."""
    if view.pci is None or not view.pci.readable or view.just_started:
        return None
    switches = view.pci.nvswitches
    generations = {switch.device for switch in switches}
    boards, rest = divmod(view.expected.gpus, GPUS_PER_BOARD)
    if not switches:
        return Assessment(check=NAME)
    if rest or not boards or len(generations) != 1 or any(s.driver == VM_DRIVER for s in switches):
        return None
    wanted = PER_BOARD.get(generations.pop(), 0) * boards
    found = sum(1 for switch in switches if switch.responds)
    if found >= wanted:
        return Assessment(check=NAME)
    text = f"{found} of {wanted} NVSwitches on the PCI bus"
    level = Level(
        code="fabric/nvswitch-missing",
        reason=Reason.NVSWITCH_MISSING,
        fault_class=FaultClass.REBOOT_CURES,
        subsystem=Subsystem.FABRIC,
        scope=Scope.NODE,
        rank=RANK,
        proof=Proof.LEVEL_GOOD,
        polls=POLLS,
        device=DEVICE,
        source=PciSurvey.source,
        text=text,
        summary=f"Only {text}.",
    )
    return Assessment(check=NAME, bad=(level,))


CHECK: Final = LevelCheck(NAME, "NVSwitches on the PCI bus", frozenset({PciSurvey}), run)
