"""One rung up: the mildest step that was not tried, if every limit lets it begin.

The intent is written into the record together with everything it rests on; the act follows only after
that record stands.
"""

from __future__ import annotations

from outlast.model.cluster import Node, Pod
from outlast.model.decision import AskCheckpoint, Evict
from outlast.model.health import Fault, FaultState
from outlast.model.incident import Phase, Result
from outlast.model.names import ACCELERATED_HARDWARE_READY
from outlast.model.policy import AfterDrainDeadline, ReplaceWith, Rung
from outlast.remediation.decide.budgets import IN_FLIGHT, refuses_repair, storm_text
from outlast.remediation.decide.faults import lacks_evidence, repeats_after_reboot
from outlast.remediation.decide.ladder import (
    DISRUPTIVE,
    REPAIRS,
    UNTRIED,
    executable,
    held_by_witness,
    ladder_for,
    next_rung,
    remarks,
)
from outlast.remediation.decide.opening import HANDOVER_REASON, TAKEN_BACK_REASON, repair_job_name
from outlast.remediation.decide.pods import (
    can_checkpoint,
    counted_pods,
    full_name,
    reference,
    to_evict,
    to_move,
)
from outlast.remediation.decide.settling import LOOK_S, hand_over_act, start_act
from outlast.remediation.decide.story import Story

NEVER_RAN_MAX = 3
"""Repair Jobs that a node's kubelet never started, in one incident, before a human is called."""
BUDGET_LOOK_S = 15.0
"""How often a limit that holds something back is looked at again, beside every change that may free it."""


def climb(story: Story, node: Node) -> None:
    """Begin the next rung, or say what keeps it from beginning."""
    leading = story.faults[0]
    written = ladder_for(leading.fault_class, story.ruling.spec)
    rung = next_rung(executable(written), story.status.attempts, story.ruling.spec.reboot_tries)
    if rung is None:
        _wait(story, leading, "every step of the ladder was taken" if _climbed(story) else "")
        return
    if rung is Rung.HOLD:
        _hold(story, "every step of the ladder was tried and the fault is still there")
        return
    stuck = sum(a.outcome is not None and a.outcome.result is Result.NEVER_RAN for a in story.status.attempts)
    if rung is Rung.REBOOT and stuck >= NEVER_RAN_MAX:
        _hold(story, f"{stuck} repair Jobs never started on this node: look at their image and events")
        return
    if held_by_witness(leading, rung):
        _wait(story, leading, f"only the monitor says so ({leading.code}); {rung} needs a second witness")
        return
    if rung in DISRUPTIVE and leading.state is FaultState.AWAITING_PROOF and not _repaired(story):
        # A fault of an earlier boot, perhaps cured by it: nobody's work is moved for what may be over.
        _wait(story, leading, f"{leading.code} was seen before this boot only; {rung} needs it seen again")
        return
    if rung in DISRUPTIVE:
        refusal = _refuses(story)
        if refusal:
            _wait_for_limit(story, rung, refusal)
            return
        if story.situation.pods is None:
            story.needs_pods = True
            return
    _begin(story, node, rung, leading)


def _climbed(story: Story) -> bool:
    return any(a.rung in DISRUPTIVE for a in story.status.attempts)


def _repaired(story: Story) -> bool:
    """Whether a repair of ours was carried out, so that a fault without proof of its end is its failure."""
    return any(
        a.rung in REPAIRS and a.outcome is not None and a.outcome.result not in UNTRIED
        for a in story.status.attempts
    )


def _refuses(story: Story) -> str:
    """The limit that forbids a disruptive step now."""
    policy = story.ruling.spec
    if not story.fleet.complete:
        return "the controller's picture of the cluster is not complete: a watch is being restored"
    stale = lacks_evidence(story.situation, policy)
    if stale:
        return stale
    if story.status.phase in IN_FLIGHT:
        return storm_text(story.fleet.storm) if story.fleet.storm is not None else ""
    return refuses_repair(policy.budgets, story.fleet)


def _wait_for_limit(story: Story, rung: Rung, refusal: str) -> None:
    story.block_by(refusal)
    phase = story.status.phase
    if phase not in IN_FLIGHT:
        story.record(phase=Phase.BLOCKED)
    story.decide(rung, "HeldByLimit", f"{rung} is due and waits: {refusal}")
    story.expect(rung, f"{rung} as soon as the limit allows")
    story.look_in(BUDGET_LOOK_S)


def _wait(story: Story, leading: Fault, why: str) -> None:
    """No further rung: stay blocked until the fault clears by proof."""
    story.record(phase=Phase.BLOCKED, step=Rung.BLOCK_NEW_WORK)
    if why:
        story.block_by(why)
    clears = leading.clears_by or "its proof"
    story.decide(Rung.BLOCK_NEW_WORK, "WaitsForProof", f"{leading.code}: no new work until {clears}")
    story.expect(Rung.WATCH, f"return to service when the fault clears: {clears}")


def _hold(story: Story, why: str) -> None:
    """A human is needed."""
    if story.status.phase is not Phase.ON_HOLD or story.status.step is not Rung.HOLD:
        story.tell("NeedsHuman", f"{why}; the node stays out of service", warning=True)
    story.record(phase=Phase.ON_HOLD, step=Rung.HOLD)
    story.block_by(why)
    story.decide(Rung.HOLD, "NeedsHuman", why)
    story.expect(Rung.HOLD, "a human repairs the node, or cancels the incident")


def _reasons(story: Story, leading: Fault) -> tuple[str, ...]:
    policy = story.ruling.spec
    reasons = [leading.summary, f"{leading.code} is in class {leading.fault_class}"]
    repeat = repeats_after_reboot(leading, story.situation.past, policy, story.now)
    if repeat is not None:
        reasons.append(f"a reboot cured the same fault in {repeat.metadata.name}; it did not last")
    last = next((a for a in reversed(story.status.attempts) if a.outcome is not None), None)
    if last is not None and last.outcome is not None and last.outcome.result is not Result.SUCCEEDED:
        reasons.append(f"{last.rung} {last.outcome.result}: {last.outcome.message}")
    return (*reasons, *remarks(ladder_for(leading.fault_class, policy)))


def _begin(story: Story, node: Node, rung: Rung, leading: Fault) -> None:
    pods = story.situation.pods or ()
    because = _reasons(story, leading)
    if rung is Rung.REQUEST_CHECKPOINT:
        if can_checkpoint(pods, story.situation.namespace):
            _ask(story, node, pods, because)
            return
        rung = _after_checkpoint(story, leading)
    if rung is Rung.DRAIN:
        _drain(story, node, pods, because)
    elif rung is Rung.REBOOT:
        _reboot(story, node, pods, because)
    elif rung is Rung.REPLACE:
        _replace(story, node, pods, because)
    else:
        _wait(story, leading, "")


def _after_checkpoint(story: Story, leading: Fault) -> Rung:
    """Nobody answers checkpoint requests here: the rung above."""
    rungs = executable(ladder_for(leading.fault_class, story.ruling.spec))
    above = [r for r in rungs if r.height > Rung.REQUEST_CHECKPOINT.height]
    return above[0] if above else Rung.BLOCK_NEW_WORK


def _ask(story: Story, node: Node, pods: tuple[Pod, ...], because: tuple[str, ...]) -> None:
    capable = can_checkpoint(pods, story.situation.namespace)
    deadline_s = story.ruling.spec.deadlines.checkpoint_s
    attempt = story.begin(
        Rung.REQUEST_CHECKPOINT,
        "JobsCanSave",
        because,
        deadline_s=deadline_s,
        boot_id=node.status.node_info.boot_id,
    )
    story.record(phase=Phase.CHECKPOINTING)
    story.mark("checkpoint_requested_at")
    refs = tuple(reference(pod) for pod in capable)
    story.acts.append(AskCheckpoint(pods=refs, request_id=story.request_id(attempt)))
    story.tell(
        "CheckpointRequested", f"{counted_pods(len(capable))} asked to checkpoint within {deadline_s} s"
    )
    story.expect(Rung.DRAIN, "drain when the checkpoints are durable", attempt.deadline_at)
    story.look_in(LOOK_S)


def _drain(story: Story, node: Node, pods: tuple[Pod, ...], because: tuple[str, ...]) -> None:
    moving = to_move(pods, story.situation.namespace)
    deadline_s = story.ruling.spec.deadlines.drain_s
    attempt = story.begin(
        Rung.DRAIN, "MoveWork", because, deadline_s=deadline_s, boot_id=node.status.node_info.boot_id
    )
    story.mark("drain_started_at")
    story.record(pods_total=len(moving), pods_left=len(moving), phase=Phase.DRAINING)
    story.decide(Rung.DRAIN, "MoveWork", f"{counted_pods(len(moving))} to move before the repair")
    if not moving:
        story.mark("drained_at")
        story.finish(attempt, Result.SUCCEEDED, "no pod had to move")
        climb(story, node)
        return
    story.tell("DrainStarted", f"{counted_pods(len(moving))} to move within {deadline_s} s")
    refs = tuple(reference(pod) for pod in to_evict(pods, story.situation.namespace))
    if refs:
        story.acts.append(Evict(pods=refs))
    story.expect(Rung.DRAIN, f"{counted_pods(len(moving))} to move", attempt.deadline_at)
    story.look_in(LOOK_S)


def _still_occupied(story: Story, pods: tuple[Pod, ...], rung: Rung) -> bool:
    """Whether pods that a drain could not move forbid a repair."""
    left = to_move(pods, story.situation.namespace)
    story.record(pods_left=len(left))
    if not left or story.ruling.spec.after_drain_deadline is AfterDrainDeadline.PROCEED:
        return False
    names = ", ".join(full_name(pod) for pod in left[:3])
    why = f"{counted_pods(len(left))} still on the node ({names}); {rung} waits until they are gone"
    if story.status.phase is not Phase.ON_HOLD:
        story.tell("NeedsHuman", why, warning=True)
    story.record(phase=Phase.ON_HOLD)
    story.block_by(why)
    story.decide(rung, "PodsLeft", why)
    story.expect(rung, f"{rung} when the pods are gone; policy afterDrainDeadline=Proceed would go on")
    story.look_in(BUDGET_LOOK_S)
    return True


def _reboot(story: Story, node: Node, pods: tuple[Pod, ...], because: tuple[str, ...]) -> None:
    if _still_occupied(story, pods, Rung.REBOOT):
        return
    boot_id = node.status.node_info.boot_id
    if not boot_id:
        _hold(story, "the kubelet tells no boot id, so a reboot could not be verified")
        return
    deadline_s = story.ruling.spec.deadlines.reboot_s
    attempt = story.begin(
        Rung.REBOOT,
        "RestartCures",
        because,
        deadline_s=deadline_s,
        boot_id=boot_id,
        job_name=repair_job_name(story.token, story.status.epoch + 1),
    )
    story.record(phase=Phase.REPAIRING)
    story.mark("acted_at")
    story.decide(Rung.REBOOT, "RestartCures", because[1])
    story.acts.append(start_act(story, node, attempt, critical=not to_move(pods, story.situation.namespace)))
    story.tell("RebootStarted", f"rebooting: {because[0].rstrip('.')}; Job {attempt.job_name}", warning=True)
    story.expect(Rung.REBOOT, "wait for a new boot of the machine", attempt.deadline_at)
    story.look_in(LOOK_S)


def _replace(story: Story, node: Node, pods: tuple[Pod, ...], because: tuple[str, ...]) -> None:
    if story.ruling.spec.replace_with is ReplaceWith.NONE:
        _hold(story, "the machine needs replacing, and policy replaceWith=none leaves that to a human")
        return
    condition = node.condition(ACCELERATED_HARDWARE_READY)
    if condition is not None and condition.reason not in (HANDOVER_REASON, TAKEN_BACK_REASON):
        state = "Karpenter will act by itself" if condition.status == "False" else "it says the node is fine"
        _hold(
            story,
            f"the machine needs replacing, but {ACCELERATED_HARDWARE_READY} is written by somebody else "
            f"(reason {condition.reason or 'none'}; {state}); outlast does not fight over it",
        )
        return
    if _still_occupied(story, pods, Rung.REPLACE):
        return
    attempt = story.begin(
        Rung.REPLACE, "HardwareIsGone", because, deadline_s=story.ruling.spec.deadlines.replace_s
    )
    story.record(phase=Phase.REPAIRING)
    story.mark("acted_at")
    story.decide(Rung.REPLACE, "HardwareIsGone", because[1])
    story.acts.append(hand_over_act(story, node, attempt))
    story.tell("HandedOver", f"handed over for replacement: {because[0]}", warning=True)
    story.expect(Rung.REPLACE, "wait until Karpenter has replaced the machine", attempt.deadline_at)
    story.look_in(LOOK_S)
