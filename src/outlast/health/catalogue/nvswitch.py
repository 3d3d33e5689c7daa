"""What an SXid means once its line's own severity word is known: the table sorts, the word decides.

It belongs to the switch and its link, never to a GPU. A word that contradicts the table is Unknown, and
so is a fatal code that no table has.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.health.catalogue.rows import SwitchSeverity, SxidEntry
from outlast.health.finding import RANK_LAST, Proof, Role
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem

RANK_SWITCH: Final = 2
"""A switch that takes the whole fabric along; only a lost GPU is a better cause."""
RANK_LINK: Final = 7
"""One link, as bad as the same on a GPU."""
RECORDED_EXPIRY_S: Final = 3600


class SwitchVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """How a line takes part in the judgement; the names are those of an Event."""

    role: Role
    rank: int = RANK_LAST
    fault_class: FaultClass = FaultClass.TRANSIENT
    scope: Scope = Scope.NODE
    subsystem: Subsystem = Subsystem.FABRIC
    reason: Reason = Reason.NVSWITCH_ERROR
    proof: Proof = Proof.READABLE
    expiry_s: float = 0


def judge(entry: SxidEntry | None, fatal: bool | None, *, detail: bool = False) -> SwitchVerdict:
    """The verdict on one line; `fatal` is its severity word, `detail` a line that only adds data."""
    scope = entry.scope if entry is not None else Scope.NODE
    if fatal is None and detail:
        return SwitchVerdict(role=Role.MODIFIER, scope=scope)
    severity = entry.severity if entry is not None and fatal is not None else None
    if entry is not None and fatal and severity in _CAN_BE_FATAL:
        always = severity is SwitchSeverity.ALWAYS_FATAL
        passing = entry.fault_class is FaultClass.TRANSIENT
        return SwitchVerdict(
            role=Role.LEADER,
            rank=RANK_SWITCH if always else RANK_LINK,
            fault_class=entry.fault_class,
            scope=scope,
            proof=Proof.QUIET if passing else Proof.NEW_BOOT_AND_PRESENT if always else Proof.FABRIC_GOOD,
            expiry_s=RECORDED_EXPIRY_S if passing else 0,
        )
    said_harmless = fatal is False and entry is None  # The switch knows more codes than any table.
    if said_harmless or (
        not fatal and severity in (SwitchSeverity.POTENTIALLY_FATAL, SwitchSeverity.NON_FATAL)
    ):
        return SwitchVerdict(
            role=Role.INFORMATIONAL,
            scope=scope,
            reason=Reason.RECORDED,
            proof=Proof.EXPIRY,
            expiry_s=RECORDED_EXPIRY_S,
        )
    return SwitchVerdict(role=Role.UNEXPECTED, scope=scope, reason=Reason.UNRECOGNISED_XID)


_CAN_BE_FATAL: Final = (SwitchSeverity.ALWAYS_FATAL, SwitchSeverity.POTENTIALLY_FATAL)
