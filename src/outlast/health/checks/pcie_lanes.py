"""Does a device use fewer PCIe lanes than it could? Only their number: at idle the speed drops by design.

What a slot gives is known by the port above and by others of the same kind on this machine; a board that
alone of its kind runs on half its lanes has lost them, eight that all do were wired so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpu_presence import VM_DRIVER
from outlast.health.finding import Assessment, Level, Note, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import PciDevice, PciSurvey

NAME: Final = "pcie_lanes"
POLLS: Final = 3
RANK: Final = 16
PEERS_MIN: Final = 2


def run(view: View) -> Assessment | None:
    """A finding for each device that is narrower than its slot and its peers."""
    pci = view.pci
    if pci is None or not pci.readable:
        return None
    slots = {port.address: port.link_width_max for port in pci.ports}
    bad: list[Level] = []
    notes: list[Note] = []
    covers: set[str] = set()
    for group, subsystem in ((pci.gpus, Subsystem.GPU), ((*pci.efa, *pci.nics), Subsystem.RDMA)):
        for device in group:
            possible = _possible(device, slots)
            if device.link_width is None or possible is None or device.driver == VM_DRIVER:
                continue
            covers.add(_key(device, subsystem))
            if device.link_width >= possible:
                continue
            text = f"uses {device.link_width} of {possible} PCIe lanes"
            if _peers_are_wider(device, group):
                bad.append(_level(device, subsystem, text))
            else:
                notes.append(Note(subsystem=subsystem, text=f"{device.address} {text}"))
    return Assessment(check=NAME, bad=tuple(bad), notes=tuple(notes), covers=frozenset(covers))


CHECK: Final = LevelCheck(NAME, "PCIe lanes in use", frozenset({PciSurvey}), run)


def _possible(device: PciDevice, slots: dict[str, int | None]) -> int | None:
    """Lanes that device and slot both have; None where the device does not say."""
    if device.link_width_max is None:
        return None
    slot = slots.get(device.port)
    return device.link_width_max if slot is None else min(device.link_width_max, slot)


def _peers_are_wider(device: PciDevice, group: Sequence[PciDevice]) -> bool:
    """Most others of the same kind use more lanes."""
    peers = [
        other.link_width
        for other in group
        if other is not device
        and (other.vendor, other.device) == (device.vendor, device.device)
        and other.link_width is not None
    ]
    width = device.link_width or 0
    wider = sum(1 for lanes in peers if lanes > width)
    return wider >= PEERS_MIN and 2 * wider > len(peers)


def _key(device: PciDevice, subsystem: Subsystem) -> str:
    return device.address if subsystem is Subsystem.GPU else f"{device.driver or 'device'} {device.address}"


def _level(device: PciDevice, subsystem: Subsystem, text: str) -> Level:
    gpu = device.address if subsystem is Subsystem.GPU else ""
    name = f"GPU {device.address}" if gpu else _key(device, subsystem)
    return Level(
        code="pcie/narrow",
        reason=Reason.PCIE_LINK_DEGRADED,
        fault_class=FaultClass.TRANSIENT,
        subsystem=subsystem,
        scope=Scope.GPU if gpu else Scope.NODE,
        rank=RANK,
        proof=Proof.LEVEL_GOOD,
        polls=POLLS,
        gpu=gpu,
        device="" if gpu else _key(device, subsystem),
        source=PciSurvey.source,
        text=f"{name} {text}",
        summary=f"{name} {text}; others of its kind here use all.",
    )
