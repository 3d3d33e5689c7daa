"""Kernel log: Xid and SXid codes, a GPU off the bus, failed starts, a silent firmware processor.

The catalogue says what a code means; the line's own words (RST, D-RST, Fatal, the recovery action)
beat it where they are more exact.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from outlast.health.catalogue import Catalogue, XidEntry, nvlink5, nvswitch
from outlast.health.checks.declaration import EventCheck
from outlast.health.checks.recovery_action import ACTIONS
from outlast.health.finding import RANK_LAST, Event, Proof, Role
from outlast.health.reasons import Reason
from outlast.health.sources.facts import (
    Fact,
    GspFact,
    InitFailedFact,
    NvlinkReport,
    OffBusFact,
    ProbeFailedFact,
    SxidFact,
    XidFact,
)
from outlast.health.sources.xid import RECOVERY_ACTION_CHANGED
from outlast.model.health import FaultClass, Scope, Subsystem

NVLINK_ERROR: Final = 74
CONTAINED: Final = 94
UNCONTAINED: Final = 95
RANK_UNCONTAINED: Final = 5
RANK_CONTAINED: Final = 10
RANK_FIRMWARE: Final = 4
UNCONTAINED_WITHOUT_RESET_EXPIRY_S: Final = 600
SOURCE: Final = "kernel log"
PROCESS_NAME_MAX: Final = 15
"""The kernel's own limit of a task's name."""

_CHIP_UNIT: Final = re.compile(r"\bGPC (\d{1,3})\b(?:, TPC (\d{1,3})\b(?:, SM (\d{1,3})\b)?)?")
_LINK: Final = re.compile(r"\blink (\d{1,3})(?!\d)", re.IGNORECASE)
_REGISTERS: Final = re.compile(r"\blink \d{1,3} ?\((?:0x[0-9a-fA-F]{1,8}(?:, ?)?){1,8}\)")
_REGISTER: Final = re.compile(r"0x([0-9a-fA-F]{1,8})")
REGISTERS_MAX: Final = 8
HARMLESS_BITS: Final = 1 << 0 | 1 << 23 | 1 << 30
"""First register of Xid 74, NVIDIA's workflow for Hopper."""
_SWITCH_DETAIL: Final = re.compile(r"\): \d{1,6}, (?:Data \{|Severity \d)")
_UNLISTED: Final = "No catalogue explains this event, or the line was cut short."
_CONTRADICTED: Final = "The severity in the line is not the one that the catalogue expects of it."
_WORDS: Final = {True: "Fatal", False: "Nonfatal", None: "no severity"}


def run(fact: Fact, catalogue: Catalogue) -> Event | None:
    """The event in a fact, or None where the fact says nothing about health."""
    match fact:
        case XidFact():
            return _xid(fact, catalogue)
        case SxidFact():
            return _sxid(fact, catalogue)
        case OffBusFact():
            entry = catalogue.xids[79]
            summary = f"GPU {fact.address} no longer answers on the bus. {entry.text}"
            return _event(fact, **_of(entry), code="gpu/off-bus", gpu=fact.address, summary=summary)
        case InitFailedFact() | ProbeFailedFact():
            return _start_failed(fact, catalogue)
        case GspFact():
            entry = catalogue.xids[119]
            gpu = f"GPU {fact.address}" if fact.address else "a GPU"
            summary = f"The firmware processor of {gpu} does not answer. {entry.text}"
            scope = Scope.GPU if fact.address else Scope.NODE
            values = {**_of(entry), "scope": scope}
            return _event(fact, **values, code="gsp/silent", gpu=fact.address, summary=summary)
        case _:
            return None


CHECK: Final = EventCheck("kernel_log", "Xid, SXid, off-bus and firmware lines of the driver", run)


def _event(fact: Fact, **values: Any) -> Event:
    return Event(
        source=SOURCE,
        text=fact.text,
        sequence=fact.sequence,
        timestamp_us=fact.timestamp_us,
        replayed=fact.replayed,
        **values,
    )


def _of(entry: XidEntry) -> dict[str, Any]:
    return {
        "reason": entry.reason,
        "fault_class": entry.fault_class,
        "subsystem": entry.subsystem,
        "scope": entry.scope,
        "rank": entry.rank,
        "proof": entry.proof,
        "expiry_s": entry.expiry_s,
        "role": entry.role,
        "count_min": entry.count_min,
        "count_window_s": entry.count_window_s,
    }


def _xid(fact: XidFact, catalogue: Catalogue) -> Event:
    entry = catalogue.xid(fact.code)
    code = f"xid/{fact.code}"
    if entry is None:
        return _event(
            fact,
            code=code,
            gpu=fact.address,
            reason=Reason.UNRECOGNISED_XID,
            fault_class=FaultClass.TRANSIENT,
            subsystem=Subsystem.GPU,
            scope=Scope.GPU,
            rank=RANK_LAST,
            proof=Proof.READABLE,
            role=Role.UNEXPECTED,
            summary=f"GPU {fact.address} reported Xid {fact.code}, which no catalogue explains.",
        )
    if fact.code == RECOVERY_ACTION_CHANGED:
        return _recovery(fact, entry)
    if fact.nvlink is not None:
        return _nvlink(fact, fact.nvlink, entry, catalogue)
    values = _of(entry) | _refined(fact, entry)
    return _event(
        fact,
        **values,
        code=code,
        gpu=fact.address,
        instance=fact.gpu_instance if values["scope"] is Scope.INSTANCE else None,
        previous_xid=fact.previous_xid,
        **_caller(fact),
        unit=_unit(fact.detail),
        link=_link(fact.detail),
        summary=f"GPU {fact.address} reported Xid {fact.code}. {entry.text}",
    )


def _caller(fact: XidFact) -> dict[str, Any]:
    known = fact.pid.isascii() and fact.pid.isdigit()
    return {"pid": int(fact.pid) if known else None, "process": fact.process[:PROCESS_NAME_MAX]}


def _link(detail: str) -> int | None:
    found = _LINK.search(detail)
    return int(found[1]) if found is not None else None


def _harmless(detail: str) -> bool:
    """Whether all that Xid 74 reports are bits of its first register that NVIDIA says to ignore."""
    found = _REGISTERS.search(detail)
    if found is None:
        return False
    first, *others = (int(word, 16) for word in _REGISTER.findall(found[0])[:REGISTERS_MAX])
    return first != 0 and first & ~HARMLESS_BITS == 0 and len(others) >= 4 and not any(others)


def _unit(detail: str) -> str:
    """The part of the chip that Xid 13 and its like name: `GPC 7/TPC 7/SM 0`, as far as it is said."""
    found = _CHIP_UNIT.search(detail)
    if found is None:
        return ""
    return "/".join(f"{n} {int(v)}" for n, v in zip(("GPC", "TPC", "SM"), found.groups(), strict=True) if v)


def _refined(fact: XidFact, entry: XidEntry) -> dict[str, Any]:
    """What the line itself says better than the table."""
    reset_asked = fact.reset or fact.drain_reset
    reset_denied = fact.reset is False and fact.drain_reset is False
    if fact.code == NVLINK_ERROR and _harmless(fact.detail):
        return {
            "role": Role.INFORMATIONAL,
            "rank": RANK_LAST,
            "reason": Reason.RECORDED,
            "proof": Proof.EXPIRY,
            "expiry_s": nvswitch.RECORDED_EXPIRY_S,
        }
    if fact.code == CONTAINED and reset_asked:
        return {
            "fault_class": FaultClass.RESET_CURES,
            "role": Role.LEADER,
            "rank": RANK_UNCONTAINED,
            "proof": Proof.RECOVERY_NONE,
            "expiry_s": 0,
        }
    if fact.code == CONTAINED and fact.gpu_instance is not None:
        return {"scope": Scope.INSTANCE}
    if fact.code == UNCONTAINED and reset_asked:
        return {"expiry_s": 0}
    if fact.code == UNCONTAINED and reset_denied:
        return {
            "fault_class": FaultClass.TRANSIENT,
            "role": Role.FOLLOWER,
            "rank": RANK_CONTAINED,
            "expiry_s": UNCONTAINED_WITHOUT_RESET_EXPIRY_S,
        }
    return {}


def _recovery(fact: XidFact, entry: XidEntry) -> Event:
    action = ACTIONS.get(fact.recovery_action) if fact.recovery_action is not None else None
    if action is None:
        known = fact.recovery_action == 0
        values = _of(entry) | {"role": Role.MODIFIER if known else Role.UNEXPECTED}
        summary = f"GPU {fact.address} changed its recovery action."
        return _event(fact, **values, code="xid/154", gpu=fact.address, summary=summary)
    return _event(
        fact,
        code=action.code,
        gpu=fact.address,
        reason=action.reason,
        fault_class=action.fault_class,
        subsystem=action.subsystem,
        scope=action.scope,
        rank=action.rank,
        proof=action.proof,
        role=Role.MODIFIER,
        asks_recovery=True,
        joins_any_time=True,
        summary=f"GPU {fact.address}: {action.text}",
    )


def _nvlink(fact: XidFact, report: NvlinkReport, entry: XidEntry, catalogue: Catalogue) -> Event:
    """Xid 144-150: the code says nothing by itself; sub-code, status and severity word do."""
    explained = nvlink5.explain(catalogue.nvlink5, fact.code, report.unit, report.fatal, report.words)
    row = explained.entry
    values = _of(entry) | {
        "code": f"xid/{fact.code}",
        "gpu": fact.address,
        "previous_xid": fact.previous_xid,
        **_caller(fact),
        "link": report.link,
        "summary": f"GPU {fact.address} reported Xid {fact.code} ({_tuple(report, explained.subcode)}). ",
    }
    if row is None or not explained.agrees:
        values |= {
            "role": Role.UNEXPECTED,
            "reason": Reason.UNRECOGNISED_XID,
            "fault_class": FaultClass.TRANSIENT,
            "rank": RANK_LAST,
            "proof": Proof.READABLE,
            "expiry_s": 0,
        }
        values["summary"] += _UNLISTED if row is None else _CONTRADICTED
    else:
        values |= {"fault_class": row.fault_class, "scope": row.scope, "blames_peer": row.blames_peer}
        values["summary"] += row.text
        if not row.fatal:
            values |= {"role": Role.INFORMATIONAL, "rank": RANK_LAST, "proof": Proof.EXPIRY}
            values |= {"reason": Reason.RECORDED, "expiry_s": nvswitch.RECORDED_EXPIRY_S}
    return _event(fact, **values)


def _tuple(report: NvlinkReport, subcode: int | None) -> str:
    """What was decoded, for people and for audits."""
    parts = [report.unit or "no unit"]
    parts += [f"sub-code {subcode}" if subcode is not None else "no sub-code"]
    parts += [f"status 0x{report.words[1]:08x}" if len(report.words) > 1 else "no status"]
    parts += [_WORDS[report.fatal]]
    parts += [f"link {report.link}"] if report.link is not None else []
    return ", ".join(parts)


def _sxid(fact: SxidFact, catalogue: Catalogue) -> Event:
    entry = catalogue.sxid(fact.code)
    verdict = nvswitch.judge(entry, fact.fatal, detail=bool(_SWITCH_DETAIL.search(fact.text)))
    said = {True: "fatal ", False: "non-fatal ", None: ""}[fact.fatal]
    where = f", link {fact.link}" if fact.link is not None else ""
    summary = f"NVSwitch {fact.address} reported SXid {fact.code} ({said}error{where}). "
    if entry is None:
        summary += "No catalogue explains it."
    else:
        summary += _CONTRADICTED if verdict.role is Role.UNEXPECTED else entry.text
    return _event(
        fact,
        **msgspec.structs.asdict(verdict),
        code=f"sxid/{fact.code}",
        device=f"nvswitch {fact.address}",
        link=fact.link,
        summary=summary,
    )


def _start_failed(fact: InitFailedFact | ProbeFailedFact, catalogue: Catalogue) -> Event:
    entry = catalogue.xids[143]
    if isinstance(fact, InitFailedFact):
        summary = f"The driver could not start GPU {fact.address}."
        return _event(fact, **_of(entry), code="gpu/init-failed", gpu=fact.address, summary=summary)
    summary = f"The driver could not start {fact.devices} of the GPUs."
    values = {**_of(entry), "scope": Scope.NODE, "rank": RANK_FIRMWARE}
    return _event(fact, **values, code="gpu/probe-failed", summary=summary)
