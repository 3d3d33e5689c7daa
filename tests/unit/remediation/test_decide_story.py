"""The main line of a story, and its ends."""

from __future__ import annotations

import msgspec

from outlast.model.cluster import Condition, Job, JobStatus, ObjectMeta, Pod
from outlast.model.decision import (
    AskCheckpoint,
    Block,
    Evict,
    HandOver,
    Release,
    StartRepair,
    StopRepair,
    TakeBack,
    cordon_of,
)
from outlast.model.health import FaultClass, FaultState
from outlast.model.incident import EndResult, Phase, Result
from outlast.model.names import (
    ACCELERATED_HARDWARE_READY,
    CANCEL_ANNOTATION,
    CHECKPOINT_CAPABLE_LABEL,
    CHECKPOINT_DONE_ANNOTATION,
    HOLD_ANNOTATION,
    MANAGED_ANNOTATION,
    REPAIR_LABEL,
)
from outlast.model.policy import AfterDrainDeadline, Mode, ReplaceWith, Rung
from tests.unit.remediation.builders import (
    FRESH,
    OBSERVE,
    START,
    Tale,
    a_fault,
    a_health,
    a_node,
    a_pod,
    a_sick_node,
    after,
    enforce,
)

DISRUPTIVE = (AskCheckpoint, Evict, StartRepair, HandOver)


def rungs(tale) -> list[Rung]:
    return [attempt.rung for attempt in tale.status.attempts]


def test_a_healthy_node_is_left_alone() -> None:
    """Nothing wrong, nothing done."""
    step = a_sick_node(health=a_health()).look()
    assert not step.acts and step.open is None


def test_a_sick_node_is_blocked_in_the_first_look() -> None:
    """The block is the first act, and it carries its own intent."""
    tale = a_sick_node()
    step = tale.look()
    (block,) = tale.acts(Block)
    assert block.cordon.incident == step.incident
    assert block.cordon.reason == "xid/79"
    assert step.open is not None and step.open.faults[0].code == "xid/79"


def test_the_block_is_recorded_when_it_stands() -> None:
    """Intent and outcome of a block are read off the node."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    block = tale.status.attempts[0]
    assert block.rung is Rung.BLOCK_NEW_WORK
    assert block.outcome is not None and block.outcome.result is Result.SUCCEEDED
    assert tale.status.timings.blocked_at is not None


def test_a_reboot_follows_an_empty_drain_and_ends_in_service() -> None:
    """Fall off the bus, block, drain, reboot, clean check of the new boot, back in service."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    (repair,) = tale.acts(StartRepair)
    assert repair.boot_id == "boot-1" and repair.critical
    assert tale.status.phase is Phase.REPAIRING
    cordon = cordon_of(tale.situation.node)
    tale.change(job=Job(status=JobStatus(active=1))).look()
    assert not tale.acts(StartRepair)
    tale.change(node=a_node(boot_id="boot-2", cordon=cordon)).look(60)
    assert tale.status.phase is Phase.VERIFYING
    tale.change(health=a_health(boot_id="boot-2")).look(30)
    assert tale.status.phase is Phase.CLOSED
    assert tale.status.end.result is EndResult.RETURNED
    assert tale.acts(Release)
    assert rungs(tale) == [Rung.BLOCK_NEW_WORK, Rung.DRAIN, Rung.REBOOT]


def test_a_repair_is_never_returned_on_the_word_of_an_earlier_boot() -> None:
    """A healthy report of the old boot proves nothing about the new one."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    tale.change(node=a_node(boot_id="boot-2", cordon=cordon), health=a_health(boot_id="boot-1")).look(60)
    assert tale.status.phase is Phase.VERIFYING
    assert "earlier boot" in tale.status.blocked_by_text


def test_jobs_that_can_save_are_asked_before_the_drain() -> None:
    """A capable pod gets its request first and is moved when its checkpoint is durable."""
    pod = a_pod(labels={CHECKPOINT_CAPABLE_LABEL: "on-request"})
    tale = a_sick_node(pods=(pod, a_pod("plain")))
    tale.look()
    tale.look()
    (ask,) = tale.acts(AskCheckpoint)
    assert [ref.name for ref in ask.pods] == ["train-0"]
    assert not tale.acts(Evict)
    done = a_pod(
        labels={CHECKPOINT_CAPABLE_LABEL: "on-request"},
        annotations={CHECKPOINT_DONE_ANNOTATION: ask.request_id},
    )
    tale.change(pods=(done, a_pod("plain"))).look(20)
    (evict,) = tale.acts(Evict)
    assert {ref.name for ref in evict.pods} == {"train-0", "plain"}


def test_an_unanswered_request_does_not_wait_for_ever() -> None:
    """At its deadline the drain begins, and the record says who did not answer."""
    tale = a_sick_node(pods=(a_pod(labels={CHECKPOINT_CAPABLE_LABEL: "on-request"}),))
    tale.look()
    tale.look()
    tale.look(301)
    checkpoint = tale.status.attempts[1]
    assert checkpoint.outcome.result is Result.TIMED_OUT and "ml/train-0" in checkpoint.outcome.message
    assert tale.acts(Evict)


def test_what_the_machine_needs_is_not_drained() -> None:
    """DaemonSet, mirror, finished and ending pods get no eviction."""
    mirror = a_pod("mirror", annotations={"kubernetes.io/config.mirror": "x"})
    tale = a_sick_node(
        pods=(
            a_pod("ds", daemon=True),
            mirror,
            a_pod("done", phase="Succeeded"),
            a_pod("ending", deleting=True),
        )
    )
    tale.look()
    tale.look()
    assert not tale.acts(Evict)
    assert tale.status.pods_left == 1, "an ending pod is still there"


def test_a_refused_eviction_is_named() -> None:
    """What a PodDisruptionBudget holds back is said in its own words."""
    tale = a_sick_node(pods=(a_pod(),))
    tale.look()
    tale.look()
    tale.change(refusals={"uid-train-0": "PodDisruptionBudget web/api allows 0 disruptions"}).look(5)
    assert "PodDisruptionBudget web/api" in tale.status.blocked_by_text
    assert "ml/train-0" in tale.status.blocked_by_text


def test_a_drain_past_its_deadline_is_held_for_a_human() -> None:
    """By default pods are never run over: the repair waits, visibly, and goes on when they are gone."""
    tale = a_sick_node(pods=(a_pod(),))
    tale.look()
    tale.look()
    tale.look(601)
    assert tale.status.phase is Phase.ON_HOLD and "ml/train-0" in tale.status.blocked_by_text
    assert not tale.acts(StartRepair)
    tale.change(pods=()).look(10)
    assert tale.acts(StartRepair)


def test_a_policy_may_go_on_past_the_drain_deadline() -> None:
    """With Proceed the reboot follows though a pod is left; then it takes no system priority."""
    tale = a_sick_node(pods=(a_pod(),), ruling=enforce(after_drain_deadline=AfterDrainDeadline.PROCEED))
    tale.look()
    tale.look()
    tale.look(601)
    (repair,) = tale.acts(StartRepair)
    assert not repair.critical


def test_a_fault_that_survives_the_reboot_leads_to_replacement() -> None:
    """The next rung is taken at once when the new boot shows the fault again."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    again = a_fault(boot_id="boot-2")
    tale.change(node=a_node(boot_id="boot-2", cordon=cordon), health=a_health(again, boot_id="boot-2")).look(
        60
    )
    assert tale.status.attempts[-2].outcome.result is Result.FAILED
    (hand_over,) = tale.acts(HandOver)
    assert tale.status.step is Rung.REPLACE and hand_over.node_uid == "uid-n1"


def test_a_fault_waiting_for_its_proof_gets_the_whole_verification_time() -> None:
    """AwaitingProof is not evidence of failure; only the deadline is."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    waiting = a_fault(state=FaultState.AWAITING_PROOF)
    tale.change(
        node=a_node(boot_id="boot-2", cordon=cordon), health=a_health(waiting, boot_id="boot-2")
    ).look(60)
    assert tale.status.phase is Phase.VERIFYING
    tale.look(601)
    assert tale.status.step is Rung.REPLACE


def test_a_fault_of_an_earlier_boot_blocks_and_moves_nobody() -> None:
    """What was seen before this boot only may be over: no drain until it is seen again or proven gone."""
    waiting = a_fault(state=FaultState.AWAITING_PROOF, boot_id="boot-0")
    tale = a_sick_node(waiting, pods=(a_pod(),))
    tale.look()
    tale.look()
    assert rungs(tale) == [Rung.BLOCK_NEW_WORK]
    assert "before this boot" in tale.status.blocked_by_text
    tale.change(health=a_health(a_fault())).look()
    assert rungs(tale) == [Rung.BLOCK_NEW_WORK, Rung.DRAIN]


def test_a_worse_fault_that_waits_for_its_proof_does_not_hide_one_that_stands() -> None:
    """The fault that stands leads, whatever waits beside it."""
    waiting = a_fault(FaultClass.HARDWARE_GONE, "xid/64", state=FaultState.AWAITING_PROOF, boot_id="boot-0")
    tale = a_sick_node(waiting, a_fault(), pods=(a_pod(),))
    tale.look()
    tale.look()
    assert rungs(tale) == [Rung.BLOCK_NEW_WORK, Rung.DRAIN]


def test_a_replaced_node_ends_the_story() -> None:
    """After the hand-over the disappearance of the node is the success."""
    tale = a_sick_node(a_fault(FaultClass.HARDWARE_GONE, "xid/64"))
    tale.look()
    tale.look()
    assert tale.acts(HandOver)
    tale.change(node=None).look(60)
    assert tale.status.end.result is EndResult.REPLACED
    assert tale.status.attempts[-1].outcome.result is Result.SUCCEEDED


def test_a_machine_nobody_replaces_is_held() -> None:
    """At the deadline of the hand-over a human is called."""
    tale = a_sick_node(a_fault(FaultClass.HARDWARE_GONE, "xid/64"))
    tale.look()
    tale.look()
    tale.look(1801)
    assert tale.status.phase is Phase.ON_HOLD and tale.status.step is Rung.HOLD


def test_replace_with_none_holds() -> None:
    """Where nobody replaces machines the node waits for a human and nothing is published."""
    tale = a_sick_node(
        a_fault(FaultClass.HARDWARE_GONE, "xid/64"), ruling=enforce(replace_with=ReplaceWith.NONE)
    )
    tale.look()
    tale.look()
    assert tale.status.phase is Phase.ON_HOLD and not tale.acts(HandOver)


def test_a_condition_of_another_owner_is_not_fought_over() -> None:
    """AcceleratedHardwareReady written by somebody else is left alone, and the page says so."""
    foreign = Condition(type=ACCELERATED_HARDWARE_READY, status="True", reason="NvidiaHealthy")
    tale = a_sick_node(a_fault(FaultClass.HARDWARE_GONE, "xid/64"), node=a_node(conditions=(foreign,)))
    tale.look()
    tale.look()
    assert not tale.acts(HandOver)
    assert "somebody else" in tale.status.blocked_by_text


def test_the_same_fault_after_a_recent_reboot_enters_one_rung_higher() -> None:
    """A reboot that did not last is gone hardware."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    tale.change(node=a_node(boot_id="boot-2", cordon=cordon), health=a_health(boot_id="boot-2")).look(60)
    closed = tale.situation.incident
    assert closed.status.phase is Phase.CLOSED
    again = a_fault(boot_id="boot-2", opened_at=tale.at)
    tale.change(
        node=a_node(boot_id="boot-2"), health=a_health(again, boot_id="boot-2"), incident=None, past=(closed,)
    )
    tale.look(3600)
    tale.look()
    assert tale.status.step is Rung.REPLACE
    assert any("did not last" in text for text in tale.status.attempts[-1].because)


def test_a_transient_fault_only_blocks_and_clears_by_proof() -> None:
    """Running jobs go on; the node comes back when its agent proves it healthy."""
    tale = a_sick_node(a_fault(FaultClass.TRANSIENT, "thermal/throttle"), pods=(a_pod(),))
    tale.look()
    tale.look()
    assert rungs(tale) == [Rung.BLOCK_NEW_WORK]
    tale.look(7200)
    assert rungs(tale) == [Rung.BLOCK_NEW_WORK]
    tale.change(health=a_health()).look()
    assert tale.status.end.result is EndResult.NOT_NEEDED
    assert tale.acts(Release)


def test_an_application_fault_does_nothing_to_the_node() -> None:
    """A bug of a job is no reason to take its machine away."""
    step = a_sick_node(a_fault(FaultClass.APPLICATION, "xid/13")).look()
    assert step.open is None and not step.acts


def test_a_hung_monitor_blocks_and_never_drains() -> None:
    """Unknown fails closed, and goes no further without a second witness."""
    tale = a_sick_node(a_fault(FaultClass.MONITOR_HUNG, "nvml/hung"), pods=(a_pod(),))
    for _ in range(5):
        tale.look(1000)
        assert not any(isinstance(act, DISRUPTIVE) for act in tale.last.acts)
    assert rungs(tale) == [Rung.BLOCK_NEW_WORK]
    assert "second witness" in tale.status.blocked_by_text


def test_a_second_witness_opens_the_way() -> None:
    """A driver that another source sees wedged is rebooted."""
    tale = a_sick_node(a_fault(FaultClass.MONITOR_HUNG, "nvml/hung", second_witness=True))
    tale.look()
    tale.look()
    assert tale.acts(StartRepair)


def test_a_reset_becomes_a_reboot_and_says_so() -> None:
    """There is no executor for a GPU reset; the record tells why a reboot was taken."""
    tale = a_sick_node(a_fault(FaultClass.RESET_CURES, "xid/95"))
    tale.look()
    tale.look()
    assert tale.status.step is Rung.REBOOT
    assert any("reset is not available" in text for text in tale.status.attempts[-1].because)


def test_a_silent_agent_blocks_a_ready_node_and_nothing_more() -> None:
    """Nobody watches the node, so it gets no new work; nothing says it is sick."""
    from dataclasses import replace

    tale = a_sick_node(health=a_health(), agent=replace(FRESH, silent_s=181.0), pods=(a_pod(),))
    tale.look()
    tale.look()
    assert rungs(tale) == [Rung.BLOCK_NEW_WORK] and tale.status.fault == "agent/silent"
    tale.change(agent=FRESH).look()
    assert tale.status.end.result is EndResult.NOT_NEEDED


def test_a_silent_agent_on_a_node_that_is_down_is_no_news() -> None:
    """Kubernetes has taken the node out already."""
    from dataclasses import replace

    step = a_sick_node(
        health=a_health(), node=a_node(ready=False), agent=replace(FRESH, silent_s=999.0)
    ).look()
    assert step.open is None


def test_a_monitor_that_cannot_tell_gets_half_an_hour() -> None:
    """A driver upgrade is no fault; checks that never complete are, and they cost new work only."""
    import msgspec

    health = a_health(checked=False)
    verdicts = tuple(msgspec.structs.replace(v, since=START) for v in health.status.verdicts)
    blind = msgspec.structs.replace(health, status=msgspec.structs.replace(health.status, verdicts=verdicts))
    tale = a_sick_node(health=blind, pods=(a_pod(),))
    assert tale.look(1700).open is None
    tale.look(200)
    tale.look()
    assert rungs(tale) == [Rung.BLOCK_NEW_WORK] and tale.status.fault == "monitor/unknown"


def _blind(since_s: float = 0.0):
    """A node whose checks cannot tell since then."""
    import msgspec

    health = a_health(checked=False)
    verdicts = tuple(msgspec.structs.replace(v, since=after(since_s)) for v in health.status.verdicts)
    return msgspec.structs.replace(health, status=msgspec.structs.replace(health.status, verdicts=verdicts))


def test_checks_that_cannot_tell_are_looked_at_when_their_time_is_over() -> None:
    """No change comes at that moment, so only a due time can bring the look."""
    patient = enforce(agent_silent_s=7 * 24 * 3600)
    step = a_sick_node(health=_blind(), ruling=patient).look(100)
    assert step.open is None and step.look_again_s == 1700


def test_a_silent_agent_is_not_looked_at_every_second() -> None:
    """Its silence is known; a whole fleet without agents must not keep the controller busy."""
    from dataclasses import replace

    tale = a_sick_node(health=a_health(), agent=replace(FRESH, silent_s=500.0))
    for _ in range(3):
        tale.look()
    assert tale.last.look_again_s >= 60


def test_a_cancel_holds_on_a_node_whose_clock_runs_ahead() -> None:
    """The fault that a human accepted is known by its own opening, not by comparing two clocks."""
    ahead = a_fault(opened_at=after(3600))
    tale = a_sick_node(ahead)
    tale.look()
    tale.look()
    node = tale.situation.node
    import msgspec

    bare = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, unschedulable=False))
    tale.change(node=bare).look()
    assert tale.status.end.result is EndResult.CANCELLED_BY_HUMAN
    tale.change(incident=None, past=(tale.situation.incident,), node=a_node())
    assert tale.look().open is None
    tale.change(health=a_health(a_fault(opened_at=after(7200))))
    assert tale.look().open is not None, "one that opens later is a new one"


def test_a_hold_starts_no_reboot_while_the_kubelet_tells_no_boot_id() -> None:
    """Whether it rebooted is not known, and a human has said stop: the Job is called off."""
    tale = a_sick_node(a_fault(), pods=())
    for _ in range(4):
        tale.look()
    assert tale.status.open_attempt.rung is Rung.REBOOT
    marked = a_node(cordon=cordon_of(tale.situation.node), boot_id="", annotations={HOLD_ANNOTATION: "stop"})
    tale.change(node=marked, job=None).look()
    assert not tale.acts(StartRepair) and tale.acts(StopRepair)


def test_a_repair_of_an_occupied_node_takes_nobodys_place_after_a_crash_either() -> None:
    """The Job is asked for again with the pods as they are now, not as if the node were empty."""
    tale = a_sick_node(
        a_fault(), ruling=enforce(after_drain_deadline=AfterDrainDeadline.PROCEED), pods=(a_pod(),)
    )
    for _ in range(4):
        tale.look()
    tale.look(700)
    assert tale.status.open_attempt.rung is Rung.REBOOT
    tale.change(job=None).look()
    assert [act.critical for act in tale.acts(StartRepair)] == [False]


def test_old_evidence_disrupts_nothing() -> None:
    """A fault last confirmed by an agent that fell silent is no ground for a drain."""
    from dataclasses import replace

    tale = a_sick_node(agent=replace(FRESH, silent_s=500.0), pods=(a_pod(),))
    tale.look()
    tale.look()
    assert rungs(tale) == [Rung.BLOCK_NEW_WORK]
    assert "evidence is not current" in tale.status.blocked_by_text


def test_observe_writes_down_what_would_be_done_and_does_nothing() -> None:
    """The default changes no node."""
    tale = a_sick_node(ruling=OBSERVE)
    tale.look()
    assert tale.situation.incident.spec.observe_only and not tale.last.acts
    tale.look()
    assert not tale.last.acts and tale.status.phase is Phase.WAITING
    assert "would block new work" in tale.status.decisions[-1].message
    tale.change(health=a_health()).look()
    assert tale.status.end.result is EndResult.NOT_NEEDED and not tale.acts(Release)


def test_an_observed_incident_gives_way_when_the_policy_enforces() -> None:
    """A new incident acts; the observed one closes, so that no record claims both."""
    tale = a_sick_node(ruling=OBSERVE)
    tale.look()
    observed = tale.situation.incident.metadata.name
    tale.ruling = enforce()
    tale.look()
    assert tale.status.phase is Phase.CLOSED
    step = tale.change(past=(tale.situation.incident,), incident=None).look()
    assert step.incident != observed and tale.acts(Block)


def test_a_manual_uncordon_cancels() -> None:
    """A human's word wins, and the same fault does not open the case again."""
    tale = a_sick_node(a_fault(FaultClass.TRANSIENT, "thermal/throttle"))
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    tale.change(node=a_node(cordon=cordon, unschedulable=False)).look()
    assert tale.status.end.result is EndResult.CANCELLED_BY_HUMAN
    closed = tale.situation.incident
    step = tale.change(node=a_node(), incident=None, past=(closed,)).look(600)
    assert step.open is None and not step.acts


def test_a_new_fault_after_a_cancel_opens_a_new_case() -> None:
    """A human accepted what stood then, not what comes later."""
    tale = a_sick_node(a_fault(FaultClass.TRANSIENT, "thermal/throttle"))
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    tale.change(node=a_node(cordon=cordon, unschedulable=False)).look()
    later = a_fault(FaultClass.TRANSIENT, "thermal/throttle", opened_at=tale.at.replace(hour=20))
    tale.change(node=a_node(), incident=None, past=(tale.situation.incident,), health=a_health(later))
    assert tale.look(36000).open is not None


def test_a_cancel_annotation_gives_the_node_back_and_stops_the_job() -> None:
    """A repair not yet begun must never start after a human said no."""
    import msgspec

    tale = a_sick_node()
    tale.look()
    tale.look()
    incident = tale.situation.incident
    marked = msgspec.structs.replace(
        incident,
        metadata=ObjectMeta(name=incident.metadata.name, annotations={CANCEL_ANNOTATION: "debugging"}),
    )
    tale.change(incident=marked).look()
    assert tale.status.end.result is EndResult.CANCELLED_BY_HUMAN
    assert tale.acts(StopRepair) and tale.acts(Release)


def test_a_hold_annotation_stops_everything() -> None:
    """Whatever state the node is in, it stays in it until the hold goes."""
    tale = a_sick_node(pods=(a_pod(),))
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    tale.change(node=a_node(cordon=cordon, annotations={HOLD_ANNOTATION: "forensics"})).look()
    assert tale.status.phase is Phase.ON_HOLD and "forensics" in tale.status.blocked_by_text
    assert not tale.last.acts
    tale.change(node=a_node(cordon=cordon)).look()
    assert tale.acts(Evict)


def test_a_hold_calls_off_a_reboot_that_has_not_happened() -> None:
    """The Job's name is occupied, so a late start is impossible."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    tale.change(node=a_node(cordon=cordon, annotations={HOLD_ANNOTATION: "forensics"})).look()
    assert tale.acts(StopRepair)


def test_a_hold_takes_an_unfinished_hand_over_back() -> None:
    """To leave a node as it is, Karpenter's reason to replace it has to go."""
    tale = a_sick_node(a_fault(FaultClass.HARDWARE_GONE, "xid/64"))
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    ours = Condition(type=ACCELERATED_HARDWARE_READY, status="False", reason="OutlastReplace")
    held = a_node(cordon=cordon, annotations={HOLD_ANNOTATION: "keep"}, conditions=(ours,))
    tale.change(node=held).look()
    assert tale.acts(TakeBack)


def test_an_unmanaged_node_is_only_watched() -> None:
    """managed=false means: judge it, explain it, keep your hands off."""
    tale = a_sick_node(node=a_node(annotations={MANAGED_ANNOTATION: "false"}))
    tale.look()
    tale.look()
    assert not tale.last.acts and tale.situation.incident.spec.observe_only


def test_somebody_elses_cordon_is_left_and_waited_for() -> None:
    """A human at work on a node is not drained away under his hands."""
    tale = a_sick_node(node=a_node(unschedulable=True), pods=(a_pod(),))
    tale.look()
    tale.look()
    assert not tale.last.acts and "somebody else" in tale.status.blocked_by_text
    tale.change(health=a_health()).look()
    assert tale.status.phase is Phase.CLOSED and not tale.acts(Release)


def test_a_cordon_without_an_incident_gets_one() -> None:
    """A crash between block and record heals by looking at the node."""
    tale = a_sick_node()
    step = tale.look()
    tale.change(incident=None)
    again = tale.look()
    assert again.open is not None and again.incident == step.incident and not again.acts
    assert [note.reason for note in again.notes] == ["IncidentOpened"]


def test_a_cordon_of_a_closed_incident_is_released() -> None:
    """A crash between close and release heals by looking at the node."""
    tale = a_sick_node(a_fault(FaultClass.TRANSIENT, "thermal/throttle"))
    tale.look()
    tale.look()
    tale.change(health=a_health()).look()
    tale.change(past=(tale.situation.incident,), incident=None).look()
    assert tale.acts(Release)


def test_a_machine_that_registers_again_is_blocked_first() -> None:
    """A re-registered node comes back bare: the block is renewed before anything else."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    tale.change(node=a_node(uid="uid-new", boot_id="boot-1"), job=Job()).look()
    tale.look()
    assert tale.situation.node.spec.unschedulable
    assert cordon_of(tale.situation.node).node_uid == "uid-new"


def test_another_machine_under_the_name_ends_the_story() -> None:
    """The story belongs to a machine, not to a name."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    tale.change(node=a_node(uid="uid-new", provider_id="machine-2"), health=a_health()).look()
    assert tale.status.end.result is EndResult.REPLACED


def test_a_node_gone_for_a_moment_keeps_its_incident() -> None:
    """Some machines re-register during a reboot; only lasting absence ends the story."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    tale.change(node=None, missing_s=5.0).look()
    assert tale.status.phase is not Phase.CLOSED
    tale.change(missing_s=301.0).look()
    assert tale.status.end.result is EndResult.REPLACED


def test_probation_watches_before_it_closes() -> None:
    """A returned node is in service and still watched; a relapse goes on where the ladder stopped."""
    tale = a_sick_node(ruling=enforce(probation_s=600))
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    tale.change(node=a_node(boot_id="boot-2", cordon=cordon), health=a_health(boot_id="boot-2")).look(60)
    assert tale.status.phase is Phase.WATCHED and tale.acts(Release)
    again = a_fault(boot_id="boot-2")
    tale.change(node=a_node(boot_id="boot-2"), health=a_health(again, boot_id="boot-2")).look(60)
    assert tale.acts(Block)
    tale.look()
    tale.look()
    assert tale.status.step is Rung.REPLACE


def test_probation_that_passes_closes_the_incident() -> None:
    """After a quiet probation the node is simply healthy."""
    tale = a_sick_node(ruling=enforce(probation_s=600))
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    tale.change(node=a_node(boot_id="boot-2", cordon=cordon), health=a_health(boot_id="boot-2")).look(60)
    tale.change(node=a_node(boot_id="boot-2")).look(601)
    assert tale.status.end.result is EndResult.RETURNED


def a_repair_pod(tale: Tale, phase: str) -> Pod:
    job_name = tale.status.open_attempt.job_name
    pod = a_pod("repair", labels={REPAIR_LABEL: job_name}, phase=phase)
    home = msgspec.structs.replace(pod.metadata, namespace=tale.situation.namespace)
    return msgspec.structs.replace(pod, metadata=home)


def test_a_reboot_that_never_comes_is_stopped_before_the_next_rung() -> None:
    """A repair pod that was stuck must not reboot a machine that was handed over."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    tale.change(pods=(a_repair_pod(tale, "Running"),)).look(1201)
    assert tale.acts(StopRepair) and tale.acts(HandOver)


def test_a_repair_pod_that_never_started_condemns_no_machine() -> None:
    """A missing image is not a broken board: the reboot is tried again, and then a human is called."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    for _ in range(3):
        tale.change(pods=(a_repair_pod(tale, "Pending"),)).look(1201)
        assert tale.acts(StopRepair) and not tale.acts(HandOver)
    results = [a.outcome.result for a in tale.status.attempts if a.rung is Rung.REBOOT]
    assert results == [Result.NEVER_RAN] * 3
    assert tale.status.phase is Phase.ON_HOLD and "never started" in tale.status.blocked_by_text


def test_a_machine_whose_kubelet_is_gone_is_not_waited_for_by_new_jobs() -> None:
    """A node that does not answer could not start the pod: the next rung is taken."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    tale.change(node=a_node(ready=False, cordon=cordon)).look(1201)
    assert tale.status.attempts[-2].outcome.result is Result.TIMED_OUT
    assert tale.status.step is Rung.REPLACE


def test_mode_observe_in_mid_story_stands_still_but_still_returns() -> None:
    """Switching the mode off stops acting; giving back what we took is always allowed."""
    tale = a_sick_node(pods=(a_pod(),))
    tale.look()
    tale.look()
    tale.ruling = OBSERVE
    tale.look()
    assert tale.status.phase is Phase.ON_HOLD and not tale.last.acts
    tale.change(health=a_health()).look()
    assert tale.acts(Release) and tale.status.phase is Phase.CLOSED
    assert OBSERVE.spec.mode is Mode.OBSERVE


def test_looking_again_without_a_change_writes_nothing() -> None:
    """A record is written only when it says something new."""
    tale = a_sick_node(pods=(a_pod(),))
    for _ in range(3):
        tale.look()
    assert tale.look(5).status is None
