"""What DCGM holds against a GPU, weighed: evidence where NVML agrees, a doubt at most where it cannot say.

DCGM never makes a fault by itself. Its last Xid stays after recovery, links that were never connected
are "down" to it, and a program's error fails its memory watch; so the source that owns a fact decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from outlast.health.checks.declaration import View
from outlast.health.finding import RANK_LAST, Level, Note, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import GpuReading

CLAIMS_MAX: Final = 32
"""Claims of one report that are weighed."""
DOUBT_POLLS: Final = 3
"""Reports in a row before a failure that nobody can confirm or deny is a doubt."""
FAILURE: Final = "Failure"
WARNING: Final = "Warning"
CODE_LAST: Final = 132
"""Of DCGM 4.6.0; what a later version has beyond it is as unknown as words without a code."""

SERIOUS_XIDS: Final = frozenset({48, 74, 79, 95, 119, 120, 140})
"""Xids that DCGM takes for a failure of the whole GPU."""
_XID_CODES: Final = frozenset({81, 101, 120, 131})
"""Codes behind which an Xid stands; the kernel log owns those."""
_HARMLESS: Final = frozenset({5, 10, 11, 12, 16, 123})
"""Corrected errors, clocks lowered by heat or power, a fabric that starts: said of healthy machines too."""
_DOUBTED: Final = frozenset({4, 7, 8, 13, 15, 33, 52, 70, 71, 109, 118, 119, 121, 122})
"""Failures of hardware that NVML has no equal word for. 14 (a link is down) is none: see above."""
_FABRIC: Final = frozenset({13, 14, 15, 16, 70, 71, 109, 119, 121, 122, 123, 127})

_RESET_ACTIONS: Final = frozenset({1, 4, 6})
_REBOOT_ACTIONS: Final = frozenset({2, 7})


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One thing held against one entity."""

    source: str
    where: str
    """For people: an address, or what DCGM calls it."""
    gpu: str = ""
    """PCI address; empty when it is no GPU, or nobody knows which."""
    subsystem: Subsystem | None = None
    """Where it is about something else than a GPU or its links."""
    health: str
    code: int | None = None
    xid: int | None = None
    text: str
    polls: int = 1
    said: str = ""
    """What is held, where neither code nor Xid tells."""

    @property
    def about(self) -> Subsystem:
        """The verdict it may bear on."""
        if self.subsystem is not None:
            return self.subsystem
        return Subsystem.FABRIC if self.code in _FABRIC else Subsystem.GPU

    @property
    def name(self) -> str:
        """What is held, in words that do not move with each report."""
        if self.xid is not None:
            return f"Xid {self.xid}"
        if self.code is not None:
            return f"dcgm/{self.code}"
        return self.said or "something that it has no known words for"


def weigh(view: View, claims: Iterable[Claim]) -> tuple[tuple[Level, ...], tuple[Note, ...]]:
    """Evidence for faults that NVML finds too, and what is worth saying of the rest."""
    levels: dict[tuple[str, str], Level] = {}
    notes: dict[str, Note] = {}
    for claim in tuple(claims)[:CLAIMS_MAX]:
        agrees = _agrees(view, claim)
        if agrees:
            level = _evidence(claim)
            levels.setdefault((level.code, level.gpu), level)
            continue
        note = _note(view, claim, agrees)
        if note is not None:
            notes.setdefault(note.text, note)
    return tuple(levels.values()), tuple(notes.values())


def addresses_by_uuid(view: View) -> dict[str, str]:
    """PCI address of each GPU that is, or ever was, on this machine."""
    known = {gpu.uuid: gpu.pci_address for gpu in view.expected.known_gpus if gpu.uuid}
    now = {gpu.uuid: gpu.pci_address for gpu in (view.gpu.gpus if view.gpu is not None else ()) if gpu.uuid}
    return known | now


def _agrees(view: View, claim: Claim) -> bool | None:
    """Whether NVML finds the same at this moment; None when it cannot say."""
    reading = _reading(view, claim.gpu)
    if reading is None or reading.error:
        return None
    match claim.code:
        case 80 | 132:
            return reading.remap_failed
        case 6 | 83 | 85:
            return reading.remap_pending
        case 125 | 128:
            return _asks(reading, _RESET_ACTIONS)
        case 126:
            return _asks(reading, _REBOOT_ACTIONS)
        case 127:
            return _asks(reading, frozenset({3}))
        case 120 | 118:
            # The GPU answers, or says itself that its limit is not reached: that is a no, never a yes.
            return None if claim.code == 118 and reading.sram_threshold_exceeded is not False else False
    return None


def _asks(reading: GpuReading, actions: frozenset[int]) -> bool | None:
    return None if reading.recovery_action is None else reading.recovery_action in actions


def _reading(view: View, address: str) -> GpuReading | None:
    gpus = view.gpu.gpus if view.gpu is not None and address else ()
    return next((gpu for gpu in gpus if gpu.pci_address == address), None)


def _note(view: View, claim: Claim, agrees: bool | None) -> Note | None:
    if claim.code in _HARMLESS:
        return None
    said = f"{claim.source} holds {claim.name} against {claim.where}"
    if agrees is False:
        return Note(subsystem=claim.about, text=f"{said}, which NVML does not confirm")
    lasts = claim.health == FAILURE and claim.polls >= DOUBT_POLLS and claim.subsystem is None
    if _is_xid(claim):
        if lasts and view.kernel_log_lost and claim.xid in SERIOUS_XIDS:
            return _doubt(claim, f"{said}, and the kernel log that would tell cannot be read")
        return Note(subsystem=claim.about, text=f"{said}, which the kernel log decides")
    if lasts and (_unmapped(claim) or claim.code in _DOUBTED or _unread(claim)):
        return _doubt(claim, f"{said} as a failure, and nothing else can confirm or deny it")
    return Note(subsystem=claim.about, text=said)


def _is_xid(claim: Claim) -> bool:
    return claim.xid is not None or claim.code in _XID_CODES - {120}


def _unmapped(claim: Claim) -> bool:
    return claim.code is None or claim.code > CODE_LAST


def _unread(claim: Claim) -> bool:
    """NVML has the word for it and could not be read."""
    return claim.code in (80, 120, 125, 126, 128, 132)


def _doubt(claim: Claim, text: str) -> Note:
    return Note(subsystem=claim.about, text=text, doubt=Reason.DCGM_DISAGREES)


def _evidence(claim: Claim) -> Level:
    """Joins the fault that NVML's own check has on this GPU: weakest class, last rank, nothing to prove."""
    return Level(
        code=f"dcgm/{claim.code}",
        reason=_REASONS.get(claim.code or 0, Reason.RECORDED),
        fault_class=FaultClass.TRANSIENT,
        subsystem=claim.about,
        scope=Scope.GPU,
        rank=RANK_LAST,
        proof=Proof.LEVEL_GOOD,
        clean_polls=1,
        clean_span_s=0.0,
        gpu=claim.gpu,
        source=claim.source,
        text=claim.text,
        summary=f"DCGM agrees: {claim.name} on GPU {claim.gpu}.",
    )


_REASONS: Final = {
    80: Reason.ROW_REMAP_FAILED,
    132: Reason.ROW_REMAP_FAILED,
    6: Reason.ROW_REMAP_PENDING,
    83: Reason.ROW_REMAP_PENDING,
    85: Reason.ROW_REMAP_PENDING,
    125: Reason.GPU_RESET_REQUIRED,
    126: Reason.REBOOT_REQUIRED,
    127: Reason.FABRIC_RECOVERY_REQUIRED,
    128: Reason.GPU_RESET_REQUIRED,
}
