"""The PCI bus and the machine around it, as the kernel lists them: works when every driver hangs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from outlast.model.observation.base import CounterReading, Reading, Survey

AER_CORRECTABLE: Final = "aer_correctable"
AER_NONFATAL: Final = "aer_nonfatal"
AER_FATAL: Final = "aer_fatal"


class AerTotals(Reading, frozen=True, kw_only=True):
    """Errors that a PCI function has reported since it was found, by severity."""

    correctable: int = 0
    nonfatal: int = 0
    """Without those that a mere probe or a forbidden peer access makes (UnsupReq, ACSViol)."""
    fatal: int = 0
    """Without the surprise link down that every reset of the function below makes."""


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
    port: str = ""
    """The bridge port at the other end of its link; empty where the machine shows none, as many VMs do."""
    aer: AerTotals | None = None
    """None where the function or the kernel keeps no such count."""


class PciPort(Reading, frozen=True, kw_only=True):
    """A bridge port above a device of ours."""

    address: str
    link_width_max: int | None = None
    below: tuple[str, ...] = ()
    """Our devices that hang directly on its link, or through further ports."""
    direct: bool = False
    """One device of ours is at the other end of its link."""
    aer: AerTotals | None = None


class PciSurvey(Survey, frozen=True, kw_only=True):
    """The functions of the machine that matter to GPU work, virtual functions of our own left out."""

    source: ClassVar[str] = "PCI"

    gpus: tuple[PciDevice, ...] = ()
    efa: tuple[PciDevice, ...] = ()
    """EFA functions that the efa driver runs: these count."""
    efa_unbound: tuple[PciDevice, ...] = ()
    """EFA functions that are on the bus without the efa driver."""
    nics: tuple[PciDevice, ...] = ()
    """All other network functions, of any vendor, with or without a driver."""
    nvswitches: tuple[PciDevice, ...] = ()
    ports: tuple[PciPort, ...] = ()
    """Bridge ports above GPUs and network functions, up to the root."""
    driver_loaded: bool | None = None
    """Whether NVIDIA's kernel driver is loaded; None where the kernel does not say."""
    driver_module_version: str = ""
    """Version of the loaded kernel driver."""
    message: str = ""
    """Why the bus could not be read; empty when it could."""
    readable: bool = True

    def counters(self) -> Iterable[CounterReading]:
        """Error counts of every device and port that keeps them."""
        counted: tuple[PciDevice | PciPort, ...] = (*self.gpus, *self.efa, *self.nics, *self.ports)
        for device in counted:
            if device.aer is not None:
                for name, value in (
                    (AER_CORRECTABLE, device.aer.correctable),
                    (AER_NONFATAL, device.aer.nonfatal),
                    (AER_FATAL, device.aer.fatal),
                ):
                    yield CounterReading(device=device.address, name=name, value=value)


class MachineFacts(Reading, frozen=True, kw_only=True):
    """What does not change within a boot."""

    boot_id: str
    instance_type: str = ""
    kernel_release: str = ""
    suspended_s: float = 0.0
    """Seconds of this boot in which the machine stood still (suspend, live migration)."""
