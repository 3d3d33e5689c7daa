"""The explain page says what the objects say."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from outlast.model.cluster import Condition, NodeStatus, ObjectMeta
from outlast.model.decision import cordon_of
from outlast.model.health import Evidence, FaultClass
from outlast.model.names import HOLD_ANNOTATION
from outlast.model.policy import Mode, RemediationPolicy, RemediationPolicySpec
from outlast.remediation.explain import explain, span, state_of
from outlast.remediation.page import State
from tests.unit.remediation.builders import (
    OBSERVE,
    START,
    a_fault,
    a_health,
    a_node,
    a_pod,
    a_sick_node,
    after,
)

POLICY = RemediationPolicy(metadata=ObjectMeta(name="gpu"), spec=RemediationPolicySpec(mode=Mode.ENFORCE))


def page_of(tale, policy=POLICY):
    s = tale.situation
    return explain(s.incident, s.node, s.health, policy, s.pods, tale.at)


def test_a_draining_node_is_told_as_it_stands() -> None:
    """What, what was done with the delay, why, what blocks, what is next, how to overrule."""
    seen = (
        Evidence(at=START, source="kernel log", text="NVRM: Xid (PCI:0000:b3:00): 79"),
        Evidence(at=after(0.5), source="NVML", text="7 of 8 GPUs enumerate"),
    )
    fault = msgspec.structs.replace(a_fault(), evidence=seen)
    tale = a_sick_node(fault, pods=(a_pod(),))
    tale.look(0.092)
    tale.look()
    tale.change(refusals={"uid-train-0": "PodDisruptionBudget web/api allows 0 disruptions"}).look()
    page = page_of(tale)
    assert page.state is State.DRAINING and not page.in_service
    assert page.headline == "OUT OF SERVICE, draining (step 3 of 6)"
    assert any(line.head == "NVML" and line.remark == "confirms" for line in page.happened)
    assert page.did[0].head == "blocked new work" and page.did[0].remark == "92 ms after detection"
    assert any("0 of 1 pods moved" in line.text for line in page.did)
    assert "web/api" in page.blocked_by[0].head
    assert page.next[0].at is not None
    assert [command.rsplit(" --reason")[0] for command in page.overrule] == [
        "outlast hold n1",
        f"outlast cancel {tale.situation.incident.metadata.name}",
        "kubectl uncordon n1",
    ]
    assert page.pods[0].head == "ml/train-0" and page.pods[0].bad


def test_a_closed_incident_tells_its_end_and_its_length() -> None:
    """After the return the page is the report: outcomes, end, total time, nothing to overrule."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    tale.change(node=a_node(boot_id="boot-2", cordon=cordon), health=a_health(boot_id="boot-2")).look(200)
    tale.change(node=a_node(boot_id="boot-2"))
    page = page_of(tale)
    assert page.in_service and page.ended_at is not None and not page.overrule
    assert "Returned" in page.did[-1].text and page.did[-1].remark.endswith("in all")
    assert [m.name for m in page.timeline] == ["detect", "drain", "repair", "verify"]
    assert all(m.ended_at is not None and m.ended_at >= m.started_at for m in page.timeline)


def test_the_fault_is_told_once() -> None:
    """Under "what happened", and not again with each thing that was done because of it."""
    tale = a_sick_node(pods=(a_pod(),))
    tale.look()
    tale.look()
    page = page_of(tale)
    summary = a_fault().summary
    assert sum(summary in line.text for line in page.happened) == 1
    assert not any(summary in line.text for line in (*page.did, *page.why))


def test_the_spans_of_a_replaced_machine_do_not_overlap() -> None:
    """Reboot, its check, and the hand-over follow each other on the timeline."""
    tale = a_sick_node()
    tale.look()
    tale.look()
    cordon = cordon_of(tale.situation.node)
    again = a_fault(boot_id="boot-2")
    back = {"node": a_node(boot_id="boot-2", cordon=cordon), "health": a_health(boot_id="boot-2")}
    tale.change(**{**back, "health": a_health(boot_id="boot-2", checked=False)}).look(60)
    tale.change(health=a_health(again, boot_id="boot-2")).look(60)
    page = page_of(tale)
    assert [m.name for m in page.timeline] == ["detect", "drain", "repair", "verify", "replace"]
    for before, after_it in zip(page.timeline[1:], page.timeline[2:], strict=False):
        assert before.ended_at is not None and before.ended_at <= after_it.started_at


def test_an_observed_node_is_told_what_would_be_done() -> None:
    """In service, sick, and the one command that lets outlast act."""
    tale = a_sick_node(ruling=OBSERVE)
    tale.look()
    tale.look()
    policy = RemediationPolicy(metadata=ObjectMeta(name="gpu"))
    page = page_of(tale, policy)
    assert page.observe_only and page.in_service and page.state is State.WATCHED
    assert any("would block new work" in line.text for line in page.why)
    assert "Enforce" in page.overrule[0]


def test_a_hung_monitor_is_told_why_nothing_more_is_done() -> None:
    """Unknown never drains, and the page says that in words."""
    tale = a_sick_node(a_fault(FaultClass.MONITOR_HUNG, "nvml/hung"))
    tale.look()
    tale.look()
    page = page_of(tale)
    assert any("second witness" in line.text for line in (*page.why, *page.blocked_by))


def test_a_healthy_node_has_a_short_page() -> None:
    """No incident, no story."""
    page = explain(None, a_node(), a_health(), POLICY, None, START)
    assert page.state is State.HEALTHY and page.headline == "IN SERVICE, healthy" and not page.did


def test_a_held_node_says_who_holds_it_and_how_to_let_it_go() -> None:
    """A hold on a node without an incident is the whole story of that node."""
    held = a_node(annotations={HOLD_ANNOTATION: "firmware test"})
    page = explain(None, held, a_health(), POLICY, None, START)
    assert page.state is State.ON_HOLD and page.headline == "IN SERVICE, on hold"
    assert any("firmware test" in line.text for line in page.why)
    assert page.overrule == (f"kubectl annotate node {held.metadata.name} {HOLD_ANNOTATION}-",)


def test_a_node_that_is_down_is_not_called_in_service() -> None:
    """Without an incident the kubelet's word still counts."""
    down = Condition(type="Ready", status="Unknown", reason="NodeStatusUnknown")
    lost = msgspec.structs.replace(a_node(), status=NodeStatus(conditions=(down,)))
    page = explain(None, lost, a_health(), POLICY, None, START)
    assert page.state is State.UNKNOWN and page.headline.startswith("NOT READY")


def test_a_sick_node_without_a_policy_says_so() -> None:
    """Nothing is done because nobody asked for it, which a reader must be told."""
    page = explain(None, a_node(), a_health(a_fault()), None, None, START)
    assert any("no RemediationPolicy" in line.text for line in page.why)


def test_no_agent_is_unknown_not_healthy() -> None:
    """Silence is not health."""
    assert state_of(None, a_node(), None) is State.UNKNOWN


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.092, "92 ms"), (12, "12 s"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (300000, "3 days")],
)
def test_spans_read_like_people_say_them(seconds: float, text: str) -> None:
    """Milliseconds matter after detection, days in the past."""
    assert span(timedelta(seconds=seconds)) == text
