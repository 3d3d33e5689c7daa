"""What comes back within a day of its repair was not cured by it: the next cure is due.

Counted in seconds that the machine ran, so neither a step of the clock nor a night switched off matters.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.health.finding import Finding
from outlast.health.verdict.state import DAY_S, PAST_MAX, JudgeState, Moment, OpenFault, Past, ran_s
from outlast.model.health import Scope

CAME_BACK: Final = "It comes back within a day of a repair."

KINDS: Final = {
    **dict.fromkeys(("xid/79", "gpu/off-bus", "gpu/missing", "gpu/not-responding", "gpu/lost"), "lost"),
    "xid/175": "memory subsystem",
}
"""Codes whose return asks for more than the same repair again, and which of them are the same thing."""


def comes_back(state: JudgeState, finding: Finding, now: Moment) -> bool:
    """Whether this was repaired on the same board within the last day."""
    kind = KINDS.get(finding.code)
    if kind is None or not finding.gpu or finding.scope is not Scope.GPU:
        return False
    board = board_at(state, finding.gpu)
    return any(
        past.gpu == board and past.kind == kind and ran_s(state, now) - past.at_s <= DAY_S
        for past in state.past
    )


def remembered(state: JudgeState, fault: OpenFault, now: Moment) -> JudgeState:
    """A fault was over after a repair: remember that, for when it comes back."""
    kinds = {KINDS[code.code] for code in fault.codes if code.code in KINDS}
    if not kinds or fault.gpu is None:
        return state
    board = fault.gpu.serial or fault.gpu.uuid or fault.gpu.pci_address
    fresh = tuple(Past(gpu=board, kind=kind, at_s=ran_s(state, now)) for kind in sorted(kinds))
    return msgspec.structs.replace(state, past=(*state.past, *fresh)[-PAST_MAX:])


def board_at(state: JudgeState, address: str) -> str:
    """What identifies the board at an address: serial, else UUID, else the address itself."""
    known = next((gpu for gpu in state.known_gpus if gpu.pci_address == address), None)
    return (known.serial or known.uuid or address) if known else address
