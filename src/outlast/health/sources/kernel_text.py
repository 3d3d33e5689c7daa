"""Kernel records to facts: literals first, regular expressions only behind them.

Only facility 0 is the kernel's own voice; everything else can be written by any root process of a
container and is counted, never believed. Any text is accepted and none makes this fail.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from outlast.health.sources import xid
from outlast.health.sources.facts import (
    ADDRESS,
    FACT_TEXT_MAX,
    DriverLoadedFact,
    Fact,
    GspFact,
    HungTaskFact,
    InitFailedFact,
    OffBusFact,
    ProbeFailedFact,
    SxidFact,
    normalise,
    pci_address,
)
from outlast.model.observation import KERNEL_FACILITY, KERNEL_LINE_BYTES_MAX, KernelRecord

OFF_BUS_RECORDS_MAX: Final = 4
"""In line-wise logs the off-bus text is three records; others may come in between."""

_SXID: Final = re.compile(
    rf"\bSXid \({ADDRESS}\): (\d{{1,6}})(?!\d)(?:, (Non-fatal|Fatal)\b)?(?:.{{0,64}}?\bLink (\d{{1,3}})\b)?"
)
_OFF_BUS_SHORT: Final = re.compile(rf"\bGPU (?:at )?{ADDRESS}: GPU has fallen off the bus")
_OFF_BUS_START: Final = re.compile(rf"The NVIDIA GPU {ADDRESS}")
_INIT: Final = re.compile(rf"GPU {ADDRESS}: RmInitAdapter failed")
_PROBE: Final = re.compile(r"NVIDIA probe routine failed for (\d{1,3}) device")
_GSP: Final = re.compile(rf"Rate limiting GSP RPC error prints for GPU at {ADDRESS}")
_HEARTBEAT: Final = "_kgspIsHeartbeatTimedOut: Heartbeat timed out"
_LOADED: Final = re.compile(r"loading NVIDIA UNIX .{0,64}?\b(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\b")
_HUNG: Final = re.compile(
    r"INFO: task (outlast-nvml|nvidia[\w-]*|nv-hostengine|dcgm[\w-]*):\d{1,10} blocked for more than"
)


class OffBusMemory(msgspec.Struct, frozen=True):
    """The first line of an off-bus text whose end has not come yet."""

    address: str = ""
    records_left: int = 0


def interesting(record: KernelRecord) -> bool:
    """Whether the record can say anything to us; cheap enough for every line of a flood."""
    text = record.text
    return "NVRM" in text or "SXid (" in text or ("blocked for more than" in text and "INFO: task" in text)


def trusted(record: KernelRecord, *, trust_user_records: bool = False) -> bool:
    """Whether the kernel itself wrote it."""
    return trust_user_records or record.facility == KERNEL_FACILITY


def read(record: KernelRecord, memory: OffBusMemory) -> tuple[Fact | None, OffBusMemory]:
    """The fact in one record, and what to remember for the next one. Never raises."""
    text = record.text
    if len(text) > KERNEL_LINE_BYTES_MAX:
        text = text[:KERNEL_LINE_BYTES_MAX]
        record = msgspec.structs.replace(record, text=text)
    driver = text.find("NVRM:")
    switch = text.find("SXid (")
    code = text.find("Xid (", driver) if driver >= 0 else -1
    if code > 0 and text[code - 1] == "S":
        code = -1
    if switch >= 0 and (driver < 0 or switch < driver):
        return _sxid(record, switch), memory
    if code >= 0:
        return xid.parse(record, code), memory
    if driver >= 0:
        return _driver(record, text[driver:], memory)
    return _hung(record, text), memory


def _driver(record: KernelRecord, text: str, memory: OffBusMemory) -> tuple[Fact | None, OffBusMemory]:
    where: dict[str, Any] = {
        "sequence": record.sequence,
        "timestamp_us": record.timestamp_us,
        "text": text[:FACT_TEXT_MAX],
    }
    if found := _OFF_BUS_SHORT.search(text):
        return OffBusFact(address=pci_address(*found.groups()), **where), OffBusMemory()
    if found := _OFF_BUS_START.search(text):
        address = pci_address(*found.groups())
        if "fallen off the bus" in text:
            return OffBusFact(address=address, **where), OffBusMemory()
        return None, OffBusMemory(address, OFF_BUS_RECORDS_MAX)
    if memory.address and "fallen off the bus" in text:
        return OffBusFact(address=memory.address, **where), OffBusMemory()
    left = memory.records_left - 1
    memory = OffBusMemory(memory.address, left) if left > 0 else OffBusMemory()
    fact: Fact | None = None
    if found := _INIT.search(text):
        fact = InitFailedFact(address=pci_address(*found.groups()), **where)
    elif found := _PROBE.search(text):
        fact = ProbeFailedFact(devices=int(found[1]), **where)
    elif found := _GSP.search(text):
        fact = GspFact(address=pci_address(*found.groups()), **where)
    elif _HEARTBEAT in text:
        fact = GspFact(address="", **where)
    elif found := _LOADED.search(text):
        fact = DriverLoadedFact(version=found[1], **where)
    return fact, memory


def _sxid(record: KernelRecord, start: int) -> SxidFact | None:
    found = _SXID.match(record.text, start)
    if found is None:
        return None
    return SxidFact(
        sequence=record.sequence,
        timestamp_us=record.timestamp_us,
        text=record.text[start : start + FACT_TEXT_MAX],
        address=pci_address(found[1], found[2], found[3], found[4]),
        code=int(found[5]),
        fatal=found[6] == "Fatal" if found[6] else None,
        link=int(found[7]) if found[7] else None,
    )


def _hung(record: KernelRecord, text: str) -> HungTaskFact | None:
    found = _HUNG.search(text)
    if found is None:
        return None
    return HungTaskFact(
        sequence=record.sequence,
        timestamp_us=record.timestamp_us,
        text=text[found.start() : found.start() + FACT_TEXT_MAX],
        process=found[1],
    )


__all__ = ["OffBusMemory", "interesting", "normalise", "read", "trusted"]
