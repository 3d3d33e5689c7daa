"""Kernel facts in order: leaders open at once, followers wait a moment for theirs, programs harm nobody.

A burst arrives in any order, so an echo that is printed first must not become a story of its own.
"""

from __future__ import annotations

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.checks import EVENT_CHECKS
from outlast.health.finding import Event, Proof, Role
from outlast.health.sources import kernel_text
from outlast.health.sources.facts import DriverLoadedFact, Fact
from outlast.health.verdict import peers, repeats, wedge
from outlast.health.verdict.attribution import below_port
from outlast.health.verdict.faults import find, join_event, join_found
from outlast.health.verdict.hearing import hear, heard
from outlast.health.verdict.state import (
    HELD_MAX,
    HOLD_BACK_S,
    INITIALIZING_S,
    RECENT_MAX,
    UNEXPLAINED_MAX,
    Held,
    JudgeState,
    Moment,
    Recent,
    Unexplained,
)
from outlast.health.verdict.tallies import counted
from outlast.model.health import FaultClass
from outlast.model.observation import KernelRecord

RECOVERY_CHANGED = "xid/154"
MICROSECOND = 1_000_000


def absorb_record(state: JudgeState, record: KernelRecord, catalogue: Catalogue, now: Moment) -> JudgeState:
    """One kernel record, in kernel order."""
    if not kernel_text.interesting(record):
        return state
    if not kernel_text.trusted(record, trust_user_records=state.settings.trust_user_records):
        return msgspec.structs.replace(state, untrusted=state.untrusted + 1)
    if record.replayed and not state.first_start and heard(state, record):
        return state
    state = hear(state, record, now)
    fact, memory = kernel_text.read(record, state.off_bus)
    if memory is not state.off_bus:
        state = msgspec.structs.replace(state, off_bus=memory)
    if fact is None:
        return state
    if record.replayed and state.first_start:
        fact = msgspec.structs.replace(fact, replayed=True)
    state = _note(state, fact, now)
    for check in EVENT_CHECKS:
        event = check.run(fact, catalogue)
        if event is not None and not _long_over(event, now):
            state = _absorb_event(state, below_port(state.pci, event), now)
    return state


def _long_over(event: Event, now: Moment) -> bool:
    """Found in the log's past, and older than what would have ended it by now."""
    age_s = now.monotonic - event.timestamp_us / MICROSECOND
    return event.replayed and event.proof is Proof.EXPIRY and 0 < event.expiry_s <= age_s


def release_due(state: JudgeState, now: Moment) -> JudgeState:
    """Judge the followers whose leader did not come in time."""
    count = 0
    for held in state.held:  # in the order in which they came, so also of what is due
        if held.due > now.monotonic:
            break
        count += 1
    if count == 0:
        return state
    due = [held.event for held in state.held[:count]]
    state = msgspec.structs.replace(state, held=state.held[count:])
    for event in due:
        state = _settle(state, event, now)
    return state


def next_due(state: JudgeState) -> float | None:
    """Monotonic time at which `release_due` has something to do."""
    return state.held[0].due if state.held else None


def _note(state: JudgeState, fact: Fact, now: Moment) -> JudgeState:
    """What a fact says beside its event."""
    if isinstance(fact, DriverLoadedFact) and not fact.replayed:
        return msgspec.structs.replace(state, quiet_from=now.monotonic + INITIALIZING_S, gpus_complete=False)
    return wedge.testify(state, fact, now)


def _absorb_event(state: JudgeState, event: Event, now: Moment) -> JudgeState:
    if event.role is not Role.APPLICATION:
        state, enough = counted(state, event)
        if not enough:
            if find(state, event) is not None:
                return join_event(state, event, now, may_open=False)
            return _remember(state, event, now)
    match event.role:
        case Role.LEADER:
            return _lead(state, event, now)
        case Role.MODIFIER:
            if event.code == RECOVERY_CHANGED and not event.asks_recovery:
                # Nothing is wanted any more, or nobody can tell what: the levels say what is so.
                return msgspec.structs.replace(state, probes=state.probes + 1)
            return join_event(state, event, now, may_open=event.asks_recovery)
        case Role.FOLLOWER | Role.APPLICATION:
            return _hold(wedge.removed(state, event, now), event, now)
        case Role.UNEXPECTED:
            return _unexplained(state, event, now)
        case Role.INFORMATIONAL:
            return _remember(state, event, now)


def _lead(state: JudgeState, event: Event, now: Moment) -> JudgeState:
    """A leader never waits: it joins its story, is an echo of a peer's, or opens a story of its own."""
    found = find(state, event)
    if found is not None:
        joined = join_found(state, found, event, now)
        if joined is state:
            return state
    elif (blamed := peers.accuse(state, event, now)) is not None:
        return blamed
    else:
        joined = join_event(state, event, now, may_open=True)
    state = joined
    return _pull_followers(peers.gather(state, event, now), now)


def _hold(state: JudgeState, event: Event, now: Moment) -> JudgeState:
    if event.replayed:
        # Its job is long gone; only what stands may still matter.
        if event.fault_class is FaultClass.APPLICATION:
            return state
        return join_event(state, event, now, may_open=True)
    found = find(state, event)
    if found is not None:
        return join_found(state, found, event, now)
    held = (*state.held, Held(event, now.monotonic + HOLD_BACK_S))
    state = msgspec.structs.replace(state, held=held[-HELD_MAX:])
    for overflow in held[:-HELD_MAX]:
        state = _settle(state, overflow.event, now)
    return state


def _pull_followers(state: JudgeState, now: Moment) -> JudgeState:
    """A leader has come: those of the waiting that are its echoes join it."""
    staying = []
    for held in state.held:
        if find(state, held.event) is None:
            staying.append(held)
        else:
            state = join_event(state, held.event, now, may_open=False)
    return state if len(staying) == len(state.held) else msgspec.structs.replace(state, held=tuple(staying))


def _settle(state: JudgeState, event: Event, now: Moment) -> JudgeState:
    if find(state, event) is not None or event.fault_class is not FaultClass.APPLICATION:
        return join_event(state, event, now, may_open=True)
    return repeats.note(_remember(state, event, now), event, now)


def _remember(state: JudgeState, event: Event, now: Moment) -> JudgeState:
    if event.replayed:
        return state
    recent = (*state.recent, Recent(event.code, event.gpu, event.role, now.wall))
    return msgspec.structs.replace(state, recent=recent[-RECENT_MAX:])


def _unexplained(state: JudgeState, event: Event, now: Moment) -> JudgeState:
    state = _remember(state, event, now)
    if event.replayed:
        return state
    entry = Unexplained(gpu=event.gpu, code=event.code)
    others = tuple(e for e in state.unexplained if (e.gpu, e.code) != (entry.gpu, entry.code))
    return msgspec.structs.replace(state, unexplained=(*others, entry)[-UNEXPLAINED_MAX:])
