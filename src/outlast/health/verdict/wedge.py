"""A tool that hangs proves nothing about a GPU; together with a second witness the driver is wedged.

Witnesses: Xid 119 or 120, a silent firmware processor, an NVIDIA tool or a task stuck in the driver, two
workers that cannot be killed. A program that the driver removed (Xid 45) and that is then stuck is one too.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.health.finding import Event, Proof, Role
from outlast.health.reasons import Reason
from outlast.health.sources.facts import Fact, GspFact, HungTaskFact, LineFact, XidFact
from outlast.health.verdict.faults import JUST_SEEN_S, join_event
from outlast.health.verdict.state import (
    REMOVALS_MAX,
    WITNESS_S,
    JudgeState,
    Moment,
    OpenFault,
    Removal,
)
from outlast.model.health import FaultClass, FaultState, Scope, Subsystem

WITNESS_XIDS: Final = frozenset({119, 120})
WITNESS_FAULT_CODES: Final = frozenset({"xid/119", "xid/120", "gsp/silent", "driver/wedged"})
LEAKED_WORKERS_WITNESS: Final = 2
"""This many workers stuck in the kernel are a second witness that the driver is wedged."""
REMOVED_S: Final = 900.0
"""The kernel complains of a stuck task after 120 s, and up to ten times."""
REMOVAL_CODE: Final = "xid/45"
WEDGED_CODE: Final = "driver/wedged"
RANK_WEDGED: Final = 4
RANK_SUSPECTED: Final = 12
HUNG_TASK: Final = "task/hung"


def testify(state: JudgeState, fact: Fact, now: Moment) -> JudgeState:
    """What a kernel line says about the driver as a whole."""
    if fact.replayed:
        return state
    match fact:
        case HungTaskFact():
            return stuck_task(state, fact.process, None, now, in_driver=True)
        case LineFact() if fact.kind == HUNG_TASK:
            return stuck_task(state, fact.subject, None, now, in_driver=False)
        case GspFact():
            return msgspec.structs.replace(state, witness=now.monotonic)
        case XidFact() if fact.code in WITNESS_XIDS:
            return msgspec.structs.replace(state, witness=now.monotonic)
    return state


def stuck_task(
    state: JudgeState, process: str, pid: int | None, now: Moment, *, in_driver: bool
) -> JudgeState:
    """A task has been in uninterruptible sleep for long."""
    if in_driver:
        state = msgspec.structs.replace(state, witness=now.monotonic)
    entry = Removal(process=process, at=now.monotonic, pid=pid, in_driver=in_driver)
    fresh = [
        e
        for e in state.stuck
        if now.monotonic - e.at <= REMOVED_S and (e.process, e.pid) != (entry.process, entry.pid)
    ]
    return msgspec.structs.replace(state, stuck=(*fresh, entry)[-REMOVALS_MAX:])


def removed(state: JudgeState, event: Event, now: Moment) -> JudgeState:
    """The driver took a program off its GPU."""
    if event.code != REMOVAL_CODE or event.replayed or not event.gpu or not (event.process or event.pid):
        return state
    entry = Removal(process=event.process, at=now.monotonic, pid=event.pid, gpu=event.gpu)
    if any(
        now.monotonic - e.at < JUST_SEEN_S
        and (e.gpu, e.process, e.pid) == (entry.gpu, entry.process, entry.pid)
        for e in state.removals
    ):
        return state
    fresh = [
        e
        for e in state.removals
        if now.monotonic - e.at <= REMOVED_S
        and (e.gpu, e.process, e.pid) != (entry.gpu, entry.process, entry.pid)
    ]
    return msgspec.structs.replace(state, removals=(*fresh, entry)[-REMOVALS_MAX:])


def wedged(state: JudgeState, now: Moment) -> JudgeState:
    """A removed program that is stuck: seen inside the driver it is wedged, else only suspected to be."""
    if not state.removals or not state.stuck:
        return state
    hung = any(fault.fault_class is FaultClass.MONITOR_HUNG for fault in state.faults)
    for task in state.stuck:
        for gone in state.removals:
            if not _same(task, gone) or now.monotonic - task.at > REMOVED_S:
                continue
            certain = task.in_driver or hung
            known = next((f for f in state.faults if f.key == gone.gpu), None)
            if known is not None and any(
                c.code == WEDGED_CODE or (c.code == f"{WEDGED_CODE}-maybe" and not certain)
                for c in known.codes
            ):
                continue
            state = join_event(state, _event(gone, task, certain=certain, now=now), now, may_open=True)
    return state


def second_witness(state: JudgeState, now: Moment) -> JudgeState:
    """Mark the fault of a hung tool when anything beside it says that the driver is wedged."""
    hung = [f for f in state.faults if f.fault_class is FaultClass.MONITOR_HUNG and not f.second_witness]
    if not hung or not _witnessed(state, now):
        return state
    return msgspec.structs.replace(
        state,
        faults=tuple(
            msgspec.structs.replace(fault, second_witness=True) if fault in hung else fault
            for fault in state.faults
        ),
    )


def _witnessed(state: JudgeState, now: Moment) -> bool:
    if state.witness is not None and now.monotonic - state.witness <= WITNESS_S:
        return True
    if state.gpu is not None and state.gpu.leaked_workers >= LEAKED_WORKERS_WITNESS:
        return True
    return any(_testifies(fault) for fault in state.faults)


def _testifies(fault: OpenFault) -> bool:
    return fault.state is FaultState.OPEN and any(c.code in WITNESS_FAULT_CODES for c in fault.codes)


def _same(task: Removal, gone: Removal) -> bool:
    if task.pid is not None and task.pid == gone.pid:
        return True
    # A thread has a number of its own, but mostly the name of its process.
    return bool(task.process) and task.process == gone.process


def _event(gone: Removal, task: Removal, *, certain: bool, now: Moment) -> Event:
    text = f"{task.process or task.pid} was removed from GPU {gone.gpu} and is stuck in the kernel"
    return Event(
        code=WEDGED_CODE if certain else f"{WEDGED_CODE}-maybe",
        reason=Reason.DRIVER_WEDGED,
        fault_class=FaultClass.REBOOT_CURES if certain else FaultClass.TRANSIENT,
        subsystem=Subsystem.GPU,
        scope=Scope.GPU,
        rank=RANK_WEDGED if certain else RANK_SUSPECTED,
        proof=Proof.NEW_BOOT_AND_PRESENT if certain else Proof.QUIET,
        expiry_s=0 if certain else REMOVED_S,
        gpu=gone.gpu,
        source="kernel log",
        text=text,
        summary=(
            f"The driver is wedged: {text}."
            if certain
            else f"The driver may be wedged: {text}; nothing shows that it is stuck in the driver."
        ),
        role=Role.LEADER,
        sequence=0,
        timestamp_us=int(now.monotonic * 1_000_000),
    )
