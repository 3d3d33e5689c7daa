"""Builds /sys trees as the kernel lays them out: device folders, and symlinks that lead to them.

sysfs = FakeSysfs(tmp_path)
gpu = sysfs.add_gpu("0000:b3:00.0")
sysfs.fall_off_bus(gpu)
SysfsPciBus(root=tmp_path).survey()
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

H100 = 0x2330
EFA = 0xEFA2


class FakeSysfs:
    """A tree under `root`/sys that tests fill and change while it is read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._bus = root / "sys/bus/pci"
        (self._bus / "devices").mkdir(parents=True)
        (self._bus / "drivers").mkdir()
        self._above: dict[str, str] = {}

    def add_gpu(
        self,
        address: str,
        *,
        device: int = H100,
        class_code: int = 0x030200,
        driver: str = "nvidia",
        above: str = "",
    ) -> str:
        """A GPU at full link width."""
        return self.add(
            address,
            vendor=0x10DE,
            device=device,
            class_code=class_code,
            driver=driver,
            width=(16, 16),
            above=above,
        )

    def add_nvswitch(self, address: str, *, device: int = 0x22A3, driver: str = "nvidia-nvswitch") -> str:
        """An NVSwitch of an HGX H100."""
        return self.add(address, vendor=0x10DE, device=device, class_code=0x068000, driver=driver)

    def add_port(self, address: str, *, width_max: int = 16, above: str = "") -> str:
        """A root port, or below another port one of a PCIe switch."""
        return self.add(
            address,
            vendor=0x8086,
            device=0x352A,
            class_code=0x060400,
            driver="pcieport",
            width=(width_max, width_max),
            above=above,
        )

    def add_efa(self, address: str, *, device: int = EFA, driver: str = "efa") -> str:
        """An Elastic Fabric Adapter."""
        return self.add(address, vendor=0x1D0F, device=device, class_code=0x020000, driver=driver)

    def add(
        self,
        address: str,
        *,
        vendor: int,
        device: int,
        class_code: int,
        driver: str = "",
        width: tuple[int, int] | None = None,
        physfn: str = "",
        above: str = "",
    ) -> str:
        """Any PCI function; `class_code` is the 24-bit number of the class file, `above` its port."""
        self._above[address] = above
        folder = self.folder(address)
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"0x{vendor:04x}\n")
        (folder / "device").write_text(f"0x{device:04x}\n")
        (folder / "class").write_text(f"0x{class_code:06x}\n")
        header = vendor.to_bytes(2, "little") + device.to_bytes(2, "little")
        (folder / "config").write_bytes(header.ljust(256, b"\0"))
        if width is not None:
            self.set_width(address, *width)
        if driver:
            self.bind(address, driver)
        if physfn:
            (folder / "physfn").symlink_to(f"../{physfn}")
        entry = self._bus / "devices" / address
        entry.symlink_to(os.path.relpath(folder, entry.parent))
        return address

    def folder(self, address: str) -> Path:
        """Where the function's files are."""
        above = self._above.get(address, "")
        if above:
            return self.folder(above) / address
        domain = address.rpartition(":")[0].rpartition(":")[0]
        return self.root / f"sys/devices/pci{domain}:00" / address

    def set_aer(self, address: str, *, correctable: int = 0, nonfatal: int = 0, fatal: int = 0) -> None:
        """Error counts as the kernel lists them; all of a severity are of one kind."""
        kinds = {
            "correctable": ("RxErr", correctable, ("BadTLP", "BadDLLP"), "ERR_COR"),
            "nonfatal": ("CmpltTO", nonfatal, ("DLP", "SDES", "UnsupReq", "ACSViol"), "ERR_NONFATAL"),
            "fatal": ("MalfTLP", fatal, ("DLP", "SDES", "UnsupReq", "ACSViol"), "ERR_FATAL"),
        }
        for severity, (kind, count, others, total) in kinds.items():
            lines = [f"{kind} {count}", *(f"{other} 0" for other in others), f"TOTAL_{total} {count}"]
            (self.folder(address) / f"aer_dev_{severity}").write_text("\n".join(lines) + "\n")

    def set_width(self, address: str, current: int, maximum: int) -> None:
        """PCIe lanes in use and possible."""
        (self.folder(address) / "current_link_width").write_text(f"{current}\n")
        (self.folder(address) / "max_link_width").write_text(f"{maximum}\n")

    def bind(self, address: str, driver: str) -> None:
        """Have a driver run the function; an empty name unbinds."""
        link = self.folder(address) / "driver"
        link.unlink(missing_ok=True)
        if driver:
            there = self._bus / "drivers" / driver
            there.mkdir(exist_ok=True)
            link.symlink_to(os.path.relpath(there, link.parent))

    def fall_off_bus(self, address: str) -> None:
        """Still listed, while every read from the device gives all ones."""
        (self.folder(address) / "config").write_bytes(b"\xff" * 256)
        if (self.folder(address) / "current_link_width").exists():
            self.set_width(address, 63, 255)

    def unplug(self, address: str) -> None:
        """Not listed any more."""
        (self._bus / "devices" / address).unlink()
        shutil.rmtree(self.folder(address))

    def vanish_while_listed(self, address: str) -> None:
        """As seen between listing and reading: the entry is there and leads nowhere."""
        shutil.rmtree(self.folder(address))

    def set(self, path: str, content: str) -> Path:
        """A file of /sys."""
        file = self.root / "sys" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    def set_proc(self, path: str, content: str) -> None:
        """A file of /proc (`sys/kernel/random/boot_id`) or, with `../sys/...`, of /sys."""
        file = self.root / "proc" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
