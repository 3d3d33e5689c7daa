"""The judge: readings in, verdicts out; the same input always gives the same answer.

Call it whenever a source delivered something, and again at `due_s`, when something that waits is due.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from operator import attrgetter, is_
from typing import Final

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.verdict import broken, repeats, report, vouching, wedge
from outlast.health.verdict.clearing import Ended, after_gap, after_poll, departed
from outlast.health.verdict.events import absorb_record, next_due, release_due
from outlast.health.verdict.inventory import resized
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
        try:
            state, over = _absorb(state, reading, catalogue, now)
        except Exception as error:  # said, and nothing else ends for it
            state = broken.failed(state, broken.name_of(reading), error)
            continue
        ended += over
    state = release_due(state, now)
    state = repeats.unsuspected(state, now)
    state = wedge.second_witness(wedge.wedged(state, now), now)
    if before.answer is not None and now.monotonic < before.answer.until and _says_the_same(before, state):
        return _judgement(before, state, before.answer, (), tuple(ended), now)
    return _answered(before, state, tuple(ended), now, catalogue)


_UNSAID: Final = frozenset(
    {
        *("answer", "standing", "version", "running_base_s", "uptime_s", "suspended_s"),
        *("held", "recent", "repeats", "tallies", "past", "owners", "removals", "stuck", "witness"),
        *("off_bus", "gaps", "untrusted", "probes", "asked", "first_start", "judged", "counters"),
        *("heard", "heard_us"),
    }
)
_SAID: Final = attrgetter(*(name for name in JudgeState.__struct_fields__ if name not in _UNSAID))
"""All of the state that the answer is made of; a new field is held to matter until it is listed above."""


def _says_the_same(before: JudgeState, after: JudgeState) -> bool:
    """Whether nothing that is published can have changed: most lines of a flood change nothing."""
    return after is before or all(map(is_, _SAID(before), _SAID(after)))


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
    answer = report.answer(state, published, catalogue, vouching.next_change(state, now))
    state = msgspec.structs.replace(state, answer=answer)
    return _judgement(before, state, answer, opened, ended, now)


def _judgement(
    before: JudgeState,
    state: JudgeState,
    answer: Answer,
    opened: tuple[OpenFault, ...],
    ended: tuple[Ended, ...],
    now: Moment,
) -> Judgement:
    held = next_due(state)
    due = answer.until if held is None else min(held, answer.until)
    return Judgement(
        state=state,
        status=answer.status,
        conditions=answer.conditions,
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
            state = broken.works(state, broken.name_of(reading))
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
            return resized(state, reading.instance_type), ()
