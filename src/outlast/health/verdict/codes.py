"""What a fault keeps of a finding: its code, the cure it needs, and what will end it.

A line is not always taken at its word: a link whose other end is to blame, and a repair that the counters
can confirm, keep jobs away and no more.
"""

from __future__ import annotations

from typing import Final

from outlast.health.finding import POLL_SPACING_S, SPACING_SLACK, Event, Finding, Level, Proof
from outlast.health.verdict.state import CODES_PER_FAULT_MAX, STRENGTH, FaultCode, JudgeState
from outlast.model.health import FaultClass, Subsystem
from outlast.model.observation import GpuSurvey, PciSurvey

_EVENT_POLLS: Final = {
    Subsystem.GPU: GpuSurvey.source,
    Subsystem.FABRIC: GpuSurvey.source,
    Subsystem.MONITOR: GpuSurvey.source,
    Subsystem.RDMA: PciSurvey.source,
    Subsystem.HOST: PciSurvey.source,
}
"""Whose polls count towards the proof of what the kernel log alone has said."""
CLEAN: Final = {Proof.FABRIC_GOOD: (2, 600.0)}
"""Good polls, and seconds from the first to the last of them, where it is not two in a minute."""
AT_ONCE: Final = frozenset({"xid/63", "xid/156", "xid/160"})
"""Notices of a repair: the counters say whether it waits for a reset, and two good polls end the notice."""


def most_telling(codes: tuple[FaultCode, ...], limit: int = CODES_PER_FAULT_MAX) -> tuple[FaultCode, ...]:
    """In order of rank, at most as many as a fault holds, and always one of the strongest cure."""
    if len(codes) > limit:
        strongest = max(codes, key=lambda c: (STRENGTH[c.fault_class], -c.rank))
        others = sorted((c for c in codes if c is not strongest), key=lambda c: (c.rank, c.code))
        kept = {c.code for c in (strongest, *others[: limit - 1])}
        codes = tuple(c for c in codes if c.code in kept)
    return tuple(sorted(codes, key=_rank))


def _rank(code: FaultCode) -> int:
    return code.rank


def stronger(known: FaultCode, new: FaultCode) -> FaultCode:
    """The same code where its newest line makes more of it, else what is known."""
    weaker = STRENGTH[known.fault_class] < STRENGTH[new.fault_class]
    return new if known.code == new.code and not known.level and weaker else known


def code_of(state: JudgeState, finding: Finding, check: str, source: str) -> FaultCode:
    """The code of a finding, as a fault keeps it."""
    level = finding if isinstance(finding, Level) else None
    polls, span_s = CLEAN.get(finding.proof, (2, 60.0))
    if finding.code in AT_ONCE:
        span_s = POLL_SPACING_S * SPACING_SLACK
    blames_peer = isinstance(finding, Event) and finding.blames_peer
    notice = level is None and finding.code in AT_ONCE and _repair_is_read(state, finding.gpu)
    return FaultCode(
        code=finding.code,
        # A link whose other end is to blame, or a repair that the counters have not confirmed: keep jobs
        # away, and no more.
        fault_class=FaultClass.TRANSIENT if blames_peer or notice else finding.fault_class,
        reason=finding.reason,
        rank=finding.rank,
        proof=finding.proof,
        expiry_s=finding.expiry_s,
        subsystem=finding.subsystem,
        scope=finding.scope,
        summary=finding.summary,
        level=level is not None,
        check=check,
        polled_by=source or _EVENT_POLLS[finding.subsystem],
        clean_polls=level.clean_polls if level else polls,
        clean_span_s=level.clean_span_s if level else span_s,
        blames_peer=blames_peer,
    )


def _repair_is_read(state: JudgeState, address: str) -> bool:
    """Whether NVML says of this GPU what waits for a reset, so that the log need not be taken at its word."""
    gpus = state.gpu.gpus if state.gpu is not None else ()
    return any(gpu.pci_address == address and gpu.remap_pending is not None for gpu in gpus)
