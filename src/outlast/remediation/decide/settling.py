"""An intent without outcome is settled by looking at the world: boot id, pods, Job, condition.

Nothing is ever done again because a record is missing. What is repeated here (an eviction, a Job under
the same name) is asked of the server by uid or name, where a second time has no effect.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from outlast.model.cluster import Job, Node, Pod
from outlast.model.decision import AskCheckpoint, Evict, HandOver, StartRepair, StopRepair
from outlast.model.health import Fault, FaultState
from outlast.model.incident import Attempt, Phase, Result
from outlast.model.names import ACCELERATED_HARDWARE_READY, REPAIR_LABEL
from outlast.model.policy import AfterDrainDeadline, Rung
from outlast.remediation.decide.budgets import storm_text
from outlast.remediation.decide.faults import is_ready, lacks_proof
from outlast.remediation.decide.opening import HANDOVER_REASON
from outlast.remediation.decide.pods import (
    counted_pods,
    full_name,
    is_repair,
    not_answered,
    not_asked,
    reference,
    to_evict,
    to_move,
)
from outlast.remediation.decide.situation import Situation
from outlast.remediation.decide.story import Story

LOOK_S: Final = 2.0
"""How often evictions are tried again and a machine on its way is looked at."""
REFUSALS_SHOWN: Final = 4
BACKDATED_MAX: Final = timedelta(hours=1)
"""Twice the longest time that Karpenter waits; the time of a fault is the word of a node and may be any."""


def settle(story: Story, node: Node) -> bool:
    """Go on with the open attempt. True when it is still open, so that no other rung may begin."""
    attempt = story.attempt
    if attempt is None:
        return False
    if attempt.rung in (Rung.REQUEST_CHECKPOINT, Rung.DRAIN):
        if _booted_by_itself(node, attempt):
            story.finish(
                attempt, Result.CANCELLED, "the machine booted by itself; what it rests on may be over"
            )
            story.record(phase=Phase.BLOCKED)
            return False
        pods = story.situation.pods
        if pods is None:
            story.needs_pods = True
            return True
        if attempt.rung is Rung.DRAIN:
            return _drain(story, attempt, pods)
        return _checkpoint(story, attempt, pods)
    if attempt.rung is Rung.REBOOT:
        return _reboot(story, node, attempt)
    if attempt.rung is Rung.REPLACE:
        return _replace(story, node, attempt)
    story.finish(attempt, Result.FAILED, f"this version cannot carry out {attempt.rung}")
    return False


def _booted_by_itself(node: Node, attempt: Attempt) -> bool:
    boot_id = node.status.node_info.boot_id
    return bool(attempt.boot_id and boot_id) and boot_id != attempt.boot_id


def _checkpoint(story: Story, attempt: Attempt, pods: tuple[Pod, ...]) -> bool:
    request_id = story.request_id(attempt)
    waiting = not_answered(pods, story.situation.namespace, request_id)
    late = story.past_deadline(attempt)
    if waiting and not late:
        unasked = not_asked(pods, story.situation.namespace, request_id)
        if unasked:
            refs = tuple(reference(pod) for pod in unasked)
            story.acts.append(AskCheckpoint(pods=refs, request_id=request_id))
        story.record(phase=Phase.CHECKPOINTING)
        story.expect(Rung.DRAIN, "drain when the checkpoints are durable", attempt.deadline_at)
        story.look_in(LOOK_S)
        return True
    story.mark("checkpoint_done_at")
    if waiting:
        names = ", ".join(full_name(pod) for pod in waiting[:REFUSALS_SHOWN])
        story.finish(
            attempt, Result.TIMED_OUT, f"{counted_pods(len(waiting))} did not answer in time: {names}"
        )
        story.tell("CheckpointTimedOut", f"no checkpoint in time from {names}", warning=True)
    else:
        story.finish(attempt, Result.SUCCEEDED, "every asked job has a durable checkpoint or has ended")
        story.tell("CheckpointDone", "jobs have made their progress durable")
    return False


def _drain(story: Story, attempt: Attempt, pods: tuple[Pod, ...]) -> bool:
    left = to_move(pods, story.situation.namespace)
    story.record(pods_left=len(left))
    if not left:
        story.mark("drained_at")
        story.finish(attempt, Result.SUCCEEDED, f"{counted_pods(story.status.pods_total)} moved")
        story.tell("Drained", f"{counted_pods(story.status.pods_total)} moved away")
        return False
    _name_refusals(story, left)
    storm = story.fleet.storm
    if storm is not None:
        story.block_by(f"storm of {storm.code}: evictions stop until it ends")
        story.look_in(LOOK_S)
        return True
    if story.past_deadline(attempt):
        names = ", ".join(full_name(pod) for pod in left[:REFUSALS_SHOWN])
        story.finish(attempt, Result.TIMED_OUT, f"{counted_pods(len(left))} did not leave in time: {names}")
        story.tell("DrainTimedOut", f"{counted_pods(len(left))} did not leave in time: {names}", warning=True)
        return False
    evictable = to_evict(pods, story.situation.namespace)
    if evictable:
        story.acts.append(Evict(pods=tuple(reference(pod) for pod in evictable)))
    story.record(phase=Phase.DRAINING)
    goes_on = story.ruling.spec.after_drain_deadline is AfterDrainDeadline.PROCEED
    then = "the next step is taken with pods still there" if goes_on else "it is held for a human"
    story.expect(
        Rung.DRAIN, f"{counted_pods(len(left))} to move; at the deadline {then}", attempt.deadline_at
    )
    story.look_in(LOOK_S)
    return True


def _name_refusals(story: Story, left: tuple[Pod, ...]) -> None:
    refused: dict[str, list[str]] = {}
    for pod in left:
        why = story.situation.refusals.get(pod.metadata.uid)
        if why is not None:
            refused.setdefault(why, []).append(full_name(pod))
    for why, names in list(refused.items())[:REFUSALS_SHOWN]:
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        story.block_by(f"{why} ({', '.join(names[:2])}{more} wait)")


def _reboot(story: Story, node: Node, attempt: Attempt) -> bool:
    boot_id = node.status.node_info.boot_id
    if not attempt.boot_id or not boot_id or boot_id == attempt.boot_id:
        return _waits_for_boot(story, node, attempt)
    came_back_at = story.status.timings.came_back_at
    if came_back_at is None or came_back_at < attempt.started_at:
        story.mark("came_back_at")
        story.tell("NodeRebooted", f"the machine runs a new boot ({boot_id}); waiting for a clean check")
        came_back_at = story.now
    story.record(phase=Phase.VERIFYING)
    again = _confirmed_in(story.faults, boot_id)
    ours = story.status.faults or story.incident.spec.faults
    missing = lacks_proof(story.situation, story.ruling.spec, ours) or (
        f"{story.faults[0].code} waits for its proof" if story.faults else ""
    )
    if not missing:
        story.mark("verified_at")
        story.finish(attempt, Result.SUCCEEDED, "new boot, and its completed check is clean")
        return False
    if again is not None:
        story.finish(attempt, Result.FAILED, f"{again.code} is back in the new boot: {again.summary}")
        story.tell("RebootDidNotHelp", f"{again.code} is back after the reboot", warning=True)
        return False
    left_s = story.ruling.spec.deadlines.verify_s - (story.now - came_back_at).total_seconds()
    if left_s <= 0:
        story.finish(attempt, Result.FAILED, f"no proof of health in time after the reboot: {missing}")
        story.tell("RebootNotVerified", f"no proof of health in time: {missing}", warning=True)
        return False
    story.block_by(f"waiting for proof of health: {missing}")
    story.expect(Rung.WATCH, "return to service after a completed, clean check of this boot")
    story.look_in(min(left_s, LOOK_S))
    return True


def _confirmed_in(faults: tuple[Fault, ...], boot_id: str) -> Fault | None:
    """A fault that was seen in this very boot, not one that still waits for its proof."""
    return next((f for f in faults if f.boot_id == boot_id and f.state is FaultState.OPEN), None)


def _waits_for_boot(story: Story, node: Node, attempt: Attempt) -> bool:
    job = story.situation.job
    refusal = _refusal(story.situation, attempt.job_name)
    if refusal:
        story.finish(attempt, Result.FAILED, f"the repair Job could not reboot the machine: {refusal}")
        story.tell("RebootFailed", f"the repair Job could not reboot the machine: {refusal}", warning=True)
        return False
    if job is not None and job.spec.suspend:
        story.finish(attempt, Result.CANCELLED, "the repair Job was suspended before it ran")
        return False
    if story.past_deadline(attempt):
        return _out_of_time(story, node, attempt)
    if job is not None and job.status.failed and story.situation.pods is None:
        story.needs_pods = True
        return True
    if job is None and story.fleet.storm is not None:
        story.block_by(storm_text(story.fleet.storm))
    elif job is None:
        vacant = not to_move(story.situation.pods or (), story.situation.namespace)
        story.acts.append(start_act(story, node, attempt, critical=vacant))
    story.record(phase=Phase.REPAIRING)
    story.expect(Rung.REBOOT, "wait for a new boot of the machine", attempt.deadline_at)
    story.look_in(LOOK_S)
    return True


def _out_of_time(story: Story, node: Node, attempt: Attempt) -> bool:
    """No new boot by the deadline: the machine's failure only if the repair really ran, or could not."""
    job, pods = story.situation.job, story.situation.pods
    if pods is None:
        story.needs_pods = True
        return True
    mine = [
        pod
        for pod in pods
        if is_repair(pod, story.situation.namespace) and pod.metadata.labels[REPAIR_LABEL] == attempt.job_name
    ]
    ran = any(pod.status.phase != "Pending" for pod in mine) or (job is not None and job.status.failed > 0)
    story.acts.append(stop_act(story, node, attempt))
    if is_ready(node) and not ran:
        # A missing image or a full quota says nothing about the machine, and may be so on every node.
        text = "the repair pod never started in time on a node that answers: see its Job's events"
        story.finish(attempt, Result.NEVER_RAN, text)
        story.tell("RepairNeverRan", text, warning=True)
        return False
    state = "there is no repair Job" if job is None else f"the repair Job is {_phase(job)}"
    story.finish(attempt, Result.TIMED_OUT, f"no new boot in time; {state}")
    story.tell("RebootTimedOut", f"no new boot in time; {state}", warning=True)
    return False


def _refusal(situation: Situation, job_name: str) -> str:
    """What the repair pod itself says went wrong; a pod that died with its machine says nothing."""
    for pod in situation.pods or ():
        if not is_repair(pod, situation.namespace) or pod.metadata.labels[REPAIR_LABEL] != job_name:
            continue
        for container in pod.status.container_statuses:
            ended = container.state.terminated
            if ended is not None and ended.exit_code != 0 and ended.message:
                return ended.message[:256]
    return ""


def _phase(job: Job) -> str:
    if job.status.failed:
        return "failed"
    return "running" if job.status.active else "not started"


def start_act(story: Story, node: Node, attempt: Attempt, *, critical: bool) -> StartRepair:
    """The act that carries out a reboot intent."""
    return StartRepair(
        job_name=attempt.job_name,
        incident=story.name,
        intent_id=attempt.id,
        node=node.metadata.name,
        node_uid=node.metadata.uid,
        boot_id=attempt.boot_id,
        critical=critical,
    )


def stop_act(story: Story, node: Node, attempt: Attempt) -> StopRepair:
    """The act that makes a late start of a reboot impossible."""
    return StopRepair(
        job_name=attempt.job_name,
        incident=story.name,
        intent_id=attempt.id,
        node=node.metadata.name,
        node_uid=node.metadata.uid,
        boot_id=attempt.boot_id,
    )


def _replace(story: Story, node: Node, attempt: Attempt) -> bool:
    if story.past_deadline(attempt):
        text = "Karpenter did not replace the machine in time (node repair off, or its own limit of 20 %?)"
        story.finish(attempt, Result.TIMED_OUT, text)
        story.tell("ReplaceTimedOut", text, warning=True)
        return False
    condition = node.condition(ACCELERATED_HARDWARE_READY)
    if condition is None or condition.status != "False" or condition.reason != HANDOVER_REASON:
        story.acts.append(hand_over_act(story, node, attempt))
    story.record(phase=Phase.REPAIRING)
    story.expect(Rung.REPLACE, "wait until Karpenter has replaced the machine", attempt.deadline_at)
    story.look_in(LOOK_S)
    return True


def hand_over_act(story: Story, node: Node, attempt: Attempt) -> HandOver:
    """The act that hands a machine over; its time stays the same however often it is written."""
    since = attempt.started_at
    if story.ruling.spec.backdate_handover:
        detected_at = story.status.timings.detected_at or since
        since = min(since, max(detected_at, since - BACKDATED_MAX))
    because = attempt.because[0] if attempt.because else attempt.reason
    return HandOver(
        node=node.metadata.name,
        node_uid=node.metadata.uid,
        message=f"incident {story.name}: {because}"[:1024],
        since=since,
    )
