"""GPUs and EFA devices as PCI enumerates them, from sysfs: works when every driver hangs.

Looks only at functions of two vendors. A function may vanish between being listed and being read;
then it is not there. A function that is listed while its configuration space reads as all ones has
gone from the bus and the kernel has not noticed yet.
"""

from __future__ import annotations

import errno
from pathlib import Path

from outlast.model.observation import PciDevice, PciSurvey

NVIDIA = 0x10DE
AMAZON = 0x1D0F
GPU_CLASSES = (0x0300, 0x0302)
"""VGA controller and 3D controller; an NVSwitch is 0x0680, its audio function 0x0403."""

NVIDIA_MODULE = "nvidia"
EFA_DEVICES = range(0xEFA0, 0xEFA4)
EFA_DRIVER = "efa"

FUNCTIONS_MAX = 4096
"""Functions looked at; a machine with more is said to be unreadable, not half read."""

_ATTRIBUTE_BYTES_MAX = 64
_LANES_MAX = 32
_VANISHED = (errno.ENOENT, errno.ENODEV)


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
        gpus: list[PciDevice] = []
        efa: list[PciDevice] = []
        unreadable = ""
        for address in addresses:
            try:
                device = _read(self._devices / address)
            except OSError as error:
                if error.errno in _VANISHED:
                    continue
                unreadable = f"PCI function {address} cannot be read: {error.strerror}"
                continue
            if device is not None:
                (gpus if device.vendor == NVIDIA else efa).append(device)
        return PciSurvey(
            gpus=tuple(gpus),
            efa=tuple(device for device in efa if device.driver == EFA_DRIVER),
            efa_unbound=tuple(device for device in efa if device.driver != EFA_DRIVER),
            driver_loaded=self._driver_loaded(),
            driver_module_version=self._driver_version(),
            readable=not unreadable,
            message=unreadable,
        )

    def _driver_loaded(self) -> bool | None:
        if not self._modules.is_dir():
            return None
        return (self._modules / NVIDIA_MODULE).is_dir()

    def _driver_version(self) -> str:
        try:
            version = _attribute(self._modules / NVIDIA_MODULE / "version")
        except OSError:
            return ""
        return version.decode("ascii", "replace").strip()


def _read(folder: Path) -> PciDevice | None:
    vendor = _hex(folder / "vendor")
    if vendor not in (NVIDIA, AMAZON):
        return None
    device, class_code = _hex(folder / "device"), _hex(folder / "class") >> 8
    wanted = class_code in GPU_CLASSES if vendor == NVIDIA else device in EFA_DEVICES
    if not wanted or (folder / "physfn").exists():
        return None
    return PciDevice(
        address=folder.name.lower(),
        vendor=vendor,
        device=device,
        class_code=class_code,
        driver=_driver(folder),
        link_width=_width(folder / "current_link_width"),
        link_width_max=_width(folder / "max_link_width"),
        responds=_attribute(folder / "config", 2) != b"\xff\xff",
    )


def _driver(folder: Path) -> str:
    try:
        return (folder / "driver").readlink().name
    except OSError:
        return ""


def _attribute(path: Path, limit_bytes: int = _ATTRIBUTE_BYTES_MAX) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.read(limit_bytes) or b""


def _hex(path: Path) -> int:
    """A sysfs number such as 0x10de; 0 when the kernel wrote something else."""
    try:
        return int(_attribute(path).strip(), 16)
    except ValueError:
        return 0


def _width(path: Path) -> int | None:
    """Lanes; None where the function has no link, or a dead one that reads as all ones."""
    try:
        lanes = int(_attribute(path).strip())
    except (OSError, ValueError):
        return None
    return lanes if 0 < lanes <= _LANES_MAX else None
