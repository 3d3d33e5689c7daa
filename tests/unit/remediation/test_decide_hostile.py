"""What must not move anybody: stale words, forged marks, machines that change by themselves."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from outlast.model.cluster import ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus
from outlast.model.decision import AskCheckpoint, Block, Evict, HandOver, StartRepair, cordon_of
from outlast.model.health import FaultClass, FaultState, NodeHealth
from outlast.model.incident import Phase, Result
from outlast.model.names import (
    CHECKPOINT_CAPABLE_LABEL,
    CHECKPOINT_DONE_ANNOTATION,
    CHECKPOINT_REQUEST_ANNOTATION,
    CORDON_ANNOTATION,
    REPAIR_LABEL,
    SYSTEM_NAMESPACE,
)
from outlast.model.policy import AfterDrainDeadline, Rung
from tests.unit.remediation.builders import (
    Tale,
    a_fault,
    a_health,
    a_node,
    a_pod,
    a_sick_node,
    enforce,
)

DISRUPTIVE = (AskCheckpoint, Evict, StartRepair, HandOver)
ON_REQUEST = {CHECKPOINT_CAPABLE_LABEL: "on-request"}


def disruptions(tale: Tale) -> list[Any]:
    return [act for act in tale.last.acts if isinstance(act, DISRUPTIVE)]


def with_uid(health: NodeHealth, uid: str) -> NodeHealth:
    return msgspec.structs.replace(health, status=msgspec.structs.replace(health.status, node_uid=uid))


def test_the_word_of_an_earlier_boot_moves_nobody() -> None:
    """An agent that has not spoken in this boot may be fresh by its Lease; its faults are not."""
    tale = a_sick_node(node=a_node(boot_id="boot-2"), pods=(a_pod(),))
    tale.look()
    tale.look()
    assert not disruptions(tale)
    assert "another boot" in tale.status.blocked_by_text
    tale.change(health=a_health(a_fault(boot_id="boot-2"), boot_id="boot-2")).look()
    assert [type(act) for act in disruptions(tale)] == [Evict]


def test_a_machine_that_boots_by_itself_stops_the_drain() -> None:
    """The drain rested on the boot before; it goes on only when the fault is seen in this one."""
    tale = a_sick_node(pods=(a_pod(),))
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    tale.change(node=a_node(boot_id="boot-2", cordon=cordon)).look()
    assert not disruptions(tale)
    drain = tale.status.attempts[-1]
    assert drain.rung is Rung.DRAIN and drain.outcome.result is Result.CANCELLED
    assert tale.status.phase is Phase.BLOCKED
    waiting = a_fault(state=FaultState.AWAITING_PROOF)
    tale.change(health=a_health(waiting, boot_id="boot-2")).look()
    assert not disruptions(tale)
    tale.change(health=a_health(a_fault(boot_id="boot-2"), boot_id="boot-2")).look()
    assert [type(act) for act in disruptions(tale)] == [Evict]


def test_a_machine_that_boots_by_itself_before_its_repair_is_not_rebooted_again() -> None:
    """A drained node whose fault only waits for its proof gets that proof and no second boot."""
    tale = a_sick_node(ruling=enforce(after_drain_deadline=AfterDrainDeadline.HOLD), pods=(a_pod(),))
    tale.look()
    tale.look()
    tale.look(601)
    assert tale.status.phase is Phase.ON_HOLD
    cordon = cordon_of(tale.situation.node)
    waiting = a_fault(state=FaultState.AWAITING_PROOF)
    tale.change(
        node=a_node(boot_id="boot-2", cordon=cordon),
        health=a_health(waiting, boot_id="boot-2"),
        pods=(),
    ).look()
    assert not disruptions(tale)
    tale.change(health=a_health(boot_id="boot-2")).look()
    assert tale.status.phase is Phase.CLOSED


def test_what_an_earlier_node_of_the_name_left_behind_is_not_this_nodes_fault() -> None:
    """A new machine under an old name is judged by its own agent, not by the object of the last one."""
    left = with_uid(a_health(a_fault(FaultClass.HARDWARE_GONE, "xid/64")), "uid-of-the-last-machine")
    step = a_sick_node(health=left).look()
    assert step.open is None and not step.acts


def test_a_checkpoint_of_an_earlier_incident_is_not_the_one_asked_for() -> None:
    """Requests of two incidents never look alike, so an old answer never lets a drain begin."""
    first = a_sick_node(pods=(a_pod(labels=ON_REQUEST),))
    first.look()
    first.look()
    (old,) = first.acts(AskCheckpoint)
    later = a_fault(code="xid/119")
    answered = {
        CHECKPOINT_REQUEST_ANNOTATION: old.request_id,
        CHECKPOINT_DONE_ANNOTATION: old.request_id,
    }
    second = a_sick_node(later, pods=(a_pod(labels=ON_REQUEST, annotations=answered),))
    second.look()
    second.look()
    assert not second.acts(Evict)
    (new,) = second.acts(AskCheckpoint)
    assert new.request_id != old.request_id
    second.look()
    assert not second.acts(Evict) and second.status.phase is Phase.CHECKPOINTING


def test_an_incident_that_was_deleted_and_opened_again_names_new_requests_and_jobs() -> None:
    """Names come from the incident's uid too: what the deleted one left behind is never taken for new."""
    names = set()
    for uid in ("11111111-aaaa", "22222222-bbbb"):
        tale = a_sick_node()
        tale.look()
        incident = tale.situation.incident
        meta = msgspec.structs.replace(incident.metadata, uid=uid)
        tale.change(incident=msgspec.structs.replace(incident, metadata=meta)).look()
        (repair,) = tale.acts(StartRepair)
        names.add(repair.job_name)
    assert len(names) == 2


def test_our_label_on_somebody_elses_pod_does_not_save_it_from_the_drain() -> None:
    """A pod of another namespace is work like any other: a reboot would kill it without asking."""
    tale = a_sick_node(pods=(a_pod(labels={REPAIR_LABEL: "mine"}),))
    tale.look()
    tale.look()
    assert tale.acts(Evict) and not tale.acts(StartRepair)


def failed_pod(namespace: str, job_name: str) -> Pod:
    pod = a_pod("repair", labels={REPAIR_LABEL: job_name})
    ended = ContainerStateTerminated(exit_code=1, message="give me a new machine")
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, namespace=namespace),
        status=PodStatus(
            phase="Failed",
            container_statuses=(ContainerStatus(name="repair", state=ContainerState(terminated=ended)),),
        ),
    )


@pytest.mark.parametrize(("namespace", "believed"), [("ml", False), (SYSTEM_NAMESPACE, True)])
def test_only_our_own_pod_can_say_that_a_reboot_failed(namespace: str, believed: bool) -> None:
    """A pod of another namespace with our label has no voice in what comes next."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    (repair,) = tale.acts(StartRepair)
    tale.change(pods=(failed_pod(namespace, repair.job_name),)).look()
    assert (tale.status.step is Rung.REPLACE) is believed


FORGED = {
    "another node's incident": {"incident": "n2-0123abcd"},
    "no name of an object": {"incident": "n1-0123abcd/../../x"},
    "a name without end": {"incident": "n1-" + "a" * 300},
    "a time without a zone": {"since": "2026-03-01T12:00:00"},
    "an epoch below zero": {"epoch": -1},
    "not an object": [],
    "nested without end": '{"x":' + "[" * 100_000 + "]" * 100_000 + "}",
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_cordon_annotation_is_nonsense(case: str) -> None:
    """Anybody who may annotate a node can write ours; what cannot be ours keeps no sick node in service."""
    good = {
        "incident": "n1-0123abcd",
        "nodeUID": "uid-n1",
        "epoch": 1,
        "class": "RebootCures",
        "reason": "xid/79",
        "since": "2026-03-01T12:00:00Z",
    }
    forged = FORGED[case]
    text = forged if isinstance(forged, str) else json.dumps(good | forged if forged else forged)
    assert cordon_of(a_node(annotations={CORDON_ANNOTATION: json.dumps(good)})) is not None
    node = a_node(annotations={CORDON_ANNOTATION: text})
    assert cordon_of(node) is None
    step = a_sick_node(node=node).look()
    assert step.open is not None and [type(act) for act in step.acts] == [Block]


def test_a_cordon_annotation_with_an_epoch_that_runs_ahead_is_recorded_once() -> None:
    """A forged epoch must not make every look another write."""
    tale = a_sick_node(a_fault(FaultClass.TRANSIENT, "thermal/throttle"))
    tale.look()
    cordon = msgspec.structs.replace(cordon_of(tale.situation.node), epoch=10**12)
    tale.change(node=a_node(cordon=cordon))
    for _ in range(4):
        tale.look()
    blocks = [a for a in tale.status.attempts if a.rung is Rung.BLOCK_NEW_WORK]
    assert len(blocks) == 1


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_hand_over_is_backdated_within_reason(text: str) -> None:
    """When a fault began is a node's word; a time at the end of the calendar must not stop the hand-over."""
    told_at = msgspec.json.decode(f'"{text}"', type=datetime)
    gone = a_fault(FaultClass.HARDWARE_GONE, "xid/64", opened_at=told_at)
    tale = a_sick_node(gone, ruling=enforce(backdate_handover=True))
    tale.look()
    tale.look()
    (hand_over,) = tale.acts(HandOver)
    assert timedelta(0) <= tale.at - hand_over.since <= timedelta(hours=1)
