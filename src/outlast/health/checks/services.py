"""Does the fabric manager run where the machine needs one, and are all NVSwitches there?

A machine needs it when NVSwitches are on its bus and their driver has them. Without it new CUDA programs
fail with error 802 while nvidia-smi is content: a service to start, no GPU to replace. IMEX may run per
job and the persistence daemon may be left out, so the lack of those says nothing.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.finding import SLOW_SPACING_S, Assessment, Level, Note, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import ProcessSurvey
from outlast.model.observation.processes import FABRIC_MANAGER

NAME: Final = "services"
DOWN_POLLS: Final = 4
"""At 30 s: two minutes, more than a restart of the service takes."""
RANK: Final = 10
SWITCH_DRIVER: Final = "nvidia-nvswitch"


def run(view: View) -> Assessment | None:
    """A finding while the fabric manager is needed and does not run."""
    survey = view.newest(ProcessSurvey)
    if survey is None or not survey.readable or not survey.whole_machine or view.just_started:
        return None
    if view.pci is None or not view.pci.readable:
        return None
    switches = view.pci.nvswitches
    if not switches:
        return Assessment(check=NAME)
    if any(switch.driver != SWITCH_DRIVER for switch in switches):
        # No driver (an upgrade), or given to a virtual machine that runs the service itself.
        return None
    if FABRIC_MANAGER in survey.services:
        return Assessment(check=NAME)
    if _links_are_switched_off(view):
        note = Note(subsystem=Subsystem.FABRIC, text="NVLink is switched off, so no fabric manager is missed")
        return Assessment(check=NAME, notes=(note,))
    text = f"{len(switches)} NVSwitches and no {FABRIC_MANAGER} process"
    level = Level(
        code="fabric/manager-down",
        reason=Reason.FABRIC_MANAGER_DOWN,
        fault_class=FaultClass.TRANSIENT,
        subsystem=Subsystem.FABRIC,
        scope=Scope.NODE,
        rank=RANK,
        proof=Proof.LEVEL_GOOD,
        polls=DOWN_POLLS,
        spacing_s=SLOW_SPACING_S,
        device=FABRIC_MANAGER,
        source=ProcessSurvey.source,
        text=text,
        summary="The fabric manager does not run, so new CUDA programs fail with error 802.",
    )
    return Assessment(check=NAME, bad=(level,))


CHECK: Final = LevelCheck(NAME, "NVIDIA services that the machine needs", frozenset({ProcessSurvey}), run)


def _links_are_switched_off(view: View) -> bool:
    """The driver was asked and shows no NVLink on any GPU (NVreg_NvLinkDisable); MIG hides links too."""
    gpus = [gpu for gpu in (view.gpu.gpus if view.gpu else ()) if not gpu.error]
    return bool(gpus) and all(
        gpu.detail is not None and not gpu.detail.nvlinks and gpu.mig_enabled is False for gpu in gpus
    )
