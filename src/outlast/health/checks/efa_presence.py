"""Are all EFA devices there? Count and presence say it; the state file of the driver is a constant.

The count that is expected comes from the machine type, from the most ever seen, or from the operator.
Interfaces may attach late at boot, so a short count is only believed once boot is over. More than a type
can have is never hardware: somebody counts what is no EFA device, or the table is old.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.wording import some
from outlast.health.finding import Assessment, Level, Note, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import PciDevice, PciSurvey

NAME: Final = "efa_presence"
PRESENCE_POLLS: Final = 2
RANK: Final = 5
DEVICE: Final = "EFA"
FEW_SHARE: Final = 0.25
"""Of the devices; the share that a machine is never launched without."""
VM_DRIVER: Final = "vfio-pci"


def working(pci: PciSurvey) -> list[PciDevice]:
    """EFA functions that have their driver and answer."""
    return [device for device in pci.efa if device.responds]


def run(view: View) -> Assessment | None:
    """One finding when fewer work than expected."""
    if view.pci is None or not view.pci.readable or view.initializing:
        return None
    found = working(view.pci)
    # Another driver than Amazon's is somebody's choice, a virtual machine or a program of its own.
    given_away = [device.address for device in view.pci.efa_unbound if device.driver]
    wanted = view.expected.efa - len(given_away)
    if len(found) >= wanted:
        return Assessment(check=NAME, notes=_notes(view, len(found)))
    silent = [device.address for device in view.pci.efa if not device.responds]
    unbound = [device.address for device in view.pci.efa_unbound if not device.driver]
    listed = {device.address for device in (*view.pci.efa, *view.pci.efa_unbound)}
    gone = [address for address in view.expected.known_efa if address not in listed]
    parts = [f"{len(found)} of {wanted} EFA devices work"]
    parts += [f"gone: {some(gone)}"] if gone else []
    parts += [f"present without a driver: {some(unbound)}"] if unbound else []
    parts += [f"silent on the bus: {some(silent)}"] if silent else []
    text = "; ".join(parts)
    only_unbound = len(found) + len(unbound) >= wanted
    level = Level(
        code="efa/unbound" if only_unbound else "efa/missing",
        reason=Reason.NIC_DRIVER_UNBOUND if only_unbound else Reason.EFA_MISSING,
        fault_class=_class(len(found), wanted, only_unbound=only_unbound),
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


def _class(found: int, wanted: int, *, only_unbound: bool) -> FaultClass:
    """Devices fail one by one. Many that are gone together were detached, or what they share failed; all that
    lost their driver are software. No reboot brings those."""
    if only_unbound and not found:
        return FaultClass.TRANSIENT
    few = wanted - found <= max(1, wanted * FEW_SHARE)
    return FaultClass.REBOOT_CURES if few else FaultClass.TRANSIENT


def _notes(view: View, found: int) -> tuple[Note, ...]:
    most = view.expected.efa_max
    if most is None or found == 0 or found == most:
        return ()
    where = f"a {view.instance_type}" if view.instance_type else "this machine"
    if found > most:
        text = f"{found} EFA devices where {where} should have {most}: a matter of configuration"
    else:
        text = f"{found} of the {most} EFA devices that {where} can have were ever attached"
    return (Note(subsystem=Subsystem.RDMA, text=text),)
