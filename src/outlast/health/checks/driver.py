"""The kernel driver against its library and its devices: mismatch, another driver, GPUs nobody drives.

All of it is software. Programs that run go on running, so nothing is drained: the cure waits for the
next drain, and only new work is kept away.
"""

from __future__ import annotations

from typing import Any, Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpu_presence import NOUVEAU, counted
from outlast.health.checks.gpus import driver_absent, of_node
from outlast.health.finding import Assessment, Level, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import GpuSurvey, PciDevice, PciSurvey, SurveyProblem

NAME: Final = "driver"
KEY: Final = "driver"
MISMATCH_POLLS: Final = 4
FOREIGN_POLLS: Final = 4
UNBOUND_POLLS: Final = 20
"""At the default poll of 15 s: five minutes, in which somebody may be moving a GPU between drivers."""
RANK: Final = 15


def run(view: View) -> Assessment | None:
    """A mismatch or a foreign driver for the node, else each GPU that has no driver."""
    survey, pci = view.gpu, view.pci
    if survey is None or pci is None or not pci.readable:
        return None
    addresses = counted(pci)
    ours = [gpu for gpu in pci.gpus if gpu.address in addresses]
    if survey.problem is SurveyProblem.DRIVER_MISMATCH or _swapped(survey, pci):
        loaded = f" {pci.driver_module_version}" if pci.driver_module_version else ""
        libraries = f" {survey.library_version}" if survey.library_version else ""
        text = f"the loaded driver{loaded} and NVIDIA's libraries{libraries} differ in version"
        more = "; running programs go on, new ones fail. Reboot, or reload the driver, when the node is empty"
        level = _node("driver/mismatch", Reason.REBOOT_NEEDED, text, more, MISMATCH_POLLS)
        return Assessment(check=NAME, bad=(level,))
    if ours and all(gpu.driver == NOUVEAU for gpu in ours):
        text = "the nouveau driver holds the GPUs"
        more = "; keep it from loading and install NVIDIA's"
        return Assessment(
            check=NAME, bad=(_node("driver/nouveau", Reason.DRIVER_NOT_LOADED, text, more, FOREIGN_POLLS),)
        )
    if driver_absent(view) or survey.problem is not None or not any(gpu.driver for gpu in ours):
        return None
    return Assessment(check=NAME, bad=tuple(_unbound(gpu) for gpu in ours if gpu.driver in ("", NOUVEAU)))


CHECK: Final = LevelCheck(NAME, "kernel driver, libraries and devices", frozenset({GpuSurvey}), run)


def _swapped(survey: GpuSurvey, pci: PciSurvey) -> bool:
    """Our own worker still runs on the library it loaded; what starts now would not."""
    loaded, on_disk = pci.driver_module_version, survey.library_version
    return bool(loaded and on_disk) and loaded != on_disk


def _node(code: str, reason: Reason, text: str, more: str, polls: int) -> Level:
    values: dict[str, Any] = {
        "subsystem": Subsystem.MONITOR,
        "summary": f"{text[0].upper()}{text[1:]}{more}.",
    }
    return of_node(KEY, code, reason, FaultClass.TRANSIENT, RANK, text, polls=polls, **values)


def _unbound(gpu: PciDevice) -> Level:
    text = f"held by {gpu.driver}" if gpu.driver else "without a driver"
    return Level(
        code="driver/unbound",
        reason=Reason.DRIVER_NOT_LOADED,
        fault_class=FaultClass.TRANSIENT,
        subsystem=Subsystem.GPU,
        scope=Scope.GPU,
        rank=RANK,
        proof=Proof.LEVEL_GOOD,
        polls=UNBOUND_POLLS,
        gpu=gpu.address,
        source=GpuSurvey.source,
        text=text,
        summary=f"GPU {gpu.address} is {text} while NVIDIA's driver runs the others.",
    )
