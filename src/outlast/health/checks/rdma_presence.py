"""Is every InfiniBand and RoCE device still there that had an active port?

Told apart: gone from the bus, on the bus without a driver, and a driver that offers no RDMA device.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import KnownPort, LevelCheck, View
from outlast.health.checks.efa_presence import VM_DRIVER
from outlast.health.finding import SLOW_SPACING_S, Assessment, Level, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import LinkLayer, PciSurvey, RdmaSurvey

NAME: Final = "rdma_presence"
GONE_POLLS: Final = 6
"""At 30 s: three minutes. A driver that is reloaded, or a cloud that services its host, takes less."""
RANK: Final = 5
NOT_OFFERED: Final = "nic/no-rdma"


def run(view: View) -> Assessment | None:
    """A finding for each device that is not there."""
    survey = view.newest(RdmaSurvey)
    if survey is None or not survey.readable or view.initializing:
        return None
    if view.pci is None or not view.pci.readable:
        return None
    here = {device.pci_address for device in survey.devices}
    bad = []
    known: dict[str, KnownPort] = {}
    for port in view.expected.known_ports:
        known.setdefault(port.device, port)
    # A driver that is upgraded lets go of all its devices at once; a device that fails is one of several.
    bound = {device.driver for device in view.pci.nics}
    missing = [port for address, port in known.items() if address not in here]
    # All of several at once is what they share: a driver, a fabric, a cloud that services its host.
    together = len(missing) == len(known) > 1
    for port in missing:
        level = _missing(port, view.pci, alone=port.driver in bound, together=together)
        # A pod that was given the device has taken it out of the host's sight, not off the bus.
        if level is not None and not (survey.exclusive and level.code == NOT_OFFERED):
            bad.append(level)
    return Assessment(check=NAME, bad=tuple(bad))


CHECK: Final = LevelCheck(NAME, "InfiniBand and RoCE devices", frozenset({RdmaSurvey}), run)


def _missing(port: KnownPort, pci: PciSurvey, *, alone: bool, together: bool) -> Level | None:
    function = next((device for device in pci.nics if device.address == port.device), None)
    if function is not None and function.driver == VM_DRIVER:
        return None
    what = f"RDMA device {port.name} ({port.device})"
    if function is None or not function.responds:
        how = "is gone from the PCI bus" if function is None else "is silent on the PCI bus"
        return _level("nic/missing", Reason.NIC_MISSING, port, f"{what} {how}", weak=together)
    if not function.driver:
        return _level(
            "nic/unbound",
            Reason.NIC_DRIVER_UNBOUND,
            port,
            f"{what} has no driver",
            weak=together or not alone,
        )
    text = f"the driver {function.driver} offers no RDMA device for {port.name} ({port.device})"
    return _level(NOT_OFFERED, Reason.NIC_DRIVER_UNBOUND, port, text, weak=True)


def _level(code: str, reason: Reason, port: KnownPort, text: str, *, weak: bool = False) -> Level:
    # An Ethernet function may be taken and given back by a cloud at any time: that drains nobody.
    cures = port.link_layer is LinkLayer.INFINIBAND and not weak
    return Level(
        code=code,
        reason=reason,
        fault_class=FaultClass.REBOOT_CURES if cures else FaultClass.TRANSIENT,
        subsystem=Subsystem.RDMA,
        scope=Scope.NODE,
        rank=RANK,
        proof=Proof.LEVEL_GOOD,
        polls=GONE_POLLS,
        spacing_s=SLOW_SPACING_S,
        device=port.nic,
        source=RdmaSurvey.source,
        text=text,
        summary=f"{text[0].upper()}{text[1:]}.",
    )
