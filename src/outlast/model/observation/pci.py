"""The PCI bus and the machine around it, as the kernel lists them: works when every driver hangs."""

from __future__ import annotations

from typing import ClassVar

from outlast.model.observation.base import Reading, Survey


class PciDevice(Reading, frozen=True, kw_only=True):
    """One PCI function as sysfs shows it."""

    address: str
    vendor: int
    device: int
    class_code: int
    driver: str = ""
    link_width: int | None = None
    link_width_max: int | None = None
    responds: bool = True
    """False when configuration space reads as all ones: the device is gone though still listed."""


class PciSurvey(Survey, frozen=True, kw_only=True):
    """All NVIDIA display functions and Amazon EFA functions of the machine, virtual functions left out."""

    source: ClassVar[str] = "PCI"

    gpus: tuple[PciDevice, ...] = ()
    efa: tuple[PciDevice, ...] = ()
    """EFA functions that the efa driver runs: these count."""
    efa_unbound: tuple[PciDevice, ...] = ()
    """EFA functions that are on the bus without the efa driver."""
    message: str = ""
    """Why the bus could not be read; empty when it could."""
    readable: bool = True


class MachineFacts(Reading, frozen=True, kw_only=True):
    """What does not change within a boot."""

    boot_id: str
    instance_type: str = ""
    kernel_release: str = ""
