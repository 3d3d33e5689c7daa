"""What a kernel record says once its text is understood."""

from __future__ import annotations

import re
from typing import Final

import msgspec

FACT_TEXT_MAX: Final = 512

ADDRESS: Final = r"(?:PCI:)?([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?"
"""Domain, bus, device and, where printed, function. NVML prints 8 domain digits, the kernel 4."""


def pci_address(domain: str, bus: str, device: str, function: str | None = None) -> str:
    """The one form of a PCI address that we use: lower case dddd:bb:dd.f."""
    return f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.{function or '0'}"


def normalise(address: str) -> str:
    """Any printed form of a PCI address in our form; other text unchanged."""
    found = re.fullmatch(ADDRESS, address.strip())
    return pci_address(*found.groups()) if found else address


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Base: where in the log it was said, and the words (cut to size)."""

    sequence: int
    timestamp_us: int
    text: str
    replayed: bool = False


class NvlinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a line of Xid 144-150 prints behind the code. Anything may be missing in a line cut short."""

    unit: str = ""
    fatal: bool | None = None
    cross_contained: bool | None = None
    """XC1: it reached past the context that caused it."""
    instance: int | None = None
    link: int | None = None
    """None where the line says -1 or nothing: not one link."""
    words: tuple[int, ...] = ()
    """The hexadecimal words that are there in full; the first two name the event."""


class XidFact(Fact, frozen=True, kw_only=True):
    """An error code of the NVIDIA driver about one GPU."""

    address: str
    code: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    pid: str = ""
    process: str = ""
    """Free text chosen by the process; never trust it."""
    detail: str = ""
    reset: bool | None = None
    drain_reset: bool | None = None
    """The line's own RST and D-RST."""
    recovery_action: int | None = None
    nvlink: NvlinkReport | None = None
    """Xid 144-150 only."""
    previous_xid: int | None = None

    @property
    def fatal(self) -> bool | None:
        """The severity word of Xid 144-150; None where there is none."""
        return self.nvlink.fatal if self.nvlink is not None else None


class SxidFact(Fact, frozen=True, kw_only=True):
    """An error code of an NVSwitch. `fatal` is None on lines that only add details."""

    address: str
    code: int
    fatal: bool | None = None
    link: int | None = None


class OffBusFact(Fact, frozen=True, kw_only=True):
    """The driver says in words that a GPU no longer answers on the bus."""

    address: str


class InitFailedFact(Fact, frozen=True, kw_only=True):
    """The driver could not start a GPU."""

    address: str


class ProbeFailedFact(Fact, frozen=True, kw_only=True):
    """The driver could not take some GPUs at load; it does not say which."""

    devices: int


class GspFact(Fact, frozen=True, kw_only=True):
    """The firmware processor is silent. `address` is empty where the line names no GPU."""

    address: str
    printed_every: int = 1
    """The driver prints one of this many such errors, so counts are lower bounds."""


class DriverLoadedFact(Fact, frozen=True, kw_only=True):
    """The driver introduced itself: boot noise may follow."""

    version: str


class DriverUnloadedFact(Fact, frozen=True, kw_only=True):
    """The driver left: what is missing now is not lost."""


class GpuIdentityFact(Fact, frozen=True, kw_only=True):
    """The driver introduces a GPU before its first error of a boot; the only names left when NVML is dead."""

    address: str = ""
    uuid: str = ""
    serial: str = ""


class HungTaskFact(Fact, frozen=True, kw_only=True):
    """A task is stuck in NVIDIA's driver: a diagnostic tool, or one whose kernel stack shows the driver."""

    process: str


class LineFact(Fact, frozen=True, kw_only=True):
    """Any other line that says something about the machine, by the catalogue's name for it."""

    kind: str
    """Row of kernel_lines.csv, such as pcie/fatal."""
    device: str = ""
    """Driver and address (mlx5_core 0000:4b:00.0), a disk, a memory module; empty: the whole machine."""
    gpu: str = ""
    """PCI address, where the device is a GPU."""
    rdma: bool = True
    """A network device that may carry RDMA; false for one that only carries the node's own network."""
    subject: str = ""
    """What it hit: a task, a file system, a page. Chosen by others, so only ever shown."""
    occurrences: int = 1
    """How many the line stands for, at least."""
