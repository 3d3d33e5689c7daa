"""Faults end by proof, never by silence: the right thing seen twice, after the last evidence.

What each kind of fault asks for is in `proofs`; here it is counted, over polls and over time.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import Final

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.verdict.codes import AT_ONCE
from outlast.health.verdict.inventory import vouches, wanted_gpus
from outlast.health.verdict.proofs import Case, action_known, address_of, gpus_good, proves, repaired
from outlast.health.verdict.returning import remembered
from outlast.health.verdict.state import STALE_S, FaultCode, JudgeState, Moment, OpenFault, Unexplained
from outlast.model.observation import GpuSurvey

CLEAN_POLLS: Final = 2
CLEAN_SPAN_S: Final = 60.0
SLOW_FIRMWARE: Final = frozenset({"xid/119", "gsp/silent"})
"""A firmware processor that answers after all was slow, not dead."""


class Ending(StrEnum):
    """How a fault ended."""

    CLEARED = "cleared"
    HARDWARE_LEFT = "hardware left"
    RECORDED = "recorded"
    """It was a notice: the counters can be read and ask for nothing."""
    DOWNGRADED = "downgraded to a warning"
    """It looked worse than the levels, read all along, have shown it to be."""


class Ended(msgspec.Struct, frozen=True):
    """A fault that is over."""

    fault: OpenFault
    ending: Ending


def after_poll(
    state: JudgeState, source: str, catalogue: Catalogue, now: Moment
) -> tuple[JudgeState, tuple[Ended, ...]]:
    """Count one poll of a source towards the proofs of its faults; those proven are over."""
    if not state.faults and not state.unexplained:
        return state, ()
    faults, ended = [], []
    for fault in state.faults:
        if fault.root.polled_by != source:
            faults.append(fault)
            continue
        watched = _watched(state, fault, catalogue, now)
        polled = _polled(watched, _holds(state, watched, catalogue, now), now)
        if _proven(polled, now):
            ended.append(Ended(polled, _ending(state, polled)))
        else:
            faults.append(polled)
    unexplained = state.unexplained
    if source == GpuSurvey.source:
        unexplained = tuple(e for e in (_explained(state, e, catalogue, now) for e in unexplained) if e)
    if not ended and unexplained == state.unexplained and all(map(_same, faults, state.faults)):
        return state, ()
    for over in ended:
        if over.ending is Ending.CLEARED and repaired(state, over.fault):
            state = remembered(state, over.fault, now)
    return msgspec.structs.replace(state, faults=tuple(faults), unexplained=unexplained), tuple(ended)


def departed(state: JudgeState, catalogue: Catalogue) -> tuple[JudgeState, tuple[Ended, ...]]:
    """Faults whose board is no longer in the machine are over, and are not the next board's."""
    left = [fault for fault in state.faults if _left(state, fault, catalogue)]
    if not left:
        return state, ()
    faults = tuple(fault for fault in state.faults if fault not in left)
    ended = tuple(Ended(fault, Ending.HARDWARE_LEFT) for fault in left)
    return msgspec.structs.replace(state, faults=faults), ended


def after_gap(state: JudgeState, now: Moment) -> JudgeState:
    """Records were lost: what they said is unknown, so every proof and every expiry starts again."""
    return msgspec.structs.replace(
        state,
        gaps=state.gaps + 1,
        faults=tuple(
            msgspec.structs.replace(f, quiet_since=now.monotonic, clean_since=None, clean_polls=0)
            for f in state.faults
        ),
    )


def _same(one: OpenFault, other: OpenFault) -> bool:
    return one is other


def _watched(state: JudgeState, fault: OpenFault, catalogue: Catalogue, now: Moment) -> OpenFault:
    """Since when every poll found the GPU readable and asking for nothing."""
    address = address_of(fault)
    if not gpus_good(state, address, catalogue) or not action_known(state, address):
        if fault.watched_since is None:
            return fault
        return msgspec.structs.replace(fault, watched_since=None)
    since = fault.watched_since
    if since is None or now.monotonic - fault.watched_at > STALE_S:
        since = now.monotonic
    return msgspec.structs.replace(fault, watched_since=since, watched_at=now.monotonic)


def _polled(fault: OpenFault, clean: bool, now: Moment) -> OpenFault:
    if not clean:
        if fault.clean_since is None:
            return fault
        return msgspec.structs.replace(fault, clean_since=None, clean_polls=0)
    since = fault.clean_since if fault.clean_since is not None else now.monotonic
    return msgspec.structs.replace(fault, clean_since=since, clean_polls=fault.clean_polls + 1)


def _proven(fault: OpenFault, now: Moment) -> bool:
    if fault.clean_since is None:
        return False
    polls = max(code.clean_polls for code in fault.codes)
    span_s = max(code.clean_span_s for code in fault.codes)
    return fault.clean_polls >= polls and now.monotonic - fault.clean_since >= span_s


def _holds(state: JudgeState, fault: OpenFault, catalogue: Catalogue, now: Moment) -> bool:
    """Whether everything that has to be true for this fault to be over is true in this poll."""
    keys = {fault.key, fault.key.partition("/")[0]}
    if any(entry.level.key in keys for entry in state.levels):
        return False
    if any(not _looked_again(state, fault, code) for code in fault.codes):
        return False
    return all(proves(Case(state, fault, code, catalogue, now)) for code in fault.codes)


def _looked_again(state: JudgeState, fault: OpenFault, code: FaultCode) -> bool:
    """A check that found the fault must have judged since: a source that is silent proves nothing."""
    if not code.check:
        return True
    looks = (code.check, f"{code.check} {fault.key}", f"{code.check} {fault.key.partition('/')[0]}")
    return max(state.judged.get(look, -inf) for look in looks) > fault.evidence_monotonic


def _ending(state: JudgeState, fault: OpenFault) -> Ending:
    if repaired(state, fault):
        return Ending.CLEARED
    if fault.root.code in AT_ONCE:
        return Ending.RECORDED
    return Ending.DOWNGRADED if fault.root.code in SLOW_FIRMWARE else Ending.CLEARED


def _left(state: JudgeState, fault: OpenFault, catalogue: Catalogue) -> bool:
    """The board is no longer in a machine whose every slot is read."""
    gpus = state.gpu.gpus if state.gpu and vouches(state.gpu) else ()
    if fault.gpu is None or not gpus or len(gpus) < wanted_gpus(state, catalogue):
        return False
    if serial := fault.gpu.serial:
        return all(gpu.serial and gpu.serial != serial for gpu in gpus)
    uuid = fault.gpu.uuid
    return bool(uuid) and all(gpu.uuid and gpu.uuid != uuid for gpu in gpus)


def _explained(
    state: JudgeState, entry: Unexplained, catalogue: Catalogue, now: Moment
) -> Unexplained | None:
    """None once its GPU checked clean often enough."""
    if not gpus_good(state, entry.gpu, catalogue) or any(e.level.key == entry.gpu for e in state.levels):
        return msgspec.structs.replace(entry, clean_since=None, clean_polls=0)
    since = entry.clean_since if entry.clean_since is not None else now.monotonic
    if entry.clean_polls + 1 >= CLEAN_POLLS and now.monotonic - since >= CLEAN_SPAN_S:
        return None
    return msgspec.structs.replace(entry, clean_since=since, clean_polls=entry.clean_polls + 1)
