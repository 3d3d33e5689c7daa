"""Xid lines of the NVIDIA driver: `NVRM: Xid (PCI:0000:02:00): 79, ...`.

Process names in these lines are chosen by users, so only the first `Xid (` of a record counts, and the
words that decide (RST, recovery action, Fatal) are looked for behind the name, never in it.
"""

from __future__ import annotations

import re
from typing import Final

from outlast.health.catalogue import XID_CODE_MAX
from outlast.health.sources.facts import ADDRESS, FACT_TEXT_MAX, NvlinkReport, XidFact, pci_address
from outlast.model.observation import KernelRecord

_XID: Final = re.compile(
    rf"\bXid \({ADDRESS}(?: GPU-I:(\d{{1,4}}))?(?: GPU-CI:(\d{{1,4}}))?\): (\d{{1,6}})(?!\d)"
)
_PID: Final = re.compile(r", pid=([^,\n]{1,64})")
_RESET: Final = re.compile(r"(?<![\w-])RST: (Yes|No)\b")
_DRAIN_RESET: Final = re.compile(r"\bD-RST: (Yes|No)\b")
_ACTION: Final = re.compile(r"from 0x[0-9a-fA-F]{1,8}\b.{0,64}? to 0x([0-9a-fA-F]{1,8})\b")
_NVLINK: Final = re.compile(
    r"^\s*(?:([A-Z][A-Z0-9_/]{1,80})\s{1,8}(?:[A-Z_]{1,32}\s{1,8}){0,2}?)?(Non-?fatal|Fatal)\b"
    r"(?:\s{1,8}XC\s?(\d{1,2})\b)?(?:\s{1,8}i\s?(\d{1,3})\b)?(?:\s{1,8}Link\s{1,8}(-?\d{1,3})(?!\d))?",
    re.IGNORECASE,
)
"""Unit, at times a word more (`MSE Degraded Fatal`), severity, cross containment, instance, link."""
_WORD: Final = re.compile(r"\b0x([0-9a-fA-F]{1,8})(?=[\s,)\]])")
"""A word at the very end of a line cut short is not whole."""
_PREVIOUS: Final = re.compile(r"caused by previous Xid (\d{1,6})\b")

RECOVERY_ACTION_CHANGED: Final = 154
NVLINK5_CODES: Final = range(144, 151)
NVLINK5_WORDS_MAX: Final = 8


def parse(record: KernelRecord, start: int) -> XidFact | None:
    """The Xid at the first `Xid (` of the record, which is at `start`; None when it is not one."""
    found = _XID.match(record.text, start)
    if found is None or int(found[7]) > XID_CODE_MAX:
        return None
    code = int(found[7])
    rest = record.text[found.end() : found.end() + FACT_TEXT_MAX]
    pid, process, detail = _caller(rest)
    reset, drain = _RESET.search(detail), _DRAIN_RESET.search(detail)
    action = _ACTION.search(detail) if code == RECOVERY_ACTION_CHANGED else None
    previous = _PREVIOUS.search(detail)
    return XidFact(
        sequence=record.sequence,
        timestamp_us=record.timestamp_us,
        text=f"NVRM: {record.text[start : start + FACT_TEXT_MAX]}",
        address=pci_address(found[1], found[2], found[3], found[4]),
        code=code,
        gpu_instance=int(found[5]) if found[5] else None,
        compute_instance=int(found[6]) if found[6] else None,
        pid=pid,
        process=process,
        detail=detail.strip(),
        reset=reset[1] == "Yes" if reset else None,
        drain_reset=drain[1] == "Yes" if drain else None,
        recovery_action=int(action[1], 16) if action else None,
        nvlink=nvlink(detail) if code in NVLINK5_CODES else None,
        previous_xid=int(previous[1]) if previous else None,
    )


def nvlink(detail: str) -> NvlinkReport:
    """`RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x... 0x... ...)` in parts, as far as they are there."""
    found = _NVLINK.match(detail)
    if found is None:
        return NvlinkReport()
    link = int(found[5]) if found[5] else -1
    words = tuple(int(word, 16) for word in _WORD.findall(detail, found.end()))
    return NvlinkReport(
        unit=(found[1] or "").upper(),
        fatal=found[2].lower() == "fatal",
        cross_contained=found[3] != "0" if found[3] else None,
        instance=int(found[4]) if found[4] else None,
        link=link if link >= 0 else None,
        words=words[:NVLINK5_WORDS_MAX],
    )


def _caller(rest: str) -> tuple[str, str, str]:
    """`, pid=X, name=Y, detail` in parts; pid and name are only there when the driver knows them."""
    found = _PID.match(rest)
    if found is None:
        return "", "", rest.removeprefix(",")
    pid, rest = found[1].strip(), rest[found.end() :]
    name = ""
    if rest.startswith(", name="):
        name, _, rest = rest.removeprefix(", name=").partition(", ")
    return pid, name, rest.removeprefix(",")
