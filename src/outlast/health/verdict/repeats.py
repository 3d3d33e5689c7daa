"""Application errors say nothing about a GPU until different jobs meet the same one on it.

One job on several GPUs is software. Processes that die together share a job (MPS kills all its clients).
Two jobs in a day make a suspicion and ask for a deep check, three keep new work away where that is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from outlast.health.finding import Event, Proof, Role
from outlast.health.reasons import Reason
from outlast.health.verdict.faults import join_event
from outlast.health.verdict.returning import board_at
from outlast.health.verdict.state import (
    DAY_S,
    OWNERS_MAX,
    REPEATS_MAX,
    SUSPICIONS_MAX,
    ApplicationRule,
    JudgeState,
    Moment,
    Owner,
    Repeat,
    Suspicion,
    ran_s,
)
from outlast.model.health import FaultClass, Scope, Subsystem

OWNER_S: Final = 3600.0
"""How long a process that ended is still known by its pod: its errors are printed last."""
UNKNOWN_JOB_S: Final = 600.0
"""Errors of unknown processes closer than this are one job's."""
TOGETHER_S: Final = 10.0
"""Errors on one GPU this close are one event, whatever processes they name."""
SAME_JOB_S: Final = 60.0
"""A job that fails on two GPUs within this time has a fault of its own."""
SUSPECT_JOBS: Final = 2
BLOCK_JOBS: Final = 3
UNKNOWN: Final = "unknown"
NEVER_COUNTED: Final = frozenset({"xid/45"})
"""Also printed when somebody ends a healthy program."""
COUNTED_FOLLOWERS: Final = frozenset({"xid/43"})
SUSPECT_CODE: Final = "gpu/suspect"
RANK_SUSPECT: Final = 12
_UNIT: Final = re.compile(r"\(GPC (\d{1,3}), ?TPC (\d{1,3})(?:, ?SM (\d{1,3}))?\)")


def learn_owners(state: JudgeState, owners: Iterable[tuple[int, str]], now: Moment) -> JudgeState:
    """Remember which pods processes belong to."""
    fresh = {pid: Owner(pod, now.monotonic) for pid, pod in owners if pod}
    if not fresh and not state.owners:
        return state
    kept = {pid: owner for pid, owner in state.owners.items() if now.monotonic - owner.at <= OWNER_S}
    kept.update(fresh)
    if len(kept) > OWNERS_MAX:
        newest = sorted(kept.items(), key=lambda item: item[1].at)[-OWNERS_MAX:]
        kept = dict(newest)
    return msgspec.structs.replace(state, owners=kept)


def note(state: JudgeState, event: Event, now: Moment) -> JudgeState:
    """Count an application error that belongs to no fault."""
    if state.settings.application_rule is ApplicationRule.OFF or event.replayed or not event.gpu:
        return state
    follows = event.role is not Role.APPLICATION and event.code not in COUNTED_FOLLOWERS
    if follows or event.code in NEVER_COUNTED:
        return state
    at_s = ran_s(state, now)
    board = board_at(state, event.gpu)
    unit = event.unit or _unit(event.text)
    window_s = event.count_window_s if event.count_min > 1 and event.count_window_s > 0 else DAY_S
    known = [entry for entry in state.repeats if at_s - entry.at_s <= max(DAY_S, window_s)]
    if any(e.gpu == board and e.code == event.code and at_s - e.at_s <= TOGETHER_S for e in known):
        return state
    job = _job(state, known, event, at_s)
    entry = Repeat(gpu=board, code=event.code, job=job, at_s=at_s, unit=unit)
    elsewhere = [e for e in known if e.job == job and e.gpu != board and at_s - e.at_s <= SAME_JOB_S]
    if elsewhere:
        entry = msgspec.structs.replace(entry, software=True)
        known = [msgspec.structs.replace(e, software=True) if e in elsewhere else e for e in known]
    known = [e for e in known if (e.gpu, e.code, e.job, e.unit) != (board, event.code, job, unit)]
    state = msgspec.structs.replace(state, repeats=(*known, entry)[-REPEATS_MAX:])
    return _suspected(state, event, board, unit, window_s, now)


def unsuspected(state: JudgeState, now: Moment) -> JudgeState:
    """The state without suspicions that a day has passed over."""
    if not state.suspicions:
        return state
    left = tuple(entry for entry in state.suspicions if ran_s(state, now) - entry.at_s <= DAY_S)
    return state if len(left) == len(state.suspicions) else msgspec.structs.replace(state, suspicions=left)


def _job(state: JudgeState, known: list[Repeat], event: Event, at_s: float) -> str:
    owner = state.owners.get(event.pid) if event.pid is not None else None
    if owner is not None:
        return owner.pod
    last = max((e for e in known if e.job.startswith(UNKNOWN)), key=lambda e: e.at_s, default=None)
    if last is not None and at_s - last.at_s <= UNKNOWN_JOB_S:
        return last.job
    return f"{UNKNOWN} at {at_s:.0f}"


def _suspected(
    state: JudgeState, event: Event, board: str, unit: str, window_s: float, now: Moment
) -> JudgeState:
    at_s = ran_s(state, now)
    alike = [
        e for e in state.repeats if e.code == event.code and not e.software and at_s - e.at_s <= window_s
    ]
    jobs = _jobs(alike, board, unit)
    others = max((_jobs(alike, gpu, "") for gpu in {e.gpu for e in alike if e.gpu != board}), default=0)
    if jobs < SUSPECT_JOBS or others >= SUSPECT_JOBS:
        return state  # several GPUs with the same trouble: that is what they run, not what they are
    enough = event.count_min if event.count_min > 1 else BLOCK_JOBS
    entry = Suspicion(
        gpu=board, address=event.gpu, code=event.code, jobs=jobs, blocks=jobs >= enough, at_s=at_s
    )
    kept = tuple(e for e in state.suspicions if (e.gpu, e.code) != (board, event.code))
    state = msgspec.structs.replace(state, suspicions=(*kept, entry)[-SUSPICIONS_MAX:])
    if not entry.blocks or state.settings.application_rule is not ApplicationRule.BLOCK:
        return state
    known = [fault for fault in state.faults if fault.key == event.gpu]
    if any(all(code.code != SUSPECT_CODE for code in fault.codes) for fault in known):
        return state  # a better explanation stands already
    return join_event(state, _suspect(event, jobs), now, may_open=True)


def _jobs(alike: list[Repeat], board: str, unit: str) -> int:
    """Different jobs on a board; where both errors name their unit, only those of the same."""
    return len({e.job for e in alike if e.gpu == board and (not unit or not e.unit or e.unit == unit)})


def _suspect(event: Event, jobs: int) -> Event:
    return Event(
        code=SUSPECT_CODE,
        reason=Reason.GPU_SUSPECT,
        fault_class=FaultClass.TRANSIENT,
        subsystem=Subsystem.GPU,
        scope=Scope.GPU,
        rank=RANK_SUSPECT,
        proof=Proof.QUIET,
        expiry_s=DAY_S,
        gpu=event.gpu,
        source=event.source,
        text=event.text,
        summary=f"{jobs} different jobs met {event.code} on GPU {event.gpu} within a day; test it deeply.",
        role=Role.LEADER,
        sequence=event.sequence,
        timestamp_us=event.timestamp_us,
    )


def _unit(text: str) -> str:
    found = _UNIT.search(text)
    return "/".join(part for part in found.groups() if part) if found else ""
