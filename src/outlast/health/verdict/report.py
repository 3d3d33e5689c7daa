"""From the judge's state to what people and controllers read: verdicts, conditions, NodeHealth status.

Nothing here changes with time alone, so an object is only written when something happened.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.checks.efa_presence import working
from outlast.health.checks.gpu_presence import counted
from outlast.health.finding import PROOF_TEXT, Proof
from outlast.health.reasons import Reason
from outlast.health.verdict.levels import expected, initializing
from outlast.health.verdict.state import STALE_S, FaultCode, JudgeState, Moment, OpenFault, Standing
from outlast.model.cluster import Condition
from outlast.model.health import (
    FAULTS_MAX,
    GPUS_MAX,
    MESSAGE_MAX,
    Fault,
    FaultClass,
    FaultState,
    Gpu,
    GpuIdentity,
    NodeHealthStatus,
    Scope,
    Subsystem,
    SubsystemVerdict,
    Verdict,
)
from outlast.model.observation import SurveyProblem

NOTES_SHOWN_MAX: Final = 3
"""Notes in the message of one verdict; the rest is counted."""

NOT_COUNTED: Final = frozenset({Reason.NO_RDMA_FOUND})
"""Unknown for these reasons leaves the state of the whole node alone: there is nothing to know."""

_PROBLEMS: Final = {
    SurveyProblem.LIBRARY_MISSING: Reason.LIBRARY_MISSING,
    SurveyProblem.DRIVER_NOT_LOADED: Reason.DRIVER_NOT_LOADED,
    SurveyProblem.DRIVER_MISMATCH: Reason.DRIVER_MISMATCH,
    SurveyProblem.NO_PERMISSION: Reason.NO_PERMISSION,
    SurveyProblem.CRASHED: Reason.DIAGNOSTICS_CRASHED,
    SurveyProblem.GARBAGE: Reason.DIAGNOSTICS_CRASHED,
    SurveyProblem.HUNG: Reason.DIAGNOSTICS_HUNG,
    SurveyProblem.TOO_MANY_LEAKED_WORKERS: Reason.DIAGNOSTICS_HUNG,
}

_Finding = tuple[Verdict, Reason, str]


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
                message=message[:MESSAGE_MAX],
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


def status(
    state: JudgeState, published: tuple[SubsystemVerdict, ...], catalogue: Catalogue
) -> NodeHealthStatus:
    """What the NodeHealth object says; the agent adds who it is."""
    wanted = expected(state, catalogue)
    gpus = _inventory(state)
    found = sum(1 for gpu in gpus if gpu.present)
    faults = sorted(state.faults, key=_badness)
    shown = tuple(published_fault(fault) for fault in faults[:FAULTS_MAX])
    return NodeHealthStatus(
        boot_id=state.boot_id,
        checked_at=state.checked_at,
        state=_overall(published),
        gpus_found=found,
        gpus_expected=wanted.gpus,
        gpu_count=f"{found}/{wanted.gpus}",
        rdma_found=len(working(state.pci)) if state.pci else 0,
        rdma_expected=wanted.efa,
        gpus=gpus,
        verdicts=published,
        faults=shown,
        faults_dropped=len(faults) - len(shown) + state.faults_dropped,
    )


def published_fault(fault: OpenFault) -> Fault:
    """A fault as others read it."""
    root = fault.root
    gpu = fault.gpu
    if gpu is not None and gpu.instance is not None and root.scope is not Scope.INSTANCE:
        gpu = msgspec.structs.replace(gpu, instance=None)
    also = [code.code for code in fault.codes if code is not root]
    summary = f"{root.summary} Seen with it: {', '.join(also)}." if also else root.summary
    proofs = list(dict.fromkeys(_proof(code) for code in fault.codes))
    return Fault(
        id=fault.id,
        code=root.code,
        fault_class=fault.fault_class,
        subsystem=root.subsystem,
        scope=root.scope,
        summary=summary[:MESSAGE_MAX],
        opened_at=fault.opened_at,
        last_seen_at=fault.last_seen_at,
        boot_id=fault.boot_id,
        state=fault.state,
        gpu=gpu,
        device=fault.device,
        clears_by=("; ".join(proofs))[:MESSAGE_MAX],
        second_witness=fault.second_witness,
        evidence=fault.evidence,
    )


def _proof(code: FaultCode) -> str:
    """What ends a code, in words; of a level also how often it has to be seen."""
    text = PROOF_TEXT[code.proof]
    if code.proof is not Proof.LEVEL_GOOD:
        return text
    apart = f"at least {code.clean_span_s:g} s apart" if code.clean_span_s else "in a row"
    return f"{text} in {code.clean_polls} polls {apart}"


def _badness(fault: OpenFault) -> tuple[bool, bool, int, object]:
    gone = fault.fault_class is FaultClass.HARDWARE_GONE
    return (fault.state is not FaultState.OPEN, not gone, fault.root.rank, fault.opened_at)


def _overall(published: tuple[SubsystemVerdict, ...]) -> Verdict:
    values = {entry.verdict for entry in published if entry.reason not in NOT_COUNTED}
    for verdict in (Verdict.FAULTY, Verdict.UNKNOWN):
        if verdict in values:
            return verdict
    return Verdict.HEALTHY


def _inventory(state: JudgeState) -> tuple[Gpu, ...]:
    """Every GPU that is here or was; index and name come from NVML."""
    known = {gpu.pci_address: gpu for gpu in state.known_gpus}
    listed = {gpu.address: gpu for gpu in state.pci.gpus} if state.pci else {}
    if state.pci is not None:
        listed = {address: gpu for address, gpu in listed.items() if address in counted(state.pci)}
    errors = {gpu.pci_address for gpu in state.gpu.gpus if gpu.error} if state.gpu else set()
    gpus = []
    for address in sorted({*known, *listed})[:GPUS_MAX]:
        who = known.get(address)
        identity = (
            GpuIdentity(pci_address=address, uuid=who.uuid, serial=who.serial, index=who.index)
            if who
            else GpuIdentity(pci_address=address)
        )
        device = listed.get(address)
        present = device is not None and device.responds and address not in errors
        gpus.append(Gpu(identity=identity, model=who.name if who else "", present=present))
    return tuple(gpus)


def _verdict(
    state: JudgeState, subsystem: Subsystem, old: Standing | None, catalogue: Catalogue, now: Moment
) -> _Finding:
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
    found = _noted(state, subsystem, _WITHOUT_FAULT[subsystem](state, catalogue, now))
    pending = any(e.level.subsystem is subsystem and not e.stands for e in state.levels)
    if found[0] is not Verdict.HEALTHY or not pending:
        return found
    message = f"{found[2]} A first poll found something; the next ones decide."
    if old is not None and old.verdict is Verdict.HEALTHY:
        return found[0], found[1], message
    # Not yet a fault, but no reason either to call it healthy for the first time.
    return Verdict.UNKNOWN, Reason.CONFIRMING, message


def _noted(state: JudgeState, subsystem: Subsystem, found: _Finding) -> _Finding:
    """With what the checks find worth saying of it."""
    texts = [n.text for check in sorted(state.notes) for n in state.notes[check] if n.subsystem is subsystem]
    if not texts:
        return found
    more = f"; and {len(texts) - NOTES_SHOWN_MAX} more" if len(texts) > NOTES_SHOWN_MAX else ""
    return found[0], found[1], f"{found[2]} Noted: {'; '.join(texts[:NOTES_SHOWN_MAX])}{more}."


def _not_observed(state: JudgeState, now: Moment) -> _Finding | None:
    if state.surveyed is None:
        message = "No check has completed in this boot."
        return Verdict.UNKNOWN, Reason.NOT_YET_CHECKED, message
    if now.monotonic - state.surveyed > STALE_S:
        return Verdict.UNKNOWN, Reason.NOT_OBSERVED, f"No check completed in the last {STALE_S:.0f} s."
    return None


def _gpu(state: JudgeState, catalogue: Catalogue, now: Moment) -> _Finding:
    wanted = expected(state, catalogue).gpus
    if state.pci is not None and state.pci.readable and not counted(state.pci) and not wanted:
        return Verdict.UNKNOWN, Reason.NO_GPU_FOUND, "There is no NVIDIA GPU on the PCI bus."
    if missing := _not_observed(state, now):
        return missing
    if state.pci is not None and not state.pci.readable:
        return Verdict.UNKNOWN, Reason.NOT_OBSERVED, f"The PCI bus cannot be read: {state.pci.message}."
    if state.unexplained:
        codes = ", ".join(dict.fromkeys(entry.code for entry in state.unexplained))
        message = f"The driver printed {codes}, which no catalogue explains for this GPU."
        return Verdict.UNKNOWN, Reason.UNRECOGNISED_XID, message
    unreadable = [gpu for gpu in (state.gpu.gpus if state.gpu else ()) if gpu.error]
    if unreadable:
        if initializing(state, now) and not state.gpus_complete:
            return Verdict.UNKNOWN, Reason.INITIALIZING, f"{len(unreadable)} GPUs do not answer NVML yet."
        first = unreadable[0]
        message = f"{len(unreadable)} of {wanted} GPUs: NVML says {first.error} for {first.pci_address}."
        return Verdict.UNKNOWN, Reason.GPU_NOT_READABLE, message
    answering = sum(1 for gpu in _inventory(state) if gpu.present)
    return Verdict.HEALTHY, Reason.GPUS_HEALTHY, f"{answering} of {wanted} GPUs answer, and no fault is open."


def _fabric(state: JudgeState, catalogue: Catalogue, now: Moment) -> _Finding:
    if state.pci is not None and state.pci.readable and not counted(state.pci):
        return Verdict.UNKNOWN, Reason.NOT_OBSERVED, "There is no GPU whose fabric could be checked."
    if missing := _not_observed(state, now):
        return missing
    gpus = state.gpu.gpus if state.gpu else ()
    if state.kernel_log_lost or all(gpu.recovery_action is None for gpu in gpus):
        message = "Nothing that tells of the fabric can be read: " + (
            state.kernel_log_lost or "the driver does not say what recovery it wants"
        )
        return Verdict.UNKNOWN, Reason.NOT_OBSERVED, f"{message}."
    message = "No NVLink or NVSwitch error stands; link states are not measured."
    return Verdict.HEALTHY, Reason.FABRIC_HEALTHY, message


def _rdma(state: JudgeState, catalogue: Catalogue, now: Moment) -> _Finding:
    if state.pci is None:
        return Verdict.UNKNOWN, Reason.NOT_YET_CHECKED, "The PCI bus has not been read yet."
    if not state.pci.readable:
        return Verdict.UNKNOWN, Reason.NOT_OBSERVED, f"The PCI bus cannot be read: {state.pci.message}."
    wanted, found = expected(state, catalogue).efa, len(working(state.pci))
    if not wanted and not found:
        return Verdict.UNKNOWN, Reason.NO_RDMA_FOUND, "There is no EFA device, and none is expected."
    if found < wanted:
        late = initializing(state, now) and not state.efa_complete
        reason = Reason.INITIALIZING if late else Reason.CONFIRMING
        return Verdict.UNKNOWN, reason, f"{found} of {wanted} EFA devices work so far."
    return Verdict.HEALTHY, Reason.RDMA_HEALTHY, f"{found} of {wanted} EFA devices work."


def _monitor(state: JudgeState, catalogue: Catalogue, now: Moment) -> _Finding:
    note = f" {state.settings.note}" if state.settings.note else ""
    survey = state.gpu
    if state.pci is not None and state.pci.readable and not counted(state.pci):
        return Verdict.UNKNOWN, Reason.NO_GPU_FOUND, f"There is no GPU to watch.{note}"
    if survey is not None and survey.problem is not None:
        reason = _PROBLEMS.get(survey.problem, Reason.DIAGNOSTICS_FAILED)
        return Verdict.UNKNOWN, reason, f"NVML: {survey.message or survey.problem}.{note}"
    if state.pci is not None and not state.pci.readable:
        return Verdict.UNKNOWN, Reason.NOT_OBSERVED, f"The PCI bus cannot be read: {state.pci.message}.{note}"
    if state.kernel_log_lost:
        return Verdict.UNKNOWN, Reason.KERNEL_LOG_BLIND, f"{state.kernel_log_lost}{note}"
    if missing := _not_observed(state, now):
        return missing
    return Verdict.HEALTHY, Reason.MONITOR_HEALTHY, f"NVML and the kernel log answer.{note}"


def _host(state: JudgeState, catalogue: Catalogue, now: Moment) -> _Finding:
    if state.kernel_log_lost:
        return (
            Verdict.UNKNOWN,
            Reason.NOT_OBSERVED,
            f"The kernel log cannot be read: {state.kernel_log_lost}.",
        )
    if not state.kernel_log_read:
        return Verdict.UNKNOWN, Reason.NOT_YET_CHECKED, "The kernel log has not been read yet."
    return Verdict.HEALTHY, Reason.HOST_HEALTHY, "No fault of disks, memory or the kernel stands."


_WITHOUT_FAULT: Final = {
    Subsystem.GPU: _gpu,
    Subsystem.FABRIC: _fabric,
    Subsystem.RDMA: _rdma,
    Subsystem.MONITOR: _monitor,
    Subsystem.HOST: _host,
}
