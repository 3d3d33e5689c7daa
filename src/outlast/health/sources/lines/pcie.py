"""PCIe: errors that a port received, errors that a device is blamed for, containment, links that went down.

Wordings of Linux 4.x to 6.x (drivers/pci/pcie/{aer,dpc,err}.c, drivers/pci/hotplug). One error prints
several lines: the port's `received` and the device's `PCIe Bus Error`; only the latter is counted.
"""

from __future__ import annotations

import re
from typing import Final

from outlast.health.sources.lines import BDF, START, Line, rule

GPU_DRIVERS: Final = frozenset({"nvidia", "nvidia-gpu"})

_WHO: Final = rf"{START}(?P<driver>[\w.-]{{1,32}}) (?P<address>{BDF})(?::pcie\d{{1,4}})?: (?:AER: )?"
_SEVERITY: Final = r"(?P<un>Un)?[Cc]orrect(?:ed|able)(?: \((?P<how>Non-Fatal|Fatal)\))?"
_RECEIVED: Final = re.compile(
    rf"{_WHO}(?P<many>Multiple )?{_SEVERITY} error (?:message )?received\b"
    rf"(?:(?: from|:)? (?:id=(?P<id>[0-9a-fA-F]{{4}})|(?P<source>{BDF})))?"
)
_BUS_ERROR: Final = re.compile(rf"{_WHO}PCIe Bus Error: (?:severity=)?{_SEVERITY}")
_RECOVERY: Final = re.compile(rf"{_WHO}[Dd]evice recovery (?P<result>failed|successful)")
_DETAIL: Final = re.compile(
    rf"{_WHO}\s{{0,8}}(?:\[ ?\d{{1,2}}\] \w|device \[[0-9a-f]{{4}}:[0-9a-f]{{4}}\] error status|TLP Header:"
    r"|Error of this Agent|aer_(?:status|layer|uncor)|[Cc]an't recover \(no error_detected)"
)
_CONTAINED: Final = re.compile(rf"{_WHO}(?:DPC: )?(?:DPC )?containment event, status:0x[0-9a-fA-F]{{1,8}}")
_DPC: Final = re.compile(
    rf"{_WHO}DPC: (?:unmasked uncorrectable|ERR_(?:NON)?FATAL|RP PIO|software trigger|Data Link Layer Link)"
)
_GONE: Final = re.compile(
    rf"{_WHO}(?:pciehp: )?Slot\((?P<slot>[^)\s]{{1,16}})\): (?:Link Down(?!/Up ignored)|Card not present)"
)
_INACCESSIBLE: Final = re.compile(
    rf"{_WHO}(?:Unable to|[Cc]an't|can't) change power state from D3\w{{0,4}} to D0[ ,(]{{1,2}}"
    r"(?:config space |device )inaccessible"
)


def _kind(found: re.Match[str]) -> str:
    if found["un"] is None:
        return "corrected"
    return "fatal" if found["how"] == "Fatal" else "nonfatal"


def _line(kind: str, found: re.Match[str], subject: str = "") -> Line:
    driver, address = found["driver"], found["address"].lower()
    if len(domain := address.split(":", 1)[0]) > 4:
        address = f"{int(domain, 16):04x}{address[len(domain) :]}"
    if driver in GPU_DRIVERS:
        return Line(kind=kind, start=found.start(), gpu=address[:-1] + "0", subject=subject)
    return Line(kind=kind, start=found.start(), device=f"{driver} {address}", subject=subject)


def source_of(identifier: str) -> str:
    """The address in a requester id of Linux 4.x, `id=0010`."""
    number = int(identifier, 16)
    return f"0000:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}"


def received(text: str) -> Line | None:
    """A port got an error message, or the kernel tried to recover from one."""
    if found := _RECEIVED.search(text):
        source = source_of(found["id"]) if found["id"] else (found["source"] or "").lower()
        kind = _kind(found)
        return _line(f"pcie/{kind}" if kind == "fatal" else f"pcie/{kind}-received", found, source)
    if found := _BUS_ERROR.search(text):
        return _line(f"pcie/{_kind(found)}", found)
    if found := _RECOVERY.search(text):
        return _line(f"pcie/recovery-{found['result']}", found)
    if found := _DETAIL.search(text):
        return _line("pcie/detail", found)
    return None


def port(text: str) -> Line | None:
    """What only ports print: containment, and a slot whose device is gone; then the rest of AER."""
    if found := _CONTAINED.search(text):
        return _line("pcie/contained", found)
    if found := _GONE.search(text):
        return _line("pcie/link-down", found, f"slot {found['slot']}")
    if found := _DPC.search(text):
        return _line("pcie/detail", found)
    return received(text)


def power(text: str) -> Line | None:
    """A device that does not even answer to being woken up."""
    found = _INACCESSIBLE.search(text)
    return _line("pcie/inaccessible", found) if found else None


RULES: Final = (
    rule("AER: ", "AER:", received),
    rule("PCIe Bus Error", "PCIe", received),
    rule("pcieport ", "pcieport", port),
    rule("inaccessible", "inaccessible inaccessible)", power),
    rule(":pcie0", "dpc pciehp", port),
)
