"""From the judge's state to what people and controllers read: verdicts, conditions, NodeHealth status.

Nothing here changes with time alone, so an object is only written when something happened.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.checks.efa_presence import working
from outlast.health.finding import PROOF_TEXT, Proof
from outlast.health.reasons import Reason
from outlast.health.verdict import ports, vouching
from outlast.health.verdict.clearing import CLEAN_POLLS
from outlast.health.verdict.inventory import expected, wanted_gpus
from outlast.health.verdict.state import Answer, FaultCode, JudgeState, Moment, OpenFault, Standing, Suspicion
from outlast.model.cluster import Condition
from outlast.model.health import (
    FAULTS_MAX,
    MESSAGE_MAX,
    REASON_MAX,
    Fault,
    FaultClass,
    FaultState,
    NodeHealthStatus,
    Scope,
    Subsystem,
    SubsystemVerdict,
    Verdict,
)
from outlast.model.plain_text import plain

NOTES_SHOWN_MAX: Final = 3
"""Notes in the message of one verdict; the rest is counted."""

NOT_COUNTED: Final = frozenset({Reason.NO_RDMA_FOUND})
"""Unknown for these reasons leaves the state of the whole node alone: there is nothing to know."""


def verdicts(
    state: JudgeState, catalogue: Catalogue, now: Moment
) -> tuple[JudgeState, tuple[SubsystemVerdict, ...]]:
    """One verdict a subsystem; `since` moves only when the value flips."""
    before = {standing.subsystem: standing for standing in state.standing}
    standing, published = [], []
    for subsystem in Subsystem:
        verdict, reason, message = _verdict(state, subsystem, before.get(subsystem), catalogue, now)
        old = before.get(subsystem)
        since = old.since if old is not None and old.verdict is verdict else now.wall
        entry = Standing(subsystem=subsystem, verdict=verdict, reason=reason, since=since)
        standing.append(old if old == entry else entry)
        published.append(
            SubsystemVerdict(
                subsystem=subsystem,
                verdict=verdict,
                reason=reason,
                message=plain(message)[:MESSAGE_MAX],
                since=since,
            )
        )
    return msgspec.structs.replace(state, standing=tuple(standing)), tuple(published)


def conditions(published: tuple[SubsystemVerdict, ...]) -> tuple[Condition, ...]:
    """The node conditions that say it; heartbeat times are the publisher's."""
    status = {Verdict.HEALTHY: "True", Verdict.FAULTY: "False", Verdict.UNKNOWN: "Unknown"}
    return tuple(
        Condition(
            type=entry.subsystem.condition_type,
            status=status[entry.verdict],
            reason=entry.reason,
            message=entry.message,
            last_transition_time=entry.since,
        )
        for entry in published
    )


def answer(
    state: JudgeState, published: tuple[SubsystemVerdict, ...], catalogue: Catalogue, until: float
) -> Answer:
    """What the NodeHealth object and the node's conditions say; the agent adds who it is."""
    wanted = expected(state, catalogue)
    gpus_wanted = wanted_gpus(state, catalogue)
    gpus = vouching.inventory(state)
    found = sum(1 for gpu in gpus if gpu.present)
    known = {id(fault): (fault, words) for fault, words in (state.answer.shown if state.answer else ())}
    worst = sorted(state.faults, key=_badness)
    shown = tuple(known.get(id(fault)) or (fault, published_fault(fault)) for fault in worst[:FAULTS_MAX])
    efa = len(working(state.pci)) if state.pci else 0
    rdma = (efa, wanted.efa) if efa or wanted.efa else ports.devices(state)
    status = NodeHealthStatus(
        boot_id=state.boot_id,
        checked_at=state.checked_at,
        state=_overall(published),
        gpus_found=found,
        gpus_expected=gpus_wanted,
        gpu_count=f"{found}/{gpus_wanted}",
        rdma_found=rdma[0],
        rdma_expected=rdma[1],
        gpus=gpus,
        verdicts=published,
        faults=tuple(words for _, words in shown),
        faults_dropped=len(worst) - len(shown) + state.faults_dropped,
    )
    seen = (state.known_gpus, state.pci, state.gpu)
    return Answer(status, conditions(published), until, shown, gpus, seen)


def published_fault(fault: OpenFault) -> Fault:
    """A fault as others read it."""
    root = fault.root
    gpu = fault.gpu
    if gpu is not None and gpu.instance is not None and root.scope is not Scope.INSTANCE:
        gpu = msgspec.structs.replace(gpu, instance=None)
    also = [code.code for code in fault.codes[1:]]
    summary = f"{root.summary} Seen with it: {', '.join(also)}." if also else root.summary
    proofs = list(dict.fromkeys(_proof(code) for code in fault.codes))
    return Fault(
        id=fault.id,
        code=root.code,
        fault_class=fault.fault_class,
        subsystem=root.subsystem,
        scope=root.scope,
        summary=plain(summary)[:MESSAGE_MAX],
        opened_at=fault.opened_at,
        last_seen_at=fault.last_seen_at,
        boot_id=fault.boot_id,
        state=fault.state,
        gpu=gpu,
        device=plain(fault.device)[:REASON_MAX],
        clears_by=("; ".join(proofs))[:MESSAGE_MAX],
        second_witness=fault.second_witness,
        evidence=fault.evidence,
    )


def _proof(code: FaultCode) -> str:
    """What ends a code, in words; of a level also how often it has to be seen."""
    text = PROOF_TEXT[code.proof]
    if code.proof is not Proof.LEVEL_GOOD or code.clean_polls <= 1:
        return text
    how = "at least {:g} s apart" if code.clean_polls <= CLEAN_POLLS else "over at least {:g} s"
    apart = how.format(code.clean_span_s) if code.clean_span_s else "in a row"
    return f"{text} in {code.clean_polls} polls {apart}"


def _badness(fault: OpenFault) -> tuple[bool, bool, int]:
    """Worst first, and the older of equals: faults are kept in the order in which they opened."""
    gone = fault.fault_class is FaultClass.HARDWARE_GONE
    return (fault.state is not FaultState.OPEN, not gone, fault.root.rank)


def _overall(published: tuple[SubsystemVerdict, ...]) -> Verdict:
    values = {entry.verdict for entry in published if entry.reason not in NOT_COUNTED}
    for verdict in (Verdict.FAULTY, Verdict.UNKNOWN):
        if verdict in values:
            return verdict
    return Verdict.HEALTHY


def _verdict(
    state: JudgeState, subsystem: Subsystem, old: Standing | None, catalogue: Catalogue, now: Moment
) -> vouching.Said:
    faults = [fault for fault in state.faults if fault.root.subsystem is subsystem]
    stands = sorted((f for f in faults if f.state is FaultState.OPEN), key=_badness)
    if stands:
        root = stands[0].root
        more = f" And {len(stands) - 1} more." if len(stands) > 1 else ""
        return Verdict.FAULTY, root.reason, f"{root.summary}{more}"
    if faults:
        fault = min(faults, key=_badness)
        return (
            Verdict.UNKNOWN,
            Reason.AWAITING_PROOF,
            (f"{fault.root.code} was seen before; it is over when {PROOF_TEXT[fault.root.proof]}."),
        )
    found = _noted(state, subsystem, vouching.without_fault(state, subsystem, catalogue, now))
    pending = any(e.level.subsystem is subsystem and not e.stands for e in state.levels)
    if found[0] is not Verdict.HEALTHY or not pending:
        return found
    message = f"{found[2]} A first poll found something; the next ones decide."
    if old is not None and old.verdict is Verdict.HEALTHY:
        return found[0], found[1], message
    # Not yet a fault, but no reason either to call it healthy for the first time.
    return Verdict.UNKNOWN, Reason.CONFIRMING, message


def _noted(state: JudgeState, subsystem: Subsystem, found: vouching.Said) -> vouching.Said:
    """With what the checks find worth saying of it."""
    notes = [n for check in sorted(state.notes) for n in state.notes[check] if n.subsystem is subsystem]
    doubt = next((note for note in notes if note.doubt is not None), None)
    if doubt is not None and doubt.doubt is not None and found[0] is Verdict.HEALTHY:
        found = Verdict.UNKNOWN, doubt.doubt, f"{doubt.text}."
        notes.remove(doubt)
    texts = [note.text for note in notes]
    if subsystem is Subsystem.GPU:
        texts += [_suspicion(entry) for entry in state.suspicions]
    if not texts:
        return found
    more = f"; and {len(texts) - NOTES_SHOWN_MAX} more" if len(texts) > NOTES_SHOWN_MAX else ""
    return found[0], found[1], f"{found[2]} Noted: {'; '.join(texts[:NOTES_SHOWN_MAX])}{more}."


def _suspicion(entry: Suspicion) -> str:
    many = "enough to block it under the application rule" if entry.blocks else "test it deeply when idle"
    return f"different jobs met {entry.code} on GPU {entry.address} within a day ({many})"
