"""GPUs, NVSwitches, network functions and the ports above them as PCI enumerates them, from sysfs.

Works when every driver hangs. A function may vanish between being listed and being read; then it is not
there. A function that is listed while its configuration space reads as all ones has gone from the bus and
the kernel has not noticed yet.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path

from outlast.adapters.linux.pci_errors import read_aer
from outlast.model.observation import PciDevice, PciPort, PciSurvey

NVIDIA = 0x10DE
AMAZON = 0x1D0F
GPU_CLASSES = (0x0300, 0x0302)
"""VGA controller and 3D controller; an NVSwitch is 0x0680, its audio function 0x0403."""

NVIDIA_MODULE = "nvidia"
NVSWITCH_CLASS = 0x0680
NETWORK_CLASSES = range(0x0200, 0x0300)
"""Ethernet, InfiniBand and other network controllers."""

EFA_DEVICES = range(0xEFA0, 0xEFB0)
"""0xefa0 to 0xefa3 are in use; the rest of the row is left for what comes."""
EFA_DRIVER = "efa"

FUNCTIONS_MAX = 4096
"""Functions looked at; a machine with more is said to be unreadable, not half read."""

_ATTRIBUTE_BYTES_MAX = 64
_LANES_MAX = 32
_VANISHED = (errno.ENOENT, errno.ENODEV)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class SysfsPciBus:
    """Implements `outlast.ports.node.PciBus`; `root` is where the machine's /sys is."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._devices = root / "sys/bus/pci/devices"
        self._modules = root / "sys/module"

    def survey(self) -> PciSurvey:
        """List once, in address order. Takes a few milliseconds; reads no attribute that wakes a device."""
        try:
            addresses = sorted(folder.name for folder in self._devices.iterdir())
        except OSError as error:
            return PciSurvey(readable=False, message=f"{self._devices} cannot be listed: {error.strerror}")
        if len(addresses) > FUNCTIONS_MAX:
            many = f"{self._devices} lists {len(addresses)} functions, more than {FUNCTIONS_MAX}"
            return PciSurvey(readable=False, message=many)
        found: list[PciDevice] = []
        unreadable = ""
        for address in addresses:
            try:
                device = self._read(address)
            except OSError as error:
                if error.errno in _VANISHED:
                    continue
                unreadable = f"PCI function {address} cannot be read: {error.strerror}"
                continue
            if device is not None:
                found.append(device)
        gpus = [d for d in found if d.vendor == NVIDIA and d.class_code in GPU_CLASSES]
        efa = [d for d in found if _is_efa(d.vendor, d.device)]
        nics = [d for d in found if d not in efa and d.class_code in NETWORK_CLASSES]
        return PciSurvey(
            gpus=tuple(gpus),
            efa=tuple(device for device in efa if device.driver == EFA_DRIVER),
            efa_unbound=tuple(device for device in efa if device.driver != EFA_DRIVER),
            driver_loaded=self._driver_loaded(),
            driver_module_version=self._driver_version(),
            nics=tuple(nics),
            nvswitches=tuple(d for d in found if d.vendor == NVIDIA and d.class_code == NVSWITCH_CLASS),
            ports=self._ports([*gpus, *efa, *nics]),
            readable=not unreadable,
            message=unreadable,
        )

    def _driver_loaded(self) -> bool | None:
        if not self._modules.is_dir():
            return None
        return (self._modules / NVIDIA_MODULE).is_dir()

    def _driver_version(self) -> str:
        try:
            version = _attribute(f"{self._modules}/{NVIDIA_MODULE}/version")
        except OSError:
            return ""
        return version.decode("ascii", "replace").strip()

    def _read(self, address: str) -> PciDevice | None:
        # Joined as text: thousands of paths a minute would be most of what an idle agent costs.
        folder = f"{self._devices}/{address}"
        vendor, class_code = _hex(f"{folder}/vendor"), _hex(f"{folder}/class") >> 8
        nvidia = vendor == NVIDIA and class_code in (*GPU_CLASSES, NVSWITCH_CLASS)
        if not nvidia and class_code not in NETWORK_CLASSES and vendor != AMAZON:
            return None
        device = _hex(f"{folder}/device")
        wanted = nvidia or class_code in NETWORK_CLASSES or _is_efa(vendor, device)
        if not wanted or _is_there(f"{folder}/physfn"):
            return None
        above = self._above(address)
        return PciDevice(
            address=address.lower(),
            vendor=vendor,
            device=device,
            class_code=class_code,
            driver=_driver(folder),
            link_width=_width(f"{folder}/current_link_width"),
            link_width_max=_width(f"{folder}/max_link_width"),
            responds=_attribute(f"{folder}/config", 2) != b"\xff\xff",
            port=above[-1] if above else "",
            aer=read_aer(folder),
        )

    def _above(self, address: str) -> list[str]:
        """Ports between the root and a function, the root first: its place in the tree of devices."""
        try:
            parts = _link(f"{self._devices}/{address}").split("/")
        except OSError:
            return []
        return [part.lower() for part in parts[:-1] if _ADDRESS.fullmatch(part.lower())]

    def _ports(self, devices: Iterable[PciDevice]) -> tuple[PciPort, ...]:
        below: dict[str, list[str]] = {}
        direct: dict[str, int] = {}
        for device in devices:
            for port in self._above(device.address):
                below.setdefault(port, []).append(device.address)
            direct[device.port] = direct.get(device.port, 0) + 1
        return tuple(
            PciPort(
                address=port,
                link_width_max=_width(f"{self._devices}/{port}/max_link_width"),
                below=tuple(below[port]),
                direct=port in direct,
                aer=read_aer(f"{self._devices}/{port}"),
            )
            for port in sorted(below)
        )


def _is_efa(vendor: int, device: int) -> bool:
    return vendor == AMAZON and device in EFA_DEVICES


def _driver(folder: str) -> str:
    try:
        return _link(f"{folder}/driver").rpartition("/")[2]
    except OSError:
        return ""


def _link(path: str) -> str:
    return os.readlink(path)  # noqa: PTH115 - see _read


def _is_there(path: str) -> bool:
    return os.access(path, os.F_OK)


def _attribute(path: str, limit_bytes: int = _ATTRIBUTE_BYTES_MAX) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, limit_bytes)
    finally:
        os.close(descriptor)


def _hex(path: str) -> int:
    """A sysfs number such as 0x10de; 0 when the kernel wrote something else."""
    try:
        return int(_attribute(path).strip(), 16)
    except ValueError:
        return 0


def _width(path: str) -> int | None:
    """Lanes; None where the function has no link, or a dead one that reads as all ones."""
    try:
        lanes = int(_attribute(path).strip())
    except (OSError, ValueError):
        return None
    return lanes if 0 < lanes <= _LANES_MAX else None
