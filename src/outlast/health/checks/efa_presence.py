"""Are all EFA devices there? Count and presence say it; the state file of the driver is a constant.

The count that is expected comes from the machine type, from the most ever seen, or from the operator.
Interfaces may attach late at boot, so a short count is only believed once boot is over.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.finding import Assessment, Level, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import PciDevice, PciSurvey

NAME: Final = "efa_presence"
PRESENCE_POLLS: Final = 2
RANK: Final = 5
DEVICE: Final = "EFA"
ADDRESSES_SHOWN_MAX: Final = 4


def working(pci: PciSurvey) -> list[PciDevice]:
    """EFA functions that have their driver and answer."""
    return [device for device in pci.efa if device.responds]


def run(view: View) -> Assessment | None:
    """One finding when fewer work than expected."""
    if view.pci is None or not view.pci.readable or view.initializing:
        return None
    found = working(view.pci)
    if len(found) >= view.expected.efa:
        return Assessment(check=NAME)
    silent = [device.address for device in view.pci.efa if not device.responds]
    unbound = [device.address for device in view.pci.efa_unbound]
    listed = {device.address for device in view.pci.efa} | set(unbound)
    gone = [address for address in view.expected.known_efa if address not in listed]
    parts = [f"{len(found)} of {view.expected.efa} EFA devices work"]
    parts += [f"gone: {_some(gone)}"] if gone else []
    parts += [f"present without a driver: {_some(unbound)}"] if unbound else []
    parts += [f"silent on the bus: {_some(silent)}"] if silent else []
    text = "; ".join(parts)
    level = Level(
        code="efa/missing",
        reason=Reason.EFA_MISSING,
        fault_class=FaultClass.REBOOT_CURES,
        subsystem=Subsystem.RDMA,
        scope=Scope.NODE,
        rank=RANK,
        proof=Proof.LEVEL_GOOD,
        polls=PRESENCE_POLLS,
        device=DEVICE,
        source=PciSurvey.source,
        text=text,
        summary=f"{text}.",
    )
    return Assessment(check=NAME, bad=(level,))


CHECK: Final = LevelCheck(NAME, "EFA devices on the bus", frozenset({PciSurvey}), run)


def _some(addresses: list[str]) -> str:
    shown = ", ".join(addresses[:ADDRESSES_SHOWN_MAX])
    return (
        shown
        if len(addresses) <= ADDRESSES_SHOWN_MAX
        else f"{shown} and {len(addresses) - ADDRESSES_SHOWN_MAX} more"
    )
