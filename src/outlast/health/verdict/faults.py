"""Opening faults and joining findings to them: which findings are one story.

A fault is about one thing (a GPU, another device, the node) and keeps its id while better-ranked codes
join it. A flood of one code changes a fault a bounded number of times.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.health.finding import RANK_LAST, Event, Finding, Level
from outlast.health.verdict.state import (
    CODES_PER_FAULT_MAX,
    FAULTS_KEPT_MAX,
    WINDOW_END_S,
    WINDOW_S,
    FaultCode,
    JudgeState,
    Moment,
    OpenFault,
)
from outlast.model.health import EVIDENCE_MAX, EVIDENCE_TEXT_MAX, Evidence, FaultState, GpuIdentity, Subsystem
from outlast.model.observation import GpuSurvey, PciSurvey

EVIDENCE_PER_CODE_MAX: Final = 2
SEEN_AGAIN_S: Final = 60.0
"""A code that repeats moves `last_seen_at` at most this often."""
MICROSECOND: Final = 1_000_000


def join_event(state: JudgeState, event: Event, now: Moment, *, may_open: bool) -> JudgeState:
    """The event joins the fault it belongs to, else opens one if it may, else changes nothing."""
    found = find(state, event)
    if found is None:
        return _open(state, event, now) if may_open else state
    return _replace(state, found, _joined(found, event, state.boot_id, now))


def join_level(state: JudgeState, level: Level, check: str, source: str, now: Moment) -> JudgeState:
    """A level that stands confirms the fault on its key, whatever its age, or opens one."""
    same = [fault for fault in state.faults if fault.key == level.key]
    found = next((fault for fault in same if _has(fault, level.code)), None)
    if found is None:
        found = min(same, key=lambda fault: fault.root.rank, default=None)
    if found is None:
        return _open(state, level, now, check, source)
    if _has(found, level.code) and found.state is FaultState.OPEN:
        # Known already: a level that simply goes on being so is no news, and no write.
        return _replace(state, found, msgspec.structs.replace(found, evidence_monotonic=now.monotonic))
    return _replace(state, found, _joined(found, level, state.boot_id, now, check, source))


def find(state: JudgeState, event: Event) -> OpenFault | None:
    """The fault this event belongs to."""
    candidates = [fault for fault in state.faults if _related(fault.key, event.key)]
    for fault in candidates:
        if _has(fault, event.code) and fault.key == event.key:
            return fault
        if event.previous_xid is not None and _has(fault, f"xid/{event.previous_xid}"):
            return fault
        if event.joins_any_time:
            return fault
    return next((fault for fault in candidates if _in_window(fault, event)), None)


def _related(fault_key: str, event_key: str) -> bool:
    """The same thing, or an instance of it and the whole of it."""
    return (
        fault_key == event_key
        or event_key.startswith(f"{fault_key}/")
        or fault_key.startswith(f"{event_key}/")
    )


def _in_window(fault: OpenFault, event: Event) -> bool:
    if fault.first_us is None or fault.last_leader_us is None:
        return fault.state is FaultState.OPEN
    since_leader_s = (event.timestamp_us - fault.last_leader_us) / MICROSECOND
    since_first_s = (event.timestamp_us - fault.first_us) / MICROSECOND
    return -WINDOW_S <= since_leader_s <= WINDOW_S and since_first_s <= WINDOW_END_S


def _has(fault: OpenFault, code: str) -> bool:
    return any(known.code == code for known in fault.codes)


def _replace(state: JudgeState, old: OpenFault, new: OpenFault) -> JudgeState:
    return msgspec.structs.replace(
        state, faults=tuple(new if fault is old else fault for fault in state.faults)
    )


def _open(state: JudgeState, finding: Finding, now: Moment, check: str = "", source: str = "") -> JudgeState:
    if len(state.faults) >= FAULTS_KEPT_MAX:
        return msgspec.structs.replace(state, faults_dropped=state.faults_dropped + 1)
    event = finding if isinstance(finding, Event) else None
    replayed = event is not None and event.replayed
    fault = OpenFault(
        id=_fault_id(state, finding),
        key=finding.key,
        codes=(_code(finding, check, source),),
        opened_at=now.wall,
        last_seen_at=now.wall,
        boot_id=state.boot_id,
        gpu=identity(state, finding.gpu, finding.instance) if finding.gpu else None,
        device=finding.device,
        # History may long be over; what is true now is for the levels to say.
        state=FaultState.AWAITING_PROOF if replayed else FaultState.OPEN,
        first_us=event.timestamp_us if event else None,
        last_leader_us=event.timestamp_us if event else None,
        evidence=(_evidence(finding, now),),
        evidence_codes=(finding.code,),
        action_seen=_asks(finding),
        live=not replayed,
        evidence_monotonic=now.monotonic,
    )
    return msgspec.structs.replace(state, faults=(*state.faults, fault))


def _joined(
    fault: OpenFault, finding: Finding, boot_id: str, now: Moment, check: str = "", source: str = ""
) -> OpenFault:
    event = finding if isinstance(finding, Event) else None
    live = event is None or not event.replayed
    leads = event is not None and finding.rank < RANK_LAST
    codes = fault.codes
    if not _has(fault, finding.code) and (len(codes) < CODES_PER_FAULT_MAX):
        codes = (*codes, _code(finding, check, source))
    news = codes is not fault.codes or (live and fault.state is not FaultState.OPEN)
    evidence, evidence_codes = _with_evidence(fault, finding, now)
    news = news or evidence is not fault.evidence
    again = (now.wall - fault.last_seen_at).total_seconds() >= SEEN_AGAIN_S
    first_us, last_us = fault.first_us, fault.last_leader_us
    if event is not None:
        first_us = event.timestamp_us if first_us is None else min(first_us, event.timestamp_us)
        last_us = (
            event.timestamp_us if last_us is None else max(last_us, event.timestamp_us) if leads else last_us
        )
    return msgspec.structs.replace(
        fault,
        codes=codes,
        state=FaultState.OPEN if live else fault.state,
        boot_id=boot_id if live else fault.boot_id,
        last_seen_at=now.wall if news or again else fault.last_seen_at,
        first_us=first_us,
        last_leader_us=last_us,
        evidence=evidence,
        evidence_codes=evidence_codes,
        action_seen=fault.action_seen or _asks(finding),
        live=fault.live or live,
        evidence_monotonic=now.monotonic,
        clean_since=None,
        clean_polls=0,
    )


def _with_evidence(
    fault: OpenFault, finding: Finding, now: Moment
) -> tuple[tuple[Evidence, ...], tuple[str, ...]]:
    if fault.evidence_codes.count(finding.code) >= EVIDENCE_PER_CODE_MAX:
        return fault.evidence, fault.evidence_codes
    evidence = (*fault.evidence, _evidence(finding, now))
    codes = (*fault.evidence_codes, finding.code)
    if len(evidence) > EVIDENCE_MAX:
        # The first one tells how it began and stays.
        evidence, codes = (evidence[0], *evidence[2:]), (codes[0], *codes[2:])
    return evidence, codes


def _asks(finding: Finding) -> bool:
    return finding.code.startswith("recovery/")


def _fault_id(state: JudgeState, finding: Finding) -> str:
    """The same story gets the same id, also from an agent that lost its memory."""
    where = finding.key.replace(" ", "-")
    what = f"k{finding.sequence}" if isinstance(finding, Event) else finding.code.replace("/", "-")
    return f"{where}_{state.boot_id[:8] or 'boot'}_{what}"


def _code(finding: Finding, check: str, source: str) -> FaultCode:
    level = finding if isinstance(finding, Level) else None
    return FaultCode(
        code=finding.code,
        fault_class=finding.fault_class,
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
        clean_polls=level.clean_polls if level else 2,
        clean_span_s=level.clean_span_s if level else 60.0,
    )


_EVENT_POLLS: Final = {
    Subsystem.GPU: GpuSurvey.source,
    Subsystem.FABRIC: GpuSurvey.source,
    Subsystem.MONITOR: GpuSurvey.source,
    Subsystem.RDMA: PciSurvey.source,
    Subsystem.HOST: PciSurvey.source,
}
"""Whose polls count towards the proof of what the kernel log alone has said."""


def _evidence(finding: Finding, now: Moment) -> Evidence:
    replayed = isinstance(finding, Event) and finding.replayed
    text = f"(replayed) {finding.text}" if replayed else finding.text
    return Evidence(at=now.wall, source=finding.source, text=" ".join(text.split())[:EVIDENCE_TEXT_MAX])


def identity(state: JudgeState, address: str, instance: int | None = None) -> GpuIdentity:
    """Who the GPU at an address is, as far as it was ever known here."""
    known = next((gpu for gpu in state.known_gpus if gpu.pci_address == address), None)
    if known is None:
        return GpuIdentity(pci_address=address, instance=instance)
    return GpuIdentity(
        pci_address=address, uuid=known.uuid, serial=known.serial, index=known.index, instance=instance
    )
