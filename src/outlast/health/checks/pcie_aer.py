"""Do PCIe links err? Growth of the kernel's own error counts, at the device and at the port above it.

Errors of the port at the other end of a device's link are that link's. A fatal error resets the link: new
work stays away for an hour; whether the device came back is for others to find.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.finding import Assessment, Level, Note, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import PciDevice, PciSurvey
from outlast.model.observation.pci import AER_CORRECTABLE, AER_FATAL, AER_NONFATAL

NAME: Final = "pcie_aer"
POLLS: Final = 2
HOUR_S: Final = 3600.0
FATAL_MIN: Final = 1
NONFATAL_MIN: Final = 10
STORM_MIN: Final = 6_000
"""Corrected errors within `STORM_S`, 10 each second: the link spends its time on repeating."""
NOTED_MIN: Final = 60
STORM_S: Final = 600.0
RANK_FATAL, RANK_NONFATAL, RANK_STORM = 6, 12, 18
PORT_DRIVER: Final = "pcieport"


class _Link(NamedTuple):
    """What errors are about, and the functions that count them."""

    gpu: str
    device: str
    subsystem: Subsystem
    name: str
    counted_at: tuple[str, ...]


def run(view: View) -> Assessment | None:
    """A finding for each link that errs."""
    pci = view.pci
    if pci is None or not pci.readable:
        return None
    bad: list[Level] = []
    notes: list[Note] = []
    for link in _links(pci):
        fatal = _grown(view, link, AER_FATAL, HOUR_S)
        nonfatal = _grown(view, link, AER_NONFATAL, HOUR_S)
        corrected = _grown(view, link, AER_CORRECTABLE, STORM_S)
        if fatal >= FATAL_MIN:
            bad.append(
                _level(link, "pcie/aer-fatal", RANK_FATAL, "had a fatal PCIe error within the last hour")
            )
        if nonfatal >= NONFATAL_MIN:
            text = f"lost {NONFATAL_MIN} PCIe transactions or more within an hour"
            bad.append(_level(link, "pcie/aer-nonfatal", RANK_NONFATAL, text))
        elif nonfatal:
            notes.append(Note(subsystem=link.subsystem, text=f"{link.name} lost a PCIe transaction"))
        if corrected >= STORM_MIN:
            text = "repairs ten PCIe errors a second or more"
            bad.append(_level(link, "pcie/aer-storm", RANK_STORM, text))
        elif corrected >= NOTED_MIN:
            notes.append(Note(subsystem=link.subsystem, text=f"{link.name} repairs PCIe errors"))
    return Assessment(check=NAME, bad=tuple(bad), notes=tuple(notes))


CHECK: Final = LevelCheck(NAME, "PCIe error counts", frozenset({PciSurvey}), run)


def _links(pci: PciSurvey) -> list[_Link]:
    used = {device.port for device in (*pci.gpus, *pci.efa, *pci.nics)}
    links = [_Link(d.address, "", Subsystem.GPU, f"GPU {d.address}", _both_ends(d)) for d in pci.gpus]
    for device in (*pci.efa, *pci.nics):
        name = f"{device.driver or 'device'} {device.address}"
        rdma = Subsystem.RDMA if device in pci.efa else Subsystem.HOST
        links.append(_Link("", name, rdma, name, _both_ends(device)))
    for port in pci.ports:
        if port.address not in used:
            name = f"{PORT_DRIVER} {port.address}"
            links.append(_Link("", name, Subsystem.HOST, name, (port.address,)))
    return links


def _both_ends(device: PciDevice) -> tuple[str, ...]:
    return (device.address, device.port) if device.port else (device.address,)


def _grown(view: View, link: _Link, counter: str, window_s: float) -> int:
    """By the end that saw more: what one end sends twice, the other receives twice."""
    return max(view.grown(address, counter, window_s) or 0 for address in link.counted_at)


def _level(link: _Link, code: str, rank: int, text: str) -> Level:
    return Level(
        code=code,
        reason=Reason.PCIE_ERRORS,
        fault_class=FaultClass.TRANSIENT,
        subsystem=link.subsystem,
        scope=Scope.GPU if link.gpu else Scope.NODE,
        rank=rank,
        proof=Proof.LEVEL_GOOD,
        polls=POLLS,
        gpu=link.gpu,
        device=link.device,
        source=PciSurvey.source,
        text=f"{link.name} {text}",
        summary=f"{link.name} {text}.",
    )
