"""Whose trouble a port reports: that of the device below it, where the bus shows one.

The kernel prints PCIe errors of a link under the name of the port above it, and people, policies and
proofs are about the GPU or the network device at its other end.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.health.checks.kernel_lines import about_gpu
from outlast.health.finding import Event
from outlast.model.health import Subsystem
from outlast.model.observation import PciSurvey

PORT: Final = "pcieport "
"""How the kernel's driver of PCIe ports names itself in front of an address."""


def below_port(pci: PciSurvey | None, event: Event) -> Event:
    """The event, about the device right below the port it names; unchanged where there is none."""
    if pci is None or not event.device.startswith(PORT):
        return event
    port = event.device.removeprefix(PORT)
    for gpu in pci.gpus:
        if gpu.port == port:
            return about_gpu(event, gpu.address)
    for device in (*pci.efa, *pci.nics):
        if device.port == port:
            subsystem = Subsystem.RDMA if device in pci.efa else event.subsystem
            name = f"{device.driver or 'device'} {device.address}"
            return msgspec.structs.replace(event, device=name, subsystem=subsystem)
    return event
