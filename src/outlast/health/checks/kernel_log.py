"""Kernel log: Xid and SXid codes, a GPU off the bus, failed starts, a silent firmware processor.

The catalogue says what a code means; the line's own words (RST, D-RST, Fatal, the recovery action)
beat it where they are more exact.
"""

from __future__ import annotations

from typing import Any, Final

from outlast.health.catalogue import Catalogue, XidEntry
from outlast.health.checks.declaration import EventCheck
from outlast.health.checks.recovery_action import ACTIONS
from outlast.health.finding import RANK_LAST, Event, Proof, Role
from outlast.health.reasons import Reason
from outlast.health.sources.facts import (
    Fact,
    GspFact,
    InitFailedFact,
    OffBusFact,
    ProbeFailedFact,
    SxidFact,
    XidFact,
)
from outlast.health.sources.xid import NVLINK5_CODES, RECOVERY_ACTION_CHANGED
from outlast.model.health import FaultClass, Scope, Subsystem

CONTAINED: Final = 94
UNCONTAINED: Final = 95
RANK_UNCONTAINED: Final = 5
RANK_CONTAINED: Final = 10
RANK_SWITCH: Final = 2
RANK_FIRMWARE: Final = 4
UNCONTAINED_WITHOUT_RESET_EXPIRY_S: Final = 600
SOURCE: Final = "kernel log"
PROCESS_NAME_MAX: Final = 15
"""The kernel's own limit of a task's name."""


def run(fact: Fact, catalogue: Catalogue) -> Event | None:
    """The event in a fact, or None where the fact says nothing about health."""
    match fact:
        case XidFact():
            return _xid(fact, catalogue)
        case SxidFact():
            return _sxid(fact)
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
    values = _of(entry) | _refined(fact, entry)
    return _event(
        fact,
        **values,
        code=code,
        gpu=fact.address,
        instance=fact.gpu_instance if values["scope"] is Scope.INSTANCE else None,
        previous_xid=fact.previous_xid,
        pid=int(fact.pid) if fact.pid.isascii() and fact.pid.isdigit() else None,
        process=fact.process[:PROCESS_NAME_MAX],
        summary=f"GPU {fact.address} reported Xid {fact.code}. {entry.text}",
    )


def _refined(fact: XidFact, entry: XidEntry) -> dict[str, Any]:
    """What the line itself says better than the table."""
    reset_asked = fact.reset or fact.drain_reset
    reset_denied = fact.reset is False and fact.drain_reset is False
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
    if fact.code in NVLINK5_CODES and entry.role is Role.LEADER:
        if fact.fatal is None:
            return {"role": Role.UNEXPECTED}
        if not fact.fatal and entry.severity != "fatal":
            return {"role": Role.INFORMATIONAL, "fault_class": FaultClass.TRANSIENT, "rank": RANK_LAST}
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


def _sxid(fact: SxidFact) -> Event | None:
    if fact.fatal is None:
        return None
    return _event(
        fact,
        code=f"sxid/{fact.code}",
        device=f"nvswitch {fact.address}",
        reason=Reason.NVSWITCH_ERROR,
        fault_class=FaultClass.REBOOT_CURES if fact.fatal else FaultClass.TRANSIENT,
        subsystem=Subsystem.FABRIC,
        scope=Scope.NODE,
        rank=RANK_SWITCH if fact.fatal else RANK_LAST,
        proof=Proof.NEW_BOOT_AND_PRESENT,
        role=Role.LEADER if fact.fatal else Role.INFORMATIONAL,
        summary=f"NVSwitch {fact.address} reported a {'fatal' if fact.fatal else 'non-fatal'} "
        f"error (SXid {fact.code}).",
    )


def _start_failed(fact: InitFailedFact | ProbeFailedFact, catalogue: Catalogue) -> Event:
    entry = catalogue.xids[143]
    if isinstance(fact, InitFailedFact):
        summary = f"The driver could not start GPU {fact.address}."
        return _event(fact, **_of(entry), code="gpu/init-failed", gpu=fact.address, summary=summary)
    summary = f"The driver could not start {fact.devices} of the GPUs."
    values = {**_of(entry), "scope": Scope.NODE, "rank": RANK_FIRMWARE}
    return _event(fact, **values, code="gpu/probe-failed", summary=summary)
