"""`decide`: one look at one node. Same situation, policy, fleet and time give the same step.

The order of the questions is the order of precedence: is there still a node, did a human end it, what
became of the last intent, may we touch the node, is it healthy again, is it blocked, what is next.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from outlast.model.cluster import Node
from outlast.model.decision import Step, cordon_of
from outlast.model.health import FAULTS_MAX, Fault
from outlast.model.incident import Incident, Phase, Result
from outlast.model.policy import Mode, Rung
from outlast.remediation.decide.climbing import BUDGET_LOOK_S, climb
from outlast.remediation.decide.ending import (
    call_off,
    human_ended,
    node_is_over,
    return_if_proven,
    take_back,
)
from outlast.remediation.decide.observing import observe
from outlast.remediation.decide.opening import (
    block_act,
    hands_off,
    may_block,
    open_incident,
    standing_faults,
    wake_time_s,
)
from outlast.remediation.decide.settling import settle
from outlast.remediation.decide.situation import FleetView, RulingPolicy, Situation
from outlast.remediation.decide.story import Story


def decide(situation: Situation, ruling: RulingPolicy, fleet: FleetView, now: datetime) -> Step:
    """What is to be done about a node now. Pure; never raises for what a cluster can contain."""
    incident = situation.incident
    if incident is None:
        step = open_incident(situation, ruling, fleet, now)
    else:
        step = _continue(situation, incident, ruling, fleet, now)
    wake_s = wake_time_s(situation, ruling.spec, now)
    looks = [s for s in (step.look_again_s, wake_s) if s is not None]
    return msgspec.structs.replace(step, look_again_s=min(looks) if looks else None)


def _continue(
    situation: Situation, incident: Incident, ruling: RulingPolicy, fleet: FleetView, now: datetime
) -> Step:
    faults = standing_faults(situation, ruling.spec, now)
    story = Story(situation, incident, ruling, fleet, now, incident.status, faults)
    _refresh_faults(story)
    node = situation.node
    if node_is_over(story) or node is None:
        return story.to_step()
    if incident.spec.observe_only:
        observe(story, node)
        return story.to_step()
    if human_ended(story, node):
        return story.to_step()
    forbidden = _forbidden(story, node)
    if forbidden:
        recovers = ruling.spec.mode is Mode.OBSERVE and not hands_off(node) and story.attempt is None
        if not (recovers and return_if_proven(story, node)):
            _stand_still(story, node, forbidden)
        return story.to_step()
    if _came_back_bare(story, node) or settle(story, node):
        return story.to_step()
    if not return_if_proven(story, node):
        _go_on(story, node)
    return story.to_step()


def _refresh_faults(story: Story) -> None:
    before = story.status.faults or story.incident.spec.faults
    seen = _merge(before, story.faults)
    leading = story.faults[0] if story.faults else (before[0] if before else None)
    detected = story.status.timings.detected_at
    if detected is None and leading is not None:
        story.mark("detected_at", min(fault.opened_at for fault in seen))
    cordon = cordon_of(story.situation.node) if story.situation.node is not None else None
    code = leading.code if leading is not None else (cordon.reason if cordon is not None else "")
    story.record(faults=seen, fault=code[:128])


def _merge(before: tuple[Fault, ...], current: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Faults seen so far, current ones first; a mere new sighting does not change the record."""
    known = {fault.id: fault for fault in before}
    merged = [_quiet(known.get(fault.id), fault) for fault in current]
    ids = {fault.id for fault in current}
    return (*merged, *(fault for fault in before if fault.id not in ids))[:FAULTS_MAX]


def _quiet(before: Fault | None, fault: Fault) -> Fault:
    if before is None:
        return fault
    same = msgspec.structs.replace(
        fault, last_seen_at=before.last_seen_at, evidence=before.evidence, opened_at=before.opened_at
    )
    return before if same == before else fault


def _forbidden(story: Story, node: Node) -> str:
    if story.ruling.spec.mode is Mode.OBSERVE:
        return f"policy {story.ruling.name} is in mode Observe"
    return hands_off(node)


def _stand_still(story: Story, node: Node, why: str) -> None:
    """A human or the mode forbids acting: nothing is begun, and a reboot not yet begun is called off."""
    attempt = story.attempt
    if attempt is not None and attempt.rung is Rung.REBOOT:
        boot_id = node.status.node_info.boot_id
        if not boot_id or boot_id == attempt.boot_id:
            call_off(story, node, attempt, why)
        else:
            settle(story, node)
    elif attempt is not None:
        story.finish(attempt, Result.CANCELLED, why)
    take_back(story, node, why)
    if story.status.phase is not Phase.ON_HOLD:
        story.tell("OnHold", f"nothing more is done to this node: {why}")
    story.record(phase=Phase.ON_HOLD)
    story.block_by(why)
    story.decide(Rung.HOLD, "HumanHolds", why)
    story.expect(Rung.HOLD, "nothing, until a human lets it go on")


def _came_back_bare(story: Story, node: Node) -> bool:
    """A node that registered again lost our cordon: renew it before anything else, whatever the budget."""
    if cordon_of(node) is not None or node.spec.unschedulable or story.status.timings.blocked_at is None:
        return False
    if story.status.phase in (Phase.WAITING, Phase.WATCHED):
        return False
    known = story.faults or story.status.faults
    if not known:
        return False
    story.acts.append(block_act(node, story.name, story.status.epoch + 1, known[0], story.now))
    return True


def _go_on(story: Story, node: Node) -> None:
    if story.status.phase is Phase.WATCHED and story.faults:
        story.decide(Rung.WATCH, "FailedOnProbation", f"{story.faults[0].code} during probation")
        story.tell(
            "FailedOnProbation", f"{story.faults[0].summary.rstrip('.')}: back out of service", warning=True
        )
    if _is_blocked(story, node):
        if story.faults:
            climb(story, node)
        else:
            _wait_for_proof(story)


def _wait_for_proof(story: Story) -> None:
    if story.status.phase not in (Phase.VERIFYING, Phase.WAITING, Phase.WATCHED):
        story.record(phase=Phase.BLOCKED)
    story.expect(Rung.WATCH, "return to service after a completed, clean check")


def _is_blocked(story: Story, node: Node) -> bool:
    """Make sure that no new work comes; True when that is so."""
    cordon = cordon_of(node)
    if cordon is not None and cordon.incident == story.name:
        _record_block(story, node)
        return True
    if node.spec.unschedulable:
        who = f"incident {cordon.incident}" if cordon is not None else "somebody else"
        why = f"the node is cordoned by {who}; outlast acts when that cordon is gone"
        story.record(phase=Phase.ON_HOLD)
        story.block_by(why)
        story.decide(Rung.BLOCK_NEW_WORK, "CordonedByOthers", why)
        story.expect(Rung.BLOCK_NEW_WORK, "nothing, until the other cordon is gone")
        return False
    if not story.faults:
        return True
    refusal = may_block(node, story.ruling, story.fleet)
    if refusal:
        story.record(phase=Phase.WAITING, step=Rung.WATCH)
        story.block_by(refusal)
        story.decide(Rung.BLOCK_NEW_WORK, "HeldByLimit", f"the node still takes new work: {refusal}")
        story.expect(Rung.BLOCK_NEW_WORK, "block new work as soon as the limit allows")
        story.look_in(BUDGET_LOOK_S)
        return False
    if story.status.phase is Phase.WAITING:
        # Until the cordon is seen on the node the incident still waits, and says for what.
        story.block_by("the limit allows it now; the cordon is being written")
    story.acts.append(block_act(node, story.name, story.status.epoch + 1, story.faults[0], story.now))
    return False


def _record_block(story: Story, node: Node) -> None:
    """The cordon that stands on the node is the intent and the outcome of a block."""
    cordon = cordon_of(node)
    if cordon is None or story.status.epoch >= cordon.epoch:
        return
    if any(a.rung is Rung.BLOCK_NEW_WORK and a.started_at == cordon.since for a in story.status.attempts):
        # Anybody can write the annotation: an epoch that runs ahead must not be recorded again and again.
        return
    fault = story.faults[0] if story.faults else None
    because = (fault.summary, f"{fault.code} is in class {fault.fault_class}") if fault else (cordon.reason,)
    attempt = story.begin(Rung.BLOCK_NEW_WORK, "NodeIsSick", because, at=cordon.since)
    story.finish(attempt, Result.SUCCEEDED, "cordoned; running pods go on, DaemonSets keep coming")
    story.mark("blocked_at", cordon.since)
    story.record(phase=Phase.BLOCKED)
    story.decide(Rung.BLOCK_NEW_WORK, "NodeIsSick", because[0])
    story.tell(
        "NewWorkBlocked",
        f"{because[0].rstrip('.')}; no new work (incident {story.name}). To leave it as it is: "
        f"kubectl annotate node {node.metadata.name} outlast.dev/hold='reason'",
        warning=True,
    )
