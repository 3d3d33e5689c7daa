"""A link has two ends: an error that one GPU reports may be the death of another, or of the switch.

Both are evidence of one fault, that of the peer. Where no peer shows anything the link is suspect: its
GPU takes no new work, and nobody is drained for it.
"""

from __future__ import annotations

from typing import Final

from outlast.health.finding import Event
from outlast.health.verdict.faults import MICROSECOND, absorb_fault, echo
from outlast.health.verdict.state import WINDOW_S, JudgeState, Moment, OpenFault
from outlast.model.health import FaultClass, FaultState, Subsystem

LINK_ERROR: Final = "xid/74"
ECHO_S: Final = 10.0
"""Between a link error and the loss of the GPU or switch at its other end."""
PEER_S: Final = 60.0
"""The same where the line itself accuses the other end."""
RANK_FATAL: Final = 4
"""Codes up to this rank end a GPU's traffic; a dead GPU takes its links down."""
RANK_CAUSE: Final = 10
"""Codes behind this rank are echoes and programs, whoever is to blame."""

LOST: Final = frozenset({"xid/79", "gpu/off-bus", "gpu/missing", "gpu/not-responding", "gpu/lost"})


def accuse(state: JudgeState, event: Event, now: Moment) -> JudgeState | None:
    """The state in which a peer is blamed for this link error; None when it is nobody's echo so far."""
    if not _is_echo(event.code, blames_peer=event.blames_peer) or event.replayed:
        return None
    accused = [
        fault
        for fault in state.faults
        if fault.key != event.key
        and fault.state is FaultState.OPEN
        and fault.live
        and fault.first_us is not None
        and _near(fault, event, blames_peer=event.blames_peer)
        and _may_be_accused(fault, blames_peer=event.blames_peer)
    ]
    if not accused:
        return None
    return echo(state, min(accused, key=lambda f: (f.root.rank, f.first_us, f.id)), event, now)


def gather(state: JudgeState, event: Event, now: Moment) -> JudgeState:
    """A leader has come: link errors that other GPUs reported moments before are its echoes."""
    if event.replayed or _is_echo(event.code, blames_peer=event.blames_peer):
        return state
    if len(state.faults) < 2 or not any(_links_only(fault) for fault in state.faults):
        return state
    whole = next((f for f in state.faults if f.key == event.key and _has(f, event.code)), None)
    if whole is None or not whole.live:
        return state
    for other in state.faults:
        if other is whole or other.key == whole.key or not other.live or other.first_us is None:
            continue
        if not _links_only(other):
            continue
        blames = all(code.blames_peer for code in other.codes if code.rank < RANK_CAUSE)
        if _near(other, event, blames_peer=blames) and _may_be_accused(whole, blames_peer=blames):
            state = absorb_fault(state, whole, other, codes=False)
            whole = next(fault for fault in state.faults if fault.id == whole.id)
    return state


def _is_echo(code: str, *, blames_peer: bool) -> bool:
    return blames_peer or code == LINK_ERROR


def _links_only(fault: OpenFault) -> bool:
    """All that can be a cause in it is an error of a link: the GPU itself has shown nothing."""
    if fault.root.code != LINK_ERROR and not fault.root.blames_peer:
        return False
    return all(
        (code.rank >= RANK_CAUSE or code.code == LINK_ERROR or code.blames_peer) and not code.level
        for code in fault.codes
    )


def _may_be_accused(fault: OpenFault, *, blames_peer: bool) -> bool:
    for code in fault.codes:
        if code.code in LOST or (
            code.code.startswith("sxid/") and code.fault_class is not FaultClass.TRANSIENT
        ):
            return True
        serious = code.rank <= RANK_FATAL or code.subsystem is Subsystem.FABRIC
        if blames_peer and serious and code.fault_class is not FaultClass.TRANSIENT:
            return True
    return False


def _near(fault: OpenFault, event: Event, *, blames_peer: bool) -> bool:
    assert fault.first_us is not None
    last_us = fault.last_leader_us if fault.last_leader_us is not None else fault.first_us
    apart_s = min(abs(event.timestamp_us - us) for us in (fault.first_us, last_us)) / MICROSECOND
    if event.key in fault.echoes:
        return apart_s <= WINDOW_S
    return apart_s <= (PEER_S if blames_peer else ECHO_S)


def _has(fault: OpenFault, code: str) -> bool:
    return any(known.code == code for known in fault.codes)
