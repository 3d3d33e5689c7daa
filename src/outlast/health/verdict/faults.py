"""Opening faults and joining findings to them: which findings are one story.

A fault is about one thing (a GPU, another device, the node) and keeps its id while better-ranked codes
join it. A flood of one code changes a fault a bounded number of times.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.health.finding import RANK_LAST, Event, Finding, Level
from outlast.health.verdict.codes import code_of, most_telling, stronger
from outlast.health.verdict.returning import CAME_BACK, comes_back
from outlast.health.verdict.state import (
    FAULTS_KEPT_MAX,
    PIDS_PER_FAULT_MAX,
    STRENGTH,
    WINDOW_END_S,
    WINDOW_S,
    JudgeState,
    Moment,
    OpenFault,
)
from outlast.model.health import (
    EVIDENCE_MAX,
    EVIDENCE_TEXT_MAX,
    Evidence,
    FaultState,
    GpuIdentity,
)
from outlast.model.plain_text import plain

EVIDENCE_PER_CODE_MAX: Final = 2
ECHOES_MAX: Final = 16
NODE_KEY: Final = "node"
SEEN_AGAIN_S: Final = 60.0
"""A code that repeats moves `last_seen_at` at most this often."""
MICROSECOND: Final = 1_000_000
JUST_SEEN_S: Final = 0.5
"""Evidence is dated this exactly, so that a flood does not change its fault with every line."""


def join_event(state: JudgeState, event: Event, now: Moment, *, may_open: bool) -> JudgeState:
    """The event joins the fault it belongs to, else opens one if it may, else changes nothing."""
    found = find(state, event)
    if found is None:
        return _open(state, event, now) if may_open else state
    return join_found(state, found, event, now)


def join_found(state: JudgeState, found: OpenFault, event: Event, now: Moment) -> JudgeState:
    """The event joins this fault, which is the one that `find` gave."""
    joined = _joined(found, event, state, now)
    state = _replace(state, found, joined)
    if event.key != found.key and found.key.startswith(f"{event.key}/"):
        return _widened(state, joined, event)
    return state


def echo(state: JudgeState, accused: OpenFault, event: Event, now: Moment) -> JudgeState:
    """The event is only evidence of a fault elsewhere."""
    evidence, codes = _with_evidence(accused, event, now)
    echoes = accused.echoes if event.key in accused.echoes else (*accused.echoes, event.key)
    if evidence is accused.evidence and echoes is accused.echoes:
        return state
    return _replace(
        state,
        accused,
        msgspec.structs.replace(accused, evidence=evidence, evidence_codes=codes, echoes=echoes[:ECHOES_MAX]),
    )


def absorb_fault(state: JudgeState, whole: OpenFault, part: OpenFault, *, codes: bool) -> JudgeState:
    """`part` was a piece of the story of `whole` and is no fault of its own any more."""
    evidence = (*whole.evidence, *part.evidence)
    evidence_codes = (*whole.evidence_codes, *part.evidence_codes)
    if len(evidence) > EVIDENCE_MAX:
        evidence, evidence_codes = evidence[:EVIDENCE_MAX], evidence_codes[:EVIDENCE_MAX]
    both = msgspec.structs.replace(
        whole,
        codes=most_telling((*whole.codes, *(c for c in part.codes if not _has(whole, c.code))))
        if codes
        else whole.codes,
        evidence=evidence,
        evidence_codes=evidence_codes,
        echoes=tuple(dict.fromkeys((*whole.echoes, *part.echoes, *(() if codes else (part.key,)))))[
            :ECHOES_MAX
        ],
        live=whole.live or part.live,
        pids=(*whole.pids, *part.pids)[:PIDS_PER_FAULT_MAX],
        first_us=min((us for us in (whole.first_us, part.first_us) if us is not None), default=None),
        action_seen=whole.action_seen or part.action_seen,
    )
    return msgspec.structs.replace(
        state, faults=tuple(both if f is whole else f for f in state.faults if f is not part)
    )


def _widened(state: JudgeState, narrow: OpenFault, event: Event) -> JudgeState:
    """What was about one instance is about the whole GPU, and so are its other instances' faults."""
    gpu = identity(state, event.gpu) if event.gpu else narrow.gpu
    wide = msgspec.structs.replace(narrow, key=event.key, gpu=gpu)
    state = _replace(state, narrow, wide)
    for other in state.faults:
        if other is not wide and other.key.startswith(f"{event.key}/") and _in_window(state, other, event):
            state = absorb_fault(state, wide, other, codes=True)
            wide = next(fault for fault in state.faults if fault.id == wide.id)
    return state


def join_level(state: JudgeState, level: Level, check: str, source: str, now: Moment) -> JudgeState:
    """A level that stands confirms the fault on its key, whatever its age, or opens one."""
    same = [f for f in state.faults if f.key == level.key and _same_story(f, level)]
    found = next((fault for fault in same if _has(fault, level.code)), None)
    if found is None:
        found = min(same, key=lambda fault: fault.root.rank, default=None)
    if found is None:
        return _open(state, level, now, check, source)
    if _has(found, level.code) and found.state is FaultState.OPEN and found.live:
        # Known already: a level that simply goes on being so is no news, and no write.
        return _replace(state, found, msgspec.structs.replace(found, evidence_monotonic=now.monotonic))
    return _replace(state, found, _joined(found, level, state, now, check, source))


def find(state: JudgeState, event: Event) -> OpenFault | None:
    """The fault this event belongs to."""
    if not state.faults:
        return None
    key = event.key
    candidates = [
        fault
        for fault in state.faults
        if (fault.key == key or ("/" in fault.key + key and _related(fault.key, key)))
        and _same_story(fault, event)
    ]
    if not candidates:
        return None
    for fault in candidates:
        if _has(fault, event.code) and fault.key == event.key:
            return fault
        if event.previous_xid is not None and _has(fault, f"xid/{event.previous_xid}"):
            return fault
        if event.joins_any_time:
            return fault
    near = [fault for fault in candidates if _in_window(state, fault, event)]
    return min(near, key=lambda fault: fault.root.rank, default=None)


def _same_story(fault: OpenFault, finding: Finding) -> bool:
    """What is about the whole machine is one story only within its subsystem."""
    return finding.key != NODE_KEY or fault.root.subsystem is finding.subsystem


def _related(fault_key: str, event_key: str) -> bool:
    """The same thing, or an instance of it and the whole of it."""
    return (
        fault_key == event_key
        or event_key.startswith(f"{fault_key}/")
        or fault_key.startswith(f"{event_key}/")
    )


def _in_window(state: JudgeState, fault: OpenFault, event: Event) -> bool:
    if fault.state is FaultState.AWAITING_PROOF and fault.boot_id != state.boot_id:
        return False  # the kernel's clock began anew
    if fault.first_us is None or fault.last_leader_us is None:
        return fault.state is FaultState.OPEN
    since_leader_s = (event.timestamp_us - fault.last_leader_us) / MICROSECOND
    since_first_s = (event.timestamp_us - fault.first_us) / MICROSECOND
    return -WINDOW_S <= since_leader_s <= WINDOW_S and since_first_s <= WINDOW_END_S


def _has(fault: OpenFault, code: str) -> bool:
    return any(known.code == code for known in fault.codes)


def _replace(state: JudgeState, old: OpenFault, new: OpenFault) -> JudgeState:
    if new is old:
        return state
    return msgspec.structs.replace(
        state, faults=tuple(new if fault is old else fault for fault in state.faults)
    )


def _open(state: JudgeState, finding: Finding, now: Moment, check: str = "", source: str = "") -> JudgeState:
    if len(state.faults) >= FAULTS_KEPT_MAX:
        return msgspec.structs.replace(state, faults_dropped=state.faults_dropped + 1)
    event = finding if isinstance(finding, Event) else None
    replayed = event is not None and event.replayed
    repeated = comes_back(state, finding, now)
    code = code_of(state, finding, check, source)
    if repeated:
        code = msgspec.structs.replace(code, summary=f"{code.summary} {CAME_BACK}")
    fault = OpenFault(
        id=_fault_id(state, finding),
        key=finding.key,
        codes=(code,),
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
        seen_monotonic=now.monotonic,
        quiet_since=now.monotonic,
        pids=(event.pid,) if event and event.pid is not None else (),
        repeated=repeated,
    )
    return msgspec.structs.replace(state, faults=(*state.faults, fault))


def _joined(
    fault: OpenFault, finding: Finding, state: JudgeState, now: Moment, check: str = "", source: str = ""
) -> OpenFault:
    event = finding if isinstance(finding, Event) else None
    live = event is None or not event.replayed
    leads = event is not None and finding.rank < RANK_LAST
    codes = fault.codes
    if event is not None and _asks(finding):
        # The driver's newest word replaces its earlier one, also where it asks for less.
        codes = tuple(c for c in codes if c.level or c.code == finding.code or not _recovery(c.code))
    if all(known.code != finding.code for known in codes):
        codes = most_telling((*codes, code_of(state, finding, check, source)))
    elif event is not None and leads:
        # The words of a line may make more of its code than those of the line before.
        new = STRENGTH[finding.fault_class]
        if any(c.code == finding.code and STRENGTH[c.fault_class] < new and not c.level for c in codes):
            codes = most_telling(tuple(stronger(c, code_of(state, finding, check, source)) for c in codes))
    if codes is not fault.codes and codes == fault.codes:
        codes = fault.codes
    news = codes is not fault.codes or (live and (fault.state is not FaultState.OPEN or not fault.live))
    evidence, evidence_codes = _with_evidence(fault, finding, now)
    news = news or evidence is not fault.evidence or now.monotonic - fault.seen_monotonic >= SEEN_AGAIN_S
    first_us, last_us, pids = fault.first_us, fault.last_leader_us, fault.pids
    if event is not None:
        same_boot = fault.boot_id == state.boot_id
        first_us = (
            event.timestamp_us if first_us is None or not same_boot else min(first_us, event.timestamp_us)
        )
        if last_us is None or not same_boot:
            last_us = event.timestamp_us
        elif leads:
            last_us = max(last_us, event.timestamp_us)
        if event.pid is not None and event.pid not in pids:
            pids = (*pids, event.pid)[:PIDS_PER_FAULT_MAX]
    unchanged = (news, codes, pids, first_us) == (False, fault.codes, fault.pids, fault.first_us)
    if unchanged and _just_seen(fault, last_us, now) and (fault.action_seen or not _asks(finding)):
        return fault  # one more line of a flood
    return msgspec.structs.replace(
        fault,
        codes=codes,
        state=FaultState.OPEN if live else fault.state,
        boot_id=state.boot_id if live else fault.boot_id,
        last_seen_at=now.wall if news else fault.last_seen_at,
        seen_monotonic=now.monotonic if news else fault.seen_monotonic,
        first_us=first_us,
        last_leader_us=last_us,
        evidence=evidence,
        evidence_codes=evidence_codes,
        action_seen=fault.action_seen or _asks(finding),
        live=fault.live or live,
        evidence_monotonic=now.monotonic,
        quiet_since=now.monotonic,
        clean_since=None,
        clean_polls=0,
        pids=pids,
    )


def _just_seen(fault: OpenFault, last_us: int | None, now: Moment) -> bool:
    """Whether the fault's evidence is as new as makes any difference."""
    slid_us = 0 if last_us is None or fault.last_leader_us is None else last_us - fault.last_leader_us
    return (
        fault.clean_since is None
        and now.monotonic - fault.evidence_monotonic < JUST_SEEN_S
        and slid_us < JUST_SEEN_S * MICROSECOND
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
    return _recovery(finding.code)


def _recovery(code: str) -> bool:
    return code.startswith("recovery/")


def _fault_id(state: JudgeState, finding: Finding) -> str:
    """The same story gets the same id, also from an agent that lost its memory."""
    where = finding.key.replace(" ", "-")
    what = f"k{finding.sequence}" if isinstance(finding, Event) else finding.code.replace("/", "-")
    return f"{where}_{state.boot_id[:8] or 'boot'}_{what}"


def _evidence(finding: Finding, now: Moment) -> Evidence:
    replayed = isinstance(finding, Event) and finding.replayed
    text = f"(replayed) {finding.text}" if replayed else finding.text
    return Evidence(
        at=now.wall, source=finding.source, text=plain(" ".join(text.split()))[:EVIDENCE_TEXT_MAX]
    )


def identity(state: JudgeState, address: str, instance: int | None = None) -> GpuIdentity:
    """Who the GPU at an address is, as far as it was ever known here."""
    known = next((gpu for gpu in state.known_gpus if gpu.pci_address == address), None)
    if known is None:
        return GpuIdentity(pci_address=address, instance=instance)
    return GpuIdentity(
        pci_address=address, uuid=known.uuid, serial=known.serial, index=known.index, instance=instance
    )
