"""Lines of NVIDIA's driver without an Xid: lost and failed GPUs in words, silent firmware, and its noise.

Wordings of the open kernel modules up to 595. `Check failed` and the like are the driver talking to
itself: they are kept as noise, because half of the drains that went wrong elsewhere began with one.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from outlast.health.sources.facts import (
    ADDRESS,
    FACT_TEXT_MAX,
    DriverLoadedFact,
    Fact,
    GpuIdentityFact,
    GspFact,
    InitFailedFact,
    LineFact,
    OffBusFact,
    ProbeFailedFact,
    pci_address,
)
from outlast.model.observation import KernelRecord

TEXT_MAX: Final = 2048
"""The driver's longest texts have a few lines; what is longer is somebody's attempt."""
OFF_BUS_RECORDS_MAX: Final = 4
"""In line-wise logs the off-bus text is three records of the driver; others may come in between."""
OFF_BUS_SPAN_US: Final = 10_000_000
NAMED_MAX: Final = 16

_OFF_BUS_SHORT: Final = re.compile(rf"\bGPU (?:at )?{ADDRESS}:? (?:GPU )?has fallen off the bus")
_OFF_BUS_START: Final = re.compile(rf"The NVIDIA GPU {ADDRESS}")
_UNSUPPORTED: Final = re.compile(r"\b(?:is not supported by|requires use of)\b")
"""A card for display or of another age, or a kernel module of the other kind: nothing broke."""
_INIT: Final = re.compile(rf"GPU {ADDRESS}: (?:RmInitAdapter failed|rm_init_adapter failed)")
_INIT_UNNAMED: Final = re.compile(r"\bRmInitAdapter failed! \(0x")
"""Old drivers do not say which GPU."""
_PROBE_OF: Final = re.compile(
    rf"(?:nvidia: probe of {ADDRESS}|nvidia {ADDRESS}: probe with driver nvidia) failed with error -\d"
)
"""The kernel's own words beside the driver's count, with the address that the driver leaves out."""
_PROBE: Final = re.compile(r"NVIDIA probe routine failed for (-?\d{1,3}) device")
_GSP: Final = re.compile(
    rf"Rate limiting GSP RPC error prints for GPU at {ADDRESS}(?: \(printing 1 of every (\d{{1,6}})\))?"
)
_SILENT: Final = re.compile(r"(?:(?<!not )\bHeartbeat timed out,|(?:GSP RM|LibOS) heartbeat timed out)")
_LOADED: Final = re.compile(r"loading NVIDIA UNIX .{0,64}?\b(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\b")
_IDENTITY: Final = re.compile(rf"GPU at {ADDRESS}: (GPU-[0-9a-fA-F-]{{8,48}})")
_SERIAL: Final = re.compile(
    rf"(?:GPU {ADDRESS}: GPU serial number is |GPU Board Serial Number: )([0-9A-Za-z]{{1,32}})"
)
_NOISE: Final = (
    ("driver/software-check", re.compile(r"(?:nvCheck|nvAssert)\w{0,40}: |(?:Check|Assertion) failed: ")),
    ("driver/nvlink-noise", re.compile(r"knvlink\w{0,64}: ")),
    ("driver/fabric-notice", re.compile(r"_fabric\w{0,48}: |\w{0,32}[Ii]mex\w{0,32}: ")),
    ("driver/watchdog", re.compile(r"RC watchdog: GPU is probably locked")),
    ("driver/crash-dump", re.compile(r"A GPU crash dump has been created")),
)


class LineMemory(msgspec.Struct, frozen=True):
    """What began in one record and may end in a later one: an off-bus text, a stuck task, a fatal error."""

    address: str = ""
    """GPU of an off-bus text whose end has not come yet."""
    records_left: int = 0
    unsupported: tuple[str, ...] = ()
    """GPUs that the driver said it does not support, since it was last loaded."""
    failed: tuple[str, ...] = ()
    """GPUs that were named as lost or failed since then, and that its count of failures includes."""
    task: str = ""
    """A task said to be stuck, whose kernel stack may follow."""
    task_records_left: int = 0
    port: str = ""
    """Where a fatal PCIe error has just been reported; whether it was recovered from may follow."""
    port_records_left: int = 0
    removable: tuple[str, ...] = ()
    """Disks that may be pulled out."""
    at_us: int = 0
    """Kernel time of the newest of these."""


def read(record: KernelRecord, text: str, memory: LineMemory) -> tuple[Fact | None, LineMemory]:
    """The fact in the driver's words `text`, which begin at its `NVRM:`."""
    where: dict[str, Any] = {
        "sequence": record.sequence,
        "timestamp_us": record.timestamp_us,
        "text": text[:FACT_TEXT_MAX],
    }
    if found := _OFF_BUS_SHORT.search(text):
        return OffBusFact(address=pci_address(*found.groups()), **where), _without_gpu(memory)
    if found := _OFF_BUS_START.search(text):
        address = pci_address(*found.groups())
        if "fallen off the bus" in text:
            return OffBusFact(address=address, **where), _named(address, memory)
        if _UNSUPPORTED.search(text):
            return _unsupported(address, memory, where)
        return None, msgspec.structs.replace(
            memory, address=address, records_left=OFF_BUS_RECORDS_MAX, at_us=record.timestamp_us
        )
    if memory.address:
        late = not 0 <= record.timestamp_us - memory.at_us <= OFF_BUS_SPAN_US
        if not late and "fallen off the bus" in text:
            return OffBusFact(address=memory.address, **where), _named(memory.address, memory)
        if not late and _UNSUPPORTED.search(text):
            return _unsupported(memory.address, memory, where)
        left = memory.records_left - 1
        if late or left <= 0:
            memory = _without_gpu(memory)
        else:
            memory = msgspec.structs.replace(memory, records_left=left)
    return _counted(_plain(text, where), memory, where)


def probed(record: KernelRecord, text: str, memory: LineMemory) -> tuple[Fact | None, LineMemory]:
    """The fact in the kernel's words about a GPU that the driver did not take."""
    found = _PROBE_OF.search(text)
    if found is None:
        return None, memory
    where: dict[str, Any] = {
        "sequence": record.sequence,
        "timestamp_us": record.timestamp_us,
        "text": text[:FACT_TEXT_MAX],
    }
    named = found.groups()[:4] if found[1] else found.groups()[4:]
    fact = InitFailedFact(address=pci_address(*named), **where)
    if fact.address in memory.failed:
        return None, memory  # said before, in better words
    return _counted(fact, _named(fact.address, memory), where)


def _unsupported(address: str, memory: LineMemory, where: dict[str, Any]) -> tuple[Fact, LineMemory]:
    """A GPU that fails to start from now on does so because of its kind."""
    memory = msgspec.structs.replace(_without_gpu(memory), unsupported=_added(address, memory.unsupported))
    return LineFact(kind="driver/unsupported", gpu=address, **where), memory


def _named(address: str, memory: LineMemory) -> LineMemory:
    return msgspec.structs.replace(_without_gpu(memory), failed=_added(address, memory.failed))


def _added(address: str, addresses: tuple[str, ...]) -> tuple[str, ...]:
    return (*(other for other in addresses if other != address), address)[-NAMED_MAX:]


def _counted(fact: Fact | None, memory: LineMemory, where: dict[str, Any]) -> tuple[Fact | None, LineMemory]:
    """A failed start of what the driver does not support is no fault, and one fault is counted once."""
    match fact:
        case InitFailedFact() if fact.address in memory.unsupported:
            return LineFact(kind="driver/unsupported", gpu=fact.address, **where), memory
        case ProbeFailedFact():
            left = fact.devices - len({*memory.unsupported, *memory.failed})
            memory = msgspec.structs.replace(memory, unsupported=(), failed=())
            if left <= 0:
                return LineFact(kind="driver/starts-counted", **where), memory
            return msgspec.structs.replace(fact, devices=left), memory
        case DriverLoadedFact():
            return fact, msgspec.structs.replace(memory, unsupported=(), failed=())
        case _:
            return fact, memory


def _without_gpu(memory: LineMemory) -> LineMemory:
    return msgspec.structs.replace(memory, address="", records_left=0) if memory.address else memory


def _plain(text: str, where: dict[str, Any]) -> Fact | None:
    if found := _INIT.search(text):
        return InitFailedFact(address=pci_address(*found.groups()), **where)
    if found := _PROBE.search(text):
        # The driver subtracts the wrong way round in some versions.
        return ProbeFailedFact(devices=max(abs(int(found[1])), 1), **where)
    if _INIT_UNNAMED.search(text):
        return ProbeFailedFact(devices=1, **where)
    if found := _GSP.search(text):
        return GspFact(
            address=pci_address(found[1], found[2], found[3], found[4]),
            printed_every=max(int(found[5] or 1), 1),
            **where,
        )
    if _SILENT.search(text):
        return GspFact(address="", **where)
    if found := _LOADED.search(text):
        return DriverLoadedFact(version=found[1], **where)
    if found := _IDENTITY.search(text):
        return GpuIdentityFact(
            address=pci_address(found[1], found[2], found[3], found[4]), uuid=found[5], **where
        )
    if found := _SERIAL.search(text):
        address = pci_address(found[1], found[2], found[3], found[4]) if found[1] else ""
        return GpuIdentityFact(address=address, serial=found[5], **where)
    for kind, pattern in _NOISE:
        if pattern.search(text):
            return LineFact(kind=kind, **where)
    return None
