"""Are all GPUs there: on the PCI bus, and answering there?

The count that is expected comes from the machine type, from the most ever seen on this machine, or
from the operator. GPUs given to a virtual machine (vfio) are not ours to count.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import driver_absent
from outlast.health.finding import Assessment, Level, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import PciSurvey

NAME: Final = "gpu_presence"
PRESENCE_POLLS: Final = 2
RANK_LOST: Final = 1
VM_DRIVER: Final = "vfio-pci"
NOUVEAU: Final = "nouveau"


def counted(pci: PciSurvey) -> list[str]:
    """Addresses of the GPUs that are ours: no virtual machine has them, and they drive more than a screen."""
    screens = _screens(pci)
    return [gpu.address for gpu in pci.gpus if gpu.driver != VM_DRIVER and gpu.address not in screens]


def _screens(pci: PciSurvey) -> set[str]:
    """GPUs that nouveau holds beside ones of another model that it does not hold."""
    others = {gpu.device for gpu in pci.gpus if gpu.driver != NOUVEAU}
    if not others:
        return set()
    return {gpu.address for gpu in pci.gpus if gpu.driver == NOUVEAU and gpu.device not in others}


def run(view: View) -> Assessment | None:
    """A finding for each GPU that is missing or silent on the bus."""
    if view.pci is None or not view.pci.readable:
        return None
    given_away = sum(1 for gpu in view.pci.gpus if gpu.driver == VM_DRIVER)
    present = set(counted(view.pci))
    missing = max(0, view.expected.gpus - given_away - len(present))
    if _screens(view.pci):
        # It may have been counted before its driver was known, and is there in any case.
        shown = {gpu.address for gpu in view.pci.gpus}
        gone = sum(1 for gpu in view.expected.known_gpus if gpu.pci_address not in shown)
        missing = min(missing, max(gone, view.expected.gpus - len(shown)))
    if driver_absent(view) and present:
        # An upgrade may power GPUs down or rescan the bus; what is lost is told when a driver is back.
        return None
    bad = _missing(view, present, missing)
    silent = [gpu.address for gpu in view.pci.gpus if not gpu.responds and gpu.address in present]
    bad += [
        _lost(
            address,
            "gpu/not-responding",
            Reason.GPU_NOT_RESPONDING,
            "configuration space reads as all ones",
            f"GPU {address} is listed on the PCI bus but does not answer there.",
        )
        for address in silent
    ]
    return Assessment(check=NAME, bad=tuple(bad))


CHECK: Final = LevelCheck(NAME, "GPUs on the PCI bus", frozenset({PciSurvey}), run)


def _missing(view: View, present: set[str], missing: int) -> list[Level]:
    if missing == 0:
        return []
    if not present:
        summary = f"None of the {view.expected.gpus} GPUs of this machine is on the PCI bus."
        return [_lost("", "gpu/none", Reason.NO_GPU_FOUND, "no NVIDIA GPU on the bus", summary)]
    shown = {gpu.address for gpu in view.pci.gpus} if view.pci is not None else present
    gone = [gpu.pci_address for gpu in view.expected.known_gpus if gpu.pci_address not in shown][:missing]
    text = f"{len(present)} of {view.expected.gpus} GPUs on the PCI bus"
    levels = [
        _lost(address, "gpu/missing", Reason.GPU_MISSING, text, f"GPU {address} is gone: {text}.")
        for address in gone
    ]
    if len(gone) < missing:
        summary = f"Only {text}."
        levels.append(_lost("", "gpu/missing", Reason.GPU_MISSING, text, summary))
    return levels


def _lost(gpu: str, code: str, reason: Reason, text: str, summary: str) -> Level:
    return Level(
        code=code,
        reason=reason,
        fault_class=FaultClass.REBOOT_CURES,
        subsystem=Subsystem.GPU,
        scope=Scope.GPU if gpu else Scope.NODE,
        rank=RANK_LOST,
        proof=Proof.READABLE,
        polls=PRESENCE_POLLS,
        gpu=gpu,
        source=PciSurvey.source,
        text=text,
        summary=summary,
    )
