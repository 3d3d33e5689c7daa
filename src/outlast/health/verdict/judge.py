"""The judge: readings in, verdicts out; the same input always gives the same answer.

Call it whenever a source delivered something, and again at `due_s`, when something that waits is due.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.verdict import report
from outlast.health.verdict.clearing import Ended, after_gap, after_poll
from outlast.health.verdict.events import absorb_record, next_due, release_due
from outlast.health.verdict.levels import absorb_gpu, absorb_pci, absorb_survey
from outlast.health.verdict.state import STALE_S, WITNESS_S, JudgeState, Moment, OpenFault, rebooted
from outlast.model.cluster import Condition
from outlast.model.health import FaultClass, FaultState, NodeHealthStatus
from outlast.model.observation import (
    GpuSurvey,
    KernelLogCaughtUp,
    KernelLogGap,
    KernelLogLost,
    KernelRecord,
    MachineFacts,
    PciSurvey,
    Survey,
)

Input = KernelRecord | KernelLogGap | KernelLogCaughtUp | KernelLogLost | Survey | MachineFacts

LEAKED_WORKERS_WITNESS: Final = 2
"""This many workers stuck in the kernel are a second witness that the driver is wedged."""
WITNESS_FAULT_CODES: Final = frozenset({"xid/119", "xid/120", "gsp/silent"})


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one call."""

    state: JudgeState
    status: NodeHealthStatus
    conditions: tuple[Condition, ...]
    opened: tuple[OpenFault, ...] = ()
    """Faults that are new, or stand again."""
    ended: tuple[Ended, ...] = ()
    probe: bool = False
    """Something happened that the level checks should look at now, not at the next poll."""
    due_s: float | None = None
    """Seconds until the answer may change without a new reading."""


def judge(state: JudgeState, inputs: Iterable[Input], now: Moment, catalogue: Catalogue) -> Judgement:
    """Absorb the readings in order and say what is so now."""
    before = state
    ended: list[Ended] = []
    gaps = state.gaps
    for reading in inputs:
        state, over = _absorb(state, reading, catalogue, now)
        ended += over
    state = release_due(state, now)
    state = _second_witness(state, now)
    state, published = report.verdicts(state, catalogue, now)
    was = {fault.id: fault.state for fault in before.faults}
    opened = tuple(
        fault
        for fault in state.faults
        if fault.id not in was or (fault.state is FaultState.OPEN and was[fault.id] is not FaultState.OPEN)
    )
    return Judgement(
        state=state,
        status=report.status(state, published, catalogue),
        conditions=report.conditions(published),
        opened=opened,
        ended=tuple(ended),
        probe=bool(opened) or state.gaps > gaps or state.boot_id != before.boot_id,
        due_s=_due_s(state, now),
    )


def _absorb(
    state: JudgeState, reading: Input, catalogue: Catalogue, now: Moment
) -> tuple[JudgeState, tuple[Ended, ...]]:
    match reading:
        case KernelRecord():
            return absorb_record(state, reading, catalogue, now), ()
        case GpuSurvey():
            state = absorb_gpu(state, reading, catalogue, now)
            return after_poll(state, reading.source, catalogue, now)
        case PciSurvey():
            state = absorb_pci(state, reading, catalogue, now)
            return after_poll(state, reading.source, catalogue, now)
        case Survey():
            state = absorb_survey(state, reading, catalogue, now)
            return after_poll(state, reading.source, catalogue, now)
        case KernelLogGap():
            return after_gap(state), ()
        case KernelLogLost():
            return msgspec.structs.replace(state, kernel_log_lost=reading.message or "unreadable"), ()
        case KernelLogCaughtUp():
            return msgspec.structs.replace(state, kernel_log_lost="", kernel_log_read=True), ()
        case MachineFacts():
            state = rebooted(state, reading.boot_id, now)
            if state.instance_type != reading.instance_type:
                state = msgspec.structs.replace(state, instance_type=reading.instance_type)
            return state, ()


def _second_witness(state: JudgeState, now: Moment) -> JudgeState:
    """Does anything beside the hung tool say that the driver is wedged?"""
    hung = [f for f in state.faults if f.fault_class is FaultClass.MONITOR_HUNG and not f.second_witness]
    if not hung:
        return state
    fresh = state.witness is not None and now.monotonic - state.witness <= WITNESS_S
    stuck = state.gpu is not None and state.gpu.leaked_workers >= LEAKED_WORKERS_WITNESS
    silent = any(
        code.code in WITNESS_FAULT_CODES
        for fault in state.faults
        if fault.state is FaultState.OPEN
        for code in fault.codes
    )
    if not (fresh or stuck or silent):
        return state
    return msgspec.structs.replace(
        state,
        faults=tuple(
            msgspec.structs.replace(fault, second_witness=True) if fault in hung else fault
            for fault in state.faults
        ),
    )


def _due_s(state: JudgeState, now: Moment) -> float | None:
    times = [] if (due := next_due(state)) is None else [due]
    if state.surveyed is not None and now.monotonic - state.surveyed <= STALE_S:
        times.append(state.surveyed + STALE_S + 0.001)
    return max(0.0, min(times) - now.monotonic) if times else None
