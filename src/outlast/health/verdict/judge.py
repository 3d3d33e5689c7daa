"""The judge: readings in, verdicts out; the same input always gives the same answer.

Call it whenever a source delivered something, and again at `due_s`, when something that waits is due.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.verdict import repeats, report, vouching, wedge
from outlast.health.verdict.clearing import Ended, after_gap, after_poll, departed
from outlast.health.verdict.events import absorb_record, next_due, release_due
from outlast.health.verdict.levels import run_checks, take
from outlast.health.verdict.memory import rebooted, resumed
from outlast.health.verdict.state import Answer, JudgeState, Moment, OpenFault
from outlast.model.cluster import Condition
from outlast.model.health import FaultState, NodeHealthStatus
from outlast.model.observation import (
    GpuSurvey,
    KernelLogCaughtUp,
    KernelLogGap,
    KernelLogLost,
    KernelRecord,
    MachineFacts,
    Survey,
)

Input = KernelRecord | KernelLogGap | KernelLogCaughtUp | KernelLogLost | Survey | MachineFacts


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
    deep_check: tuple[str, ...] = ()
    """PCI addresses of GPUs that should be tested deeply once they are idle."""
    due_s: float | None = None
    """Seconds until the answer may change without a new reading."""


def judge(state: JudgeState, inputs: Iterable[Input], now: Moment, catalogue: Catalogue) -> Judgement:
    """Absorb the readings in order and say what is so now."""
    before = state
    ended: list[Ended] = []
    for reading in inputs:
        state, over = _absorb(state, reading, catalogue, now)
        ended += over
    state = release_due(state, now)
    state = repeats.unsuspected(state, now)
    state = wedge.second_witness(wedge.wedged(state, now), now)
    known = before.answer
    if state is before and known is not None and now.monotonic < known.until:
        return Judgement(
            state=state,
            status=known.status,
            conditions=known.conditions,
            deep_check=deep_check(state),
            due_s=None if known.until == inf else known.until - now.monotonic,
        )
    return _answered(before, state, tuple(ended), now, catalogue)


def deep_check(state: JudgeState) -> tuple[str, ...]:
    """Addresses of GPUs that different jobs make suspicious: to be tested deeply once they are idle."""
    return tuple(dict.fromkeys(entry.address for entry in state.suspicions)) if state.suspicions else ()


def _answered(
    before: JudgeState, state: JudgeState, ended: tuple[Ended, ...], now: Moment, catalogue: Catalogue
) -> Judgement:
    state, published = report.verdicts(state, catalogue, now)
    was = {fault.id: fault.state for fault in before.faults}
    opened = tuple(
        fault
        for fault in state.faults
        if fault.id not in was or (fault.state is FaultState.OPEN and was[fault.id] is not FaultState.OPEN)
    )
    status = report.status(state, published, catalogue)
    conditions = report.conditions(published)
    due = _due(state, now)
    state = msgspec.structs.replace(state, answer=Answer(status, conditions, due))
    return Judgement(
        state=state,
        status=status,
        conditions=conditions,
        opened=opened,
        ended=ended,
        probe=bool(opened)
        or state.gaps > before.gaps
        or state.probes > before.probes
        or state.boot_id != before.boot_id,
        deep_check=deep_check(state),
        due_s=None if due == inf else max(0.0, due - now.monotonic),
    )


def _absorb(
    state: JudgeState, reading: Input, catalogue: Catalogue, now: Moment
) -> tuple[JudgeState, tuple[Ended, ...]]:
    match reading:
        case KernelRecord():
            return absorb_record(state, reading, catalogue, now), ()
        case Survey():
            state = take(state, reading, catalogue, now)
            state, left = departed(state, catalogue) if isinstance(reading, GpuSurvey) else (state, ())
            state = run_checks(state, reading, catalogue, now)
            state, ended = after_poll(state, reading.source, catalogue, now)
            return state, (*left, *ended)
        case KernelLogGap():
            return after_gap(state, now), ()
        case KernelLogLost():
            message = reading.message or "unreadable"
            if state.kernel_log_lost == message:
                return state, ()
            return msgspec.structs.replace(state, kernel_log_lost=message), ()
        case KernelLogCaughtUp():
            if state.kernel_log_lost:
                state = after_gap(state, now)  # nobody read what was printed meanwhile
            read = msgspec.structs.replace(state, kernel_log_lost="", kernel_log_read=True)
            return msgspec.structs.replace(read, kernel_log_source=reading.source), ()
        case MachineFacts():
            state = resumed(rebooted(state, reading.boot_id, now), reading.suspended_s, now)
            if state.instance_type != reading.instance_type:
                state = msgspec.structs.replace(state, instance_type=reading.instance_type)
            return state, ()


def _due(state: JudgeState, now: Moment) -> float:
    """The moment at which the answer may change without a new reading."""
    held = next_due(state)
    return min(inf if held is None else held, vouching.next_change(state, now))
