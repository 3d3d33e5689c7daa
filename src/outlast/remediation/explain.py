"""The explain page, built from stored objects alone: every line can be traced to a record or a reading.

Pure: the same objects and the same moment give the same page, in the terminal, in the browser and as
JSON. Nothing is said that an engineer could not check with kubectl.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from outlast.model.cluster import Node, Pod
from outlast.model.decision import cordon_of
from outlast.model.health import Fault, NodeHealth
from outlast.model.incident import Attempt, Incident, Phase, Result
from outlast.model.names import HOLD_ANNOTATION, MANAGED_ANNOTATION, SYSTEM_NAMESPACE
from outlast.model.policy import Mode, RemediationPolicy, RemediationPolicySpec, Rung
from outlast.remediation.decide.ladder import executable, held_by_witness, ladder_for, remarks
from outlast.remediation.decide.opening import hands_off
from outlast.remediation.decide.pods import full_name, to_move
from outlast.remediation.page import ExplainPage, Line, State
from outlast.remediation.standing import by_health, not_ready
from outlast.remediation.timeline import BAD_RESULTS, timeline

EVIDENCE_LINES_MAX: Final = 12
POD_LINES_MAX: Final = 20

_STATES: Final = {
    Phase.WAITING: State.WATCHED,
    Phase.BLOCKED: State.BLOCKED,
    Phase.CHECKPOINTING: State.DRAINING,
    Phase.DRAINING: State.DRAINING,
    Phase.REPAIRING: State.REPAIRING,
    Phase.VERIFYING: State.REPAIRING,
    Phase.WATCHED: State.WATCHED,
    Phase.ON_HOLD: State.ON_HOLD,
}
_DETAIL: Final = {
    Phase.WAITING: "sick, nothing done to it yet",
    Phase.BLOCKED: "no new work",
    Phase.CHECKPOINTING: "waiting for checkpoints",
    Phase.DRAINING: "draining",
    Phase.REPAIRING: "under repair",
    Phase.VERIFYING: "back, being verified",
    Phase.WATCHED: "back, on probation",
    Phase.ON_HOLD: "needs a human",
    Phase.CLOSED: "closed",
}
_DID: Final = {
    Rung.BLOCK_NEW_WORK: "blocked new work",
    Rung.REQUEST_CHECKPOINT: "asked for checkpoints",
    Rung.DRAIN: "drained",
    Rung.REBOOT: "rebooted",
    Rung.REPLACE: "handed over",
}
_NAMES: Final = {
    Rung.BLOCK_NEW_WORK: "block",
    Rung.REQUEST_CHECKPOINT: "checkpoint",
    Rung.DRAIN: "drain",
    Rung.RESET_GPU: "reset",
    Rung.REBOOT: "reboot",
    Rung.REPLACE: "replace",
    Rung.HOLD: "hold",
}


def explain(
    incident: Incident | None,
    node: Node | None,
    health: NodeHealth | None,
    policy: RemediationPolicy | None,
    pods: tuple[Pod, ...] | None,
    now: datetime,
) -> ExplainPage:
    """The page of a node, or of an incident that may be closed. At least one of the first three is given.

    `pods` are those on the node, where the caller has listed them.
    """
    name = _name(incident, node, health)
    state = state_of(incident, node, health)
    in_service = node is not None and not node.spec.unschedulable
    spec = _spec(policy)
    if incident is None:
        return _without_incident(name, state, node, health, policy, in_service=in_service)
    status = incident.status
    return ExplainPage(
        node=name,
        state=state,
        in_service=in_service,
        headline=_headline(incident, spec, in_service=in_service),
        incident=incident.metadata.name,
        opened_at=incident.spec.opened_at,
        ended_at=status.end.at if status.end is not None else None,
        observe_only=incident.spec.observe_only,
        policy=incident.spec.policy,
        happened=_happened(status.faults or incident.spec.faults),
        did=_did(incident),
        why=_why(incident, spec),
        blocked_by=tuple(Line(head=text, bad=True) for text in status.blocked_by),
        next=_next(incident),
        overrule=_overrule(incident, node, policy),
        pods=_pods(incident, pods),
        timeline=timeline(incident),
    )


def state_of(incident: Incident | None, node: Node | None, health: NodeHealth | None) -> State:
    """The one word for a node. A human's hold wins over everything that goes on."""
    if node is not None and HOLD_ANNOTATION in node.metadata.annotations:
        return State.ON_HOLD
    if incident is not None and incident.status.phase is not Phase.CLOSED:
        return _STATES[incident.status.phase]
    if node is not None:
        if node.spec.unschedulable:
            return State.BLOCKED
        if not_ready(node):
            return State.UNKNOWN
    return by_health(health)[0]


def _name(incident: Incident | None, node: Node | None, health: NodeHealth | None) -> str:
    if node is not None:
        return node.metadata.name
    if incident is not None:
        return incident.spec.node_name
    return health.metadata.name if health is not None else ""


def _spec(policy: RemediationPolicy | None) -> RemediationPolicySpec:
    if policy is None:
        return RemediationPolicySpec()
    return policy.status.in_force or policy.spec


def _headline(incident: Incident, spec: RemediationPolicySpec, *, in_service: bool) -> str:
    status = incident.status
    service = "IN SERVICE" if in_service else "OUT OF SERVICE"
    if status.end is not None:
        return f"{service}, incident closed: {status.end.message}"
    detail = _DETAIL[status.phase]
    leading = _leading(incident)
    if leading is not None:
        path = executable(ladder_for(leading.fault_class, spec))
        if status.step in path and len(path) > 1 and status.phase is not Phase.ON_HOLD:
            detail += f" (step {path.index(status.step) + 1} of {len(path)})"
    return f"{service}, {detail}"


def _leading(incident: Incident) -> Fault | None:
    faults = incident.status.faults or incident.spec.faults
    return next((f for f in faults if f.code == incident.status.fault), faults[0] if faults else None)


def _happened(faults: Iterable[Fault]) -> tuple[Line, ...]:
    """Each fault in one sentence, and below it what was read, with who confirms whom."""
    timed: list[tuple[datetime, Line]] = []
    for fault in faults:
        text = f"{fault.summary} ({fault.code})"
        timed.append((fault.opened_at, Line(head="fault", text=text, at=fault.opened_at, bad=True)))
        first = fault.evidence[0].source if fault.evidence else ""
        for seen in fault.evidence:
            confirms = "confirms" if seen.source != first else ""
            line = Line(head=seen.source, text=seen.text, at=seen.at, remark=confirms)
            timed.append((seen.at, line))
    ordered = [line for _, line in sorted(timed, key=lambda item: item[0])]
    return tuple(ordered[:EVIDENCE_LINES_MAX])


def _did(incident: Incident) -> tuple[Line, ...]:
    status = incident.status
    lines = []
    detected = status.timings.detected_at
    if status.attempts_dropped:
        lines.append(Line(head="earlier", text=f"{status.attempts_dropped} older attempts are not kept"))
    for attempt in status.attempts:
        head = _DID.get(attempt.rung, str(attempt.rung))
        delay = ""
        if attempt.rung is Rung.BLOCK_NEW_WORK and detected is not None:
            delay = f"{span(attempt.started_at - detected)} after detection"
        lines.append(
            Line(head=head, text=_attempt_text(incident, attempt), at=attempt.started_at, remark=delay)
        )
        outcome = attempt.outcome
        if outcome is not None and attempt.rung is not Rung.BLOCK_NEW_WORK and outcome.message:
            lines.append(
                Line(
                    head=_outcome_word(outcome.result),
                    text=outcome.message,
                    at=outcome.at,
                    remark=f"after {span(outcome.at - attempt.started_at)}",
                    bad=outcome.result in BAD_RESULTS,
                )
            )
    returned = status.timings.returned_at
    if returned is not None:
        lines.append(Line(head="returned", text="new work may come again", at=returned))
    if status.end is not None:
        text = f"{status.end.result}: {status.end.message}"
        total = span(status.end.at - incident.spec.opened_at)
        lines.append(Line(head="closed", text=text, at=status.end.at, remark=f"{total} in all"))
    return tuple(lines)


def _attempt_text(incident: Incident, attempt: Attempt) -> str:
    status = incident.status
    if attempt.rung is Rung.DRAIN and status.pods_total:
        return f"{status.pods_total - status.pods_left} of {status.pods_total} pods moved"
    if attempt.rung is Rung.REBOOT:
        return f"Job {attempt.job_name}, only if the boot is still {attempt.boot_id}"
    return next(iter(_beyond_the_fault(incident, attempt)), "")


def _beyond_the_fault(incident: Incident, attempt: Attempt) -> list[str]:
    """What an attempt rests on, without the fault's own words: those stand under "what happened".

    A summary grows while followers come in; its first sentence stays.
    """
    told = _told(incident)
    return [text for text in attempt.because if text.partition(". ")[0] not in told]


def _told(incident: Incident) -> set[str]:
    return {f.summary.partition(". ")[0] for f in (*incident.status.faults, *incident.spec.faults)}


def _outcome_word(result: Result) -> str:
    return {
        Result.SUCCEEDED: "done",
        Result.FAILED: "failed",
        Result.TIMED_OUT: "ran out of time",
        Result.CANCELLED: "called off",
        Result.NEVER_RAN: "never ran",
    }[result]


def _why(incident: Incident, spec: RemediationPolicySpec) -> tuple[Line, ...]:
    lines: list[Line] = []
    status = incident.status
    leading = _leading(incident)
    last = status.attempts[-1] if status.attempts else None
    if last is not None:
        head = _NAMES.get(last.rung, str(last.rung))
        lines.extend(Line(head=head, text=text) for text in _beyond_the_fault(incident, last))
    if leading is not None:
        written = ladder_for(leading.fault_class, spec)
        path = executable(written)
        steps = ", ".join(_NAMES.get(r, str(r)) for r in path)
        lines.append(Line(head="path", text=f"class {leading.fault_class}: {steps}"))
        known = {line.text for line in lines}
        lines.extend(Line(head="note", text=text) for text in remarks(written) if text not in known)
        if status.end is None:
            lines.extend(_not_further(leading, path, status.step, spec))
    said, told = {line.text for line in lines}, _told(incident)
    lines.extend(
        Line(head=decision.reason, text=decision.message, at=decision.at)
        for decision in status.decisions[-3:]
        if decision.message not in said and decision.message.partition(". ")[0] not in told
    )
    return tuple(lines)


def _not_further(
    leading: Fault, path: tuple[Rung, ...], step: Rung, spec: RemediationPolicySpec
) -> Iterable[Line]:
    above = next((r for r in path if r.height > step.height), None)
    if above is None:
        return
    head = f"not {_NAMES.get(above, str(above))}"
    if held_by_witness(leading, above):
        yield Line(head=head, text="only the monitor says so: unknown never drains without a second witness")
    elif above is Rung.REPLACE:
        window = span(timedelta(seconds=spec.repeat_window_s))
        yield Line(
            head=head, text=f"a restart was not tried in vain yet; the same fault within {window} would"
        )
    elif above is not Rung.HOLD:
        yield Line(
            head=f"{_NAMES.get(above, str(above))} later", text="each step waits for the one before it"
        )


def _next(incident: Incident) -> tuple[Line, ...]:
    step = incident.status.next
    if step is None:
        return ()
    latest = "at the latest" if step.at is not None else ""
    return (Line(head=_NAMES.get(step.rung, str(step.rung)), text=step.message, at=step.at, remark=latest),)


def _overrule(incident: Incident, node: Node | None, policy: RemediationPolicy | None) -> tuple[str, ...]:
    if incident.status.phase is Phase.CLOSED:
        return ()
    name, node_name = incident.metadata.name, incident.spec.node_name
    if incident.spec.observe_only:
        if node is not None and node.metadata.annotations.get(MANAGED_ANNOTATION) == "false":
            return (f"kubectl annotate node {node_name} {MANAGED_ANNOTATION}-",)
        if policy is not None and policy.spec.mode is Mode.OBSERVE:
            patch = '\'{"spec":{"mode":"Enforce"}}\''
            return (f"kubectl patch remediationpolicy {policy.metadata.name} --type merge -p {patch}",)
        return ()
    commands = []
    if node is not None and HOLD_ANNOTATION in node.metadata.annotations:
        commands.append(f"outlast hold {node_name} --off")
    else:
        commands.append(f"outlast hold {node_name} --reason ...")
    commands.append(f"outlast cancel {name} --reason ...")
    if node is not None and cordon_of(node) is not None:
        commands.append(f"kubectl uncordon {node_name}")
    return tuple(commands)


def _pods(incident: Incident, pods: tuple[Pod, ...] | None) -> tuple[Line, ...]:
    if pods is None or incident.status.phase is Phase.CLOSED:
        return ()
    lines = []
    for pod in to_move(pods, SYSTEM_NAMESPACE)[:POD_LINES_MAX]:
        name = full_name(pod)
        held = next((text for text in incident.status.blocked_by if name in text), "")
        state = "ending" if pod.metadata.deletion_timestamp is not None else pod.status.phase.lower()
        lines.append(Line(head=name, text=held or state, bad=bool(held)))
    return tuple(lines)


def _without_incident(
    name: str,
    state: State,
    node: Node | None,
    health: NodeHealth | None,
    policy: RemediationPolicy | None,
    *,
    in_service: bool,
) -> ExplainPage:
    service = "IN SERVICE" if in_service else "OUT OF SERVICE"
    faults = health.status.faults if health is not None else ()
    if node is None:
        headline = "NOT IN THE CLUSTER"
    elif HOLD_ANNOTATION in node.metadata.annotations:
        headline = f"{service}, on hold"
    elif cordon_of(node) is not None and not in_service:
        headline = f"{service}, blocked by outlast"
    elif not in_service:
        headline = f"{service}, cordoned by somebody else"
    elif not_ready(node):
        headline = f"NOT READY, {not_ready(node)}"
    else:
        headline = f"{service}, {state}"
    why: list[Line] = []
    forbidden = hands_off(node) if node is not None else ""
    if forbidden:
        why.append(Line(head="hands off", text=f"a human forbids it to act here: {forbidden}"))
    if health is None:
        why.append(Line(head="no agent", text="no agent has ever reported from this node", bad=True))
    elif faults and policy is None:
        why.append(Line(head="no policy", text="no RemediationPolicy rules this node, so nothing is done"))
    elif faults and not forbidden:
        text = "a human cancelled the incident of these faults, or they belong to an application"
        why.append(Line(head="nothing done", text=text))
    return ExplainPage(
        node=name,
        state=state,
        in_service=in_service,
        headline=headline,
        policy=policy.metadata.name if policy is not None else "",
        happened=_happened(faults),
        why=tuple(why),
        overrule=_let_go(node) if node is not None else (),
    )


def _let_go(node: Node) -> tuple[str, ...]:
    """The commands that take a human's word back."""
    marks = node.metadata.annotations
    name = node.metadata.name
    commands = [f"kubectl annotate node {name} {HOLD_ANNOTATION}-"] if HOLD_ANNOTATION in marks else []
    if marks.get(MANAGED_ANNOTATION) == "false":
        commands.append(f"kubectl annotate node {name} {MANAGED_ANNOTATION}-")
    return tuple(commands)


def span(length: timedelta) -> str:
    """A duration for people: 92 ms, 12 s, 3 min 5 s, 2 h 10 min, 3 days."""
    seconds = max(0.0, length.total_seconds())
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} days"
