"""How a story ends: proven healthy, replaced, no longer needed, or because a human said so.

The record is closed before the node is given back; a crash between the two leaves a cordon whose
incident is closed, and that is released on sight.
"""

from __future__ import annotations

from outlast.model.cluster import Node
from outlast.model.decision import (
    Release,
    RemoveRepair,
    StopRepair,
    TakeBack,
    cordon_of,
)
from outlast.model.health import MESSAGE_MAX
from outlast.model.incident import Attempt, End, EndResult, Phase, Result
from outlast.model.names import ACCELERATED_HARDWARE_READY, CANCEL_ANNOTATION
from outlast.model.policy import Rung
from outlast.remediation.decide.faults import lacks_proof
from outlast.remediation.decide.opening import HANDOVER_REASON, machine_of, same_machine
from outlast.remediation.decide.story import Story

NODE_GONE_GRACE_S = 300.0
"""A Node object may be deleted and registered again by the same machine, as after some reboots."""


def node_is_over(story: Story) -> bool:
    """The node is gone, or another machine has its name."""
    node = story.situation.node
    if node is None:
        replacing = any(a.rung is Rung.REPLACE for a in story.status.attempts)
        left_s = NODE_GONE_GRACE_S - story.situation.missing_s
        if left_s > 0 and not replacing:
            story.block_by("the Node object is gone; waiting whether its machine registers again")
            story.look_in(left_s)
            return True
        text = "the node was replaced" if replacing else "the node was removed from the cluster"
        end(story, EndResult.REPLACED, text)
        return True
    spec = story.incident.spec
    if node.metadata.uid != spec.node_uid and not same_machine(machine_of(node), spec.machine):
        end(story, EndResult.REPLACED, "another machine took over the node's name")
        return True
    return False


def human_ended(story: Story, node: Node) -> bool:
    """A human cancelled, by annotation on the incident or by uncordoning the node."""
    word = story.incident.metadata.annotations.get(CANCEL_ANNOTATION)
    if word is not None:
        return _cancel(story, node, f"cancelled by a human: {word or 'no reason given'}")
    cordon = cordon_of(node)
    if cordon is not None and cordon.incident == story.name and not node.spec.unschedulable:
        return _cancel(story, node, "the node was uncordoned by somebody else, which cancels the incident")
    blocked_once = story.status.timings.blocked_at is not None
    returned = story.status.phase in (Phase.WAITING, Phase.WATCHED)
    same_object = node.metadata.uid == story.incident.spec.node_uid
    if blocked_once and not returned and same_object and cordon is None and not node.spec.unschedulable:
        return _cancel(story, node, "cordon and annotation were removed by somebody else")
    return False


def _cancel(story: Story, node: Node, why: str) -> bool:
    attempt = story.attempt
    if attempt is not None:
        call_off(story, node, attempt, why)
    take_back(story, node, why)
    end(story, EndResult.CANCELLED_BY_HUMAN, why)
    return True


def call_off(story: Story, node: Node, attempt: Attempt, why: str) -> None:
    """Give up an attempt whose outcome is open; a repair Job of it must not start any more."""
    if attempt.job_name:
        story.acts.append(
            StopRepair(
                job_name=attempt.job_name,
                incident=story.name,
                intent_id=attempt.id,
                node=node.metadata.name,
                node_uid=node.metadata.uid,
                boot_id=attempt.boot_id,
            )
        )
    story.finish(attempt, Result.CANCELLED, why)


def take_back(story: Story, node: Node, why: str) -> None:
    """Withdraw a hand-over that is ours."""
    condition = node.condition(ACCELERATED_HARDWARE_READY)
    if condition is not None and condition.reason == HANDOVER_REASON and condition.status == "False":
        story.acts.append(
            TakeBack(
                node=node.metadata.name,
                node_uid=node.metadata.uid,
                message=why[:MESSAGE_MAX],
                since=story.now,
            )
        )


def return_if_proven(story: Story, node: Node) -> bool:
    """Give the node back when nothing is wrong any more and a completed check of this boot says so."""
    if story.faults:
        return False
    ours = story.status.faults or story.incident.spec.faults
    missing = lacks_proof(story.situation, story.ruling.spec, ours)
    if missing:
        story.block_by(f"waiting for proof of health: {missing}")
        return False
    attempt = story.attempt
    if attempt is not None:
        call_off(story, node, attempt, "the fault cleared by proof")
    take_back(story, node, "the node is proven healthy")
    disrupted = any(a.rung.height >= Rung.DRAIN.height for a in story.status.attempts)
    probation_s = story.ruling.spec.probation_s
    if disrupted and probation_s > 0:
        return _watch(story, node, probation_s)
    if disrupted:
        end(story, EndResult.RETURNED, "proven healthy by a completed check; back in service")
    else:
        end(story, EndResult.NOT_NEEDED, "the fault cleared by proof before anything was disrupted")
    return True


def _watch(story: Story, node: Node, probation_s: float) -> bool:
    returned_at = story.status.timings.returned_at
    if story.status.phase is not Phase.WATCHED or returned_at is None:
        story.record(phase=Phase.WATCHED, step=Rung.WATCH)
        story.mark("returned_at")
        story.decide(Rung.WATCH, "OnProbation", f"back in service, watched for {probation_s:g} s")
        story.expect(Rung.WATCH, "the incident closes when the probation is over")
        story.tell("NodeReturned", f"proven healthy; back in service on probation for {probation_s:g} s")
        story.look_in(probation_s)
        release(story, node)
        return True
    left_s = probation_s - (story.now - returned_at).total_seconds()
    if left_s > 0:
        story.look_in(left_s)
        release(story, node)
        return True
    end(story, EndResult.RETURNED, "proven healthy, and probation passed")
    return True


def release(story: Story, node: Node) -> None:
    """Take our cordon away where it is ours and still there."""
    cordon = cordon_of(node)
    if cordon is not None and cordon.incident == story.name:
        story.acts.append(Release(node=node.metadata.name, node_uid=node.metadata.uid, incident=story.name))


def end(story: Story, result: EndResult, message: str) -> None:
    """Close the record, give the node back, clear our Jobs away."""
    node, message = story.situation.node, message[:MESSAGE_MAX]
    attempt = story.attempt
    if attempt is not None:
        closed = Result.SUCCEEDED if result is EndResult.REPLACED else Result.CANCELLED
        story.finish(attempt, closed, message)
    story.record(phase=Phase.CLOSED, next=None, end=End(at=story.now, result=result, message=message))
    if node is not None and story.status.timings.returned_at is None and result is not EndResult.REPLACED:
        story.mark("returned_at")
    if node is not None:
        release(story, node)
        story.tell("IncidentClosed", f"{message}; incident {story.name}: {result}")
    stopped = {act.job_name for act in story.acts if isinstance(act, StopRepair)}
    jobs = [a.job_name for a in story.status.attempts if a.job_name and a.job_name not in stopped]
    story.acts.extend(RemoveRepair(job_name=name) for name in dict.fromkeys(jobs))
