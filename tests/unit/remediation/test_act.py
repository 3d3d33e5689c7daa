"""The only writer: what it sends, and how it takes the answers. On the embedded store, without a wire."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from outlast.model.cluster import JOBS as JOB_KIND
from outlast.model.cluster import NODES as NODE_KIND
from outlast.model.decision import (
    Block,
    Cordon,
    Evict,
    HandOver,
    PodRef,
    Release,
    RemoveRepair,
    StartRepair,
    StopRepair,
    TakeBack,
)
from outlast.model.health import FaultClass
from outlast.model.incident import INCIDENTS, IncidentSpec, IncidentStatus, NextStep, Phase
from outlast.model.names import ACCELERATED_HARDWARE_READY, CORDON_ANNOTATION, DO_NOT_DISRUPT_ANNOTATION
from outlast.model.policy import Rung
from outlast.ports.cluster import Conflict
from outlast.remediation.act import Fenced, Performer, RepairOptions, Result
from outlast.remediation.act.incidents import open_incident, status_body, write_status
from outlast.remediation.act.pods import Refusal, evict
from outlast.schema.crds import definitions
from outlast.sim.apiserver import Store, Writer
from outlast.sim.apiserver.controllers import Controllers
from outlast.sim.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, JOBS, NAMESPACES, NODES, PDBS, PODS
from outlast.sim.direct import DirectCluster, Operation
from tests.sim.playground import AlwaysLeader, Notes
from tests.unit.remediation.builders import START, a_fault

MERGE = "application/merge-patch+json"
HUMAN = Writer(manager="kubectl-cordon")
SYSTEM = "outlast-system"


class StillClock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now(self) -> datetime:
        return START

    def monotonic(self) -> float:
        return self.at_s

    async def sleep(self, delay_s: float) -> None:
        self.at_s += delay_s


class Desk:
    """A store with one node, and a performer that writes to it."""

    def __init__(self) -> None:
        self.store = Store(lambda: datetime(2026, 3, 1, tzinfo=UTC))
        for definition in definitions():
            self.store.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
        for namespace in (SYSTEM, "ml"):
            self.store.create(NAMESPACES, {"metadata": {"name": namespace}})
        self.uid = self.store.create(NODES, self._node({"node.alpha.kubernetes.io/ttl": "0"})).uid
        self.clock, self.notes, self.fence = StillClock(), Notes(), AlwaysLeader()
        self.sent: list[Operation] = []
        self.cluster = DirectCluster(self.store, gate=self._see)
        self.performer = Performer(
            self.cluster, fence=self.fence, recorder=self.notes, clock=self.clock, repair=RepairOptions()
        )
        self.controllers = Controllers(self.store)

    @staticmethod
    def _node(annotations: dict[str, str] | None) -> dict[str, Any]:
        """A Node as a server stores it: kubelets leave an annotation, and spec is never absent."""
        meta: dict[str, Any] = {"name": "n1"}
        if annotations is not None:
            meta["annotations"] = annotations
        return {"metadata": meta, "spec": {}}

    def bare(self) -> None:
        """A Node that nobody has annotated."""
        self.store.delete(NODES, "n1")
        self.uid = self.store.create(NODES, self._node(None)).uid

    async def _see(self, operation: Operation) -> None:
        if operation.writes and not operation.done:
            self.sent.append(operation)

    def node(self) -> dict[str, Any]:
        return self.store.get(NODES, "n1")

    def human(self, body: dict[str, Any]) -> None:
        self.store.patch(NODES, "n1", MERGE, body, writer=HUMAN)

    def block(self, incident: str = "n1-00000001", prior: str | None = None) -> Block:
        cordon = Cordon(
            incident=incident,
            node_uid=self.uid,
            epoch=1,
            fault_class=FaultClass.REBOOT_CURES,
            reason="xid/79",
            since=START,
            prior_do_not_disrupt=prior,
        )
        return Block(node="n1", node_uid=self.uid, cordon=cordon)

    def release(self, incident: str = "n1-00000001") -> Release:
        return Release(node="n1", node_uid=self.uid, incident=incident)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.asyncio
async def test_a_block_is_one_write_with_everything_in_it(desk: Desk) -> None:
    """Cordon, annotation and do-not-disrupt arrive together or not at all."""
    acted = await desk.performer.perform(desk.block())
    assert acted.result is Result.DONE and len(desk.sent) == 1
    node = desk.node()
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["annotations"][DO_NOT_DISRUPT_ANNOTATION] == "true"
    assert '"incident":"n1-00000001"' in node["metadata"]["annotations"][CORDON_ANNOTATION]


@pytest.mark.asyncio
async def test_a_node_without_annotations_is_blocked_too(desk: Desk) -> None:
    """A JSON Patch cannot add to a map that is not there, so a second one brings the map."""
    desk.bare()
    assert (await desk.performer.perform(desk.block())).result is Result.DONE
    assert desk.node()["spec"]["unschedulable"] is True
    assert CORDON_ANNOTATION in desk.node()["metadata"]["annotations"]


@pytest.mark.asyncio
async def test_a_block_whose_answer_was_lost_is_found_done(desk: Desk) -> None:
    """The same block again is not an error and not another write that counts."""
    await desk.performer.perform(desk.block())
    before = desk.node()
    assert (await desk.performer.perform(desk.block())).result is Result.DONE
    assert desk.node() == before


@pytest.mark.asyncio
async def test_a_block_never_takes_over_a_humans_cordon(desk: Desk) -> None:
    """Their cordon, not ours: no annotation appears."""
    desk.human({"spec": {"unschedulable": True}})
    assert (await desk.performer.perform(desk.block())).result is Result.LOOK_AGAIN
    assert CORDON_ANNOTATION not in desk.node()["metadata"].get("annotations", {})


@pytest.mark.asyncio
async def test_a_block_never_hits_another_node_of_that_name(desk: Desk) -> None:
    """The uid decides, not the name."""
    act = msgspec.structs.replace(desk.block(), node_uid="gone")
    assert (await desk.performer.perform(act)).result is Result.LOOK_AGAIN
    assert "unschedulable" not in desk.node().get("spec", {})


@pytest.mark.asyncio
async def test_a_release_leaves_nothing_of_ours_and_all_of_others(desk: Desk) -> None:
    """What was there before us is there after us."""
    desk.human({"metadata": {"annotations": {DO_NOT_DISRUPT_ANNOTATION: "false", "team": "ml"}}})
    await desk.performer.perform(desk.block(prior="false"))
    await desk.performer.perform(desk.release())
    node = desk.node()
    assert "unschedulable" not in node.get("spec", {})
    assert node["metadata"]["annotations"] == {
        DO_NOT_DISRUPT_ANNOTATION: "false",
        "team": "ml",
        "node.alpha.kubernetes.io/ttl": "0",
    }
    assert "NewWorkAllowed" in desk.notes.reasons()


@pytest.mark.asyncio
async def test_a_block_remembers_the_mark_that_stands_there_now(desk: Desk) -> None:
    """Decided on an old picture it would later remove what somebody else set: it loses and looks again."""
    desk.human({"metadata": {"annotations": {DO_NOT_DISRUPT_ANNOTATION: "true"}}})
    acted = await desk.performer.perform(desk.block(prior=None))
    assert acted.result is Result.LOOK_AGAIN and "unschedulable" not in desk.node()["spec"]
    assert acted.node.metadata.annotations[DO_NOT_DISRUPT_ANNOTATION] == "true"


@pytest.mark.asyncio
@pytest.mark.parametrize("word", ["false", None])
async def test_a_release_leaves_a_mark_that_others_changed_meanwhile(desk: Desk, word: str | None) -> None:
    """Only the value we wrote is ours to take back."""
    await desk.performer.perform(desk.block(prior=None))
    desk.human({"metadata": {"annotations": {DO_NOT_DISRUPT_ANNOTATION: word}}})
    await desk.performer.perform(desk.release())
    assert desk.node()["metadata"]["annotations"].get(DO_NOT_DISRUPT_ANNOTATION) == word
    assert "unschedulable" not in desk.node()["spec"]


@pytest.mark.asyncio
async def test_a_release_of_another_incident_changes_nothing(desk: Desk) -> None:
    """A late release must not undo a newer block."""
    await desk.performer.perform(desk.block("n1-00000002"))
    before = desk.node()
    await desk.performer.perform(desk.release("n1-00000001"))
    assert desk.node() == before


@pytest.mark.asyncio
async def test_a_cordon_that_passed_to_a_human_is_kept(desk: Desk) -> None:
    """Only our own marks go, and the node is told so."""
    await desk.performer.perform(desk.block())
    desk.human({"spec": {"unschedulable": None}})
    desk.human({"spec": {"unschedulable": True}})
    await desk.performer.perform(desk.release())
    node = desk.node()
    assert node["spec"]["unschedulable"] is True
    assert CORDON_ANNOTATION not in node["metadata"].get("annotations", {})
    assert "CordonKept" in desk.notes.reasons()


@pytest.mark.asyncio
async def test_a_hand_over_keeps_its_time_however_often_it_is_written(desk: Desk) -> None:
    """A fresh transition time on each write would postpone the replacement for ever."""
    act = HandOver(node="n1", node_uid=desk.uid, message="broken", since=START)
    await desk.performer.perform(act)
    first = desk.node()["status"]["conditions"]
    await desk.performer.perform(act)
    assert desk.node()["status"]["conditions"] == first
    assert first[0]["lastTransitionTime"] == "2026-03-01T12:00:00Z"


@pytest.mark.asyncio
async def test_a_hand_over_never_overwrites_another_owner(desk: Desk) -> None:
    """Two writers of one condition would flip it for ever."""
    foreign = {"type": ACCELERATED_HARDWARE_READY, "status": "True", "reason": "NvidiaHealthy"}
    desk.store.patch(
        NODES,
        "n1",
        "application/strategic-merge-patch+json",
        {"status": {"conditions": [foreign]}},
        subresource="status",
    )
    await desk.performer.perform(HandOver(node="n1", node_uid=desk.uid, message="x", since=START))
    await desk.performer.perform(TakeBack(node="n1", node_uid=desk.uid, message="x", since=START))
    (condition,) = desk.node()["status"]["conditions"]
    assert condition["reason"] == "NvidiaHealthy"


class BetweenReadAndWrite(DirectCluster):
    """Something happens after a node was read and before the write that rests on it."""

    def __init__(self, desk: Desk, event: Callable[[], None]) -> None:
        super().__init__(desk.store, gate=desk._see)
        self.event = event

    async def get(self, kind: Any, name: str, namespace: str = "") -> Any:
        read = await super().get(kind, name, namespace)
        self.event()
        return read


@pytest.mark.asyncio
async def test_an_owner_who_appears_before_the_hand_over_is_not_overwritten(desk: Desk) -> None:
    """The condition is written against the version that was looked at."""
    foreign = {"type": ACCELERATED_HARDWARE_READY, "status": "True", "reason": "NvidiaHealthy"}
    events = [foreign]

    def appears() -> None:
        while events:
            body = {"status": {"conditions": [events.pop()]}}
            strategic = "application/strategic-merge-patch+json"
            desk.store.patch(NODES, "n1", strategic, body, subresource="status")

    cluster = BetweenReadAndWrite(desk, appears)
    performer = Performer(cluster, fence=desk.fence, recorder=desk.notes, clock=desk.clock)
    acted = await performer.perform(HandOver(node="n1", node_uid=desk.uid, message="x", since=START))
    assert acted.result is Result.LOOK_AGAIN
    (condition,) = desk.node()["status"]["conditions"]
    assert condition["reason"] == "NvidiaHealthy"


@pytest.mark.asyncio
@pytest.mark.parametrize("act", ["release", "hand over", "stop"])
async def test_a_fence_that_closes_between_two_requests_stops_the_second(desk: Desk, act: str) -> None:
    """A read may take longer than the lease lasts, so it is asked before each write and not once an act."""
    await desk.performer.perform(desk.block())
    acts = {
        "release": desk.release(),
        "hand over": HandOver(node="n1", node_uid=desk.uid, message="x", since=START),
        "stop": stop(),
    }

    def closes() -> None:
        desk.fence.open = False

    cluster: DirectCluster = BetweenReadAndWrite(desk, closes)
    if act == "stop":

        async def refused(operation: Operation) -> None:
            desk.sent.append(operation)
            closes()

        cluster = DirectCluster(desk.store, gate=refused)
    performer = Performer(cluster, fence=desk.fence, recorder=desk.notes, clock=desk.clock)
    desk.sent.clear()
    with pytest.raises(Fenced):
        await performer.perform(acts[act])
    assert len(desk.sent) == (act == "stop"), "only the request that found no Job"


def start(**changes: Any) -> StartRepair:
    return StartRepair(
        **{
            "job_name": "outlast-i1-3",
            "incident": "n1-00000001",
            "intent_id": "3-Reboot",
            "node": "n1",
            "node_uid": "u",
            "boot_id": "boot-1",
            "critical": True,
            **changes,
        }
    )


def stop() -> StopRepair:
    plain = msgspec.structs.asdict(start())
    del plain["critical"]
    return StopRepair(**plain)


@pytest.mark.asyncio
async def test_a_repair_job_fits_a_sick_and_cordoned_node(desk: Desk) -> None:
    """It tolerates everything, asks for next to nothing, runs there only, once, with the guard."""
    await desk.performer.perform(start())
    spec = desk.store.get(JOBS, "outlast-i1-3", SYSTEM)["spec"]
    pod = spec["template"]["spec"]
    assert spec["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
    assert "nodeName" not in pod and pod["tolerations"] == [{"operator": "Exists"}]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["n1"]
    assert pod["containers"][0]["command"][-2:] == ["--if-boot-id", "boot-1"]
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["serviceAccountName"] == "outlast-repair"


@pytest.mark.asyncio
async def test_a_job_on_an_occupied_node_takes_nobodys_place(desk: Desk) -> None:
    """System priority preempts, so it is for drained nodes only."""
    await desk.performer.perform(start(critical=False))
    assert "priorityClassName" not in desk.store.get(JOBS, "outlast-i1-3", SYSTEM)["spec"]["template"]["spec"]


@pytest.mark.asyncio
async def test_a_second_start_of_an_intent_is_no_second_job(desk: Desk) -> None:
    """The name is the intent."""
    await desk.performer.perform(start())
    first = desk.store.get(JOBS, "outlast-i1-3", SYSTEM)
    await desk.performer.perform(start())
    assert desk.store.get(JOBS, "outlast-i1-3", SYSTEM) == first


@pytest.mark.asyncio
@pytest.mark.parametrize("before", [True, False])
async def test_a_stopped_intent_never_starts(desk: Desk, before: bool) -> None:
    """Whether its Job exists or not yet: the name is taken by one that is suspended."""
    if before:
        await desk.performer.perform(start())
    await desk.performer.perform(stop())
    await desk.performer.perform(start())
    assert desk.store.get(JOBS, "outlast-i1-3", SYSTEM)["spec"]["suspend"] is True
    desk.controllers.settle()
    assert list(desk.store.entries(PODS, SYSTEM)) == []


@pytest.mark.asyncio
async def test_removing_a_job_that_is_gone_is_done(desk: Desk) -> None:
    """The wanted state holds already."""
    assert (await desk.performer.perform(RemoveRepair(job_name="never"))).result is Result.DONE


@pytest.mark.asyncio
async def test_a_closed_fence_sends_nothing(desk: Desk) -> None:
    """Not even the first byte."""
    desk.fence.open = False
    for act in (desk.block(), desk.release(), start(), stop(), RemoveRepair(job_name="x")):
        with pytest.raises(Fenced):
            await desk.performer.perform(act)
    assert desk.sent == []


def pods(desk: Desk, *names: str) -> tuple[PodRef, ...]:
    refs = []
    for name in names:
        spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}
        body = {"metadata": {"name": name, "labels": {"app": "web"}}, "spec": spec}
        uid = desk.store.create(PODS, body, "ml").uid
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        desk.store.patch(PODS, name, MERGE, {"status": ready}, "ml", subresource="status")
        refs.append(PodRef(namespace="ml", name=name, uid=uid))
    return tuple(refs)


@pytest.mark.asyncio
async def test_one_blocked_budget_is_asked_once_in_a_while_for_all_its_pods(desk: Desk) -> None:
    """Ten pods behind one budget are one try per five seconds, and every pod knows why it waits."""
    refs = pods(desk, *(f"p{i}" for i in range(10)))
    spec = {"minAvailable": 10, "selector": {"matchLabels": {"app": "web"}}}
    desk.store.create(PDBS, {"metadata": {"name": "web"}, "spec": spec}, "ml")
    desk.controllers.settle()
    act = Evict(pods=refs)
    first = (await desk.performer.perform(act, {})).refusals
    assert first is not None and len(first) == 10
    tries = len(desk.sent)
    desk.clock.at_s = 2
    second = (await desk.performer.perform(act, first)).refusals
    assert len(desk.sent) == tries and len(second) == 10
    desk.clock.at_s = 6
    third = (await desk.performer.perform(act, second)).refusals
    assert len(desk.sent) == tries + 1 and len(third) == 10
    assert all("web" in refusal.why for refusal in third.values())


@pytest.mark.asyncio
async def test_when_a_budget_gives_way_the_rest_follows(desk: Desk) -> None:
    """After one success the others need not wait out their spacing."""
    refs = pods(desk, "a", "b", "c")
    before = {ref.uid: Refusal("budget web", 0.0) for ref in refs}
    left = await evict(desk.cluster, Evict(pods=refs), before, lambda: 6.0, lambda: None)
    assert left == {} and len(desk.sent) == 3


@pytest.mark.asyncio
async def test_a_record_is_written_against_what_it_was_decided_from(desk: Desk) -> None:
    """A stale writer is refused, and what a record leaves out is removed."""
    spec = IncidentSpec(node_name="n1", node_uid=desk.uid, opened_at=START, faults=(a_fault(),))
    opened = await open_incident(desk.cluster, "n1-00000001", spec)
    assert (await open_incident(desk.cluster, "n1-00000001", spec)).metadata.uid == opened.metadata.uid
    step = NextStep(rung=Rung.DRAIN, at=START, message="later")
    waiting = await write_status(desk.cluster, opened, IncidentStatus(blocked_by=("a limit",), next=step))
    with pytest.raises(Conflict):
        await write_status(desk.cluster, opened, IncidentStatus())
    moved = await write_status(
        desk.cluster, waiting, IncidentStatus(phase=Phase.DRAINING, next=NextStep(rung=Rung.DRAIN))
    )
    assert moved.status.blocked_by == () and moved.status.next == NextStep(rung=Rung.DRAIN)
    assert moved.spec == spec


def test_what_kubectl_shows_is_always_written() -> None:
    """Defaults are left out on the wire, but a column must not be empty."""
    body = status_body(IncidentStatus())
    assert (body["phase"], body["step"], body["epoch"]) == ("Blocked", "BlockNewWork", 0)


def test_the_kinds_are_the_models() -> None:
    """The tests look at the same collections as the writer."""
    assert (NODE_KIND.plural, JOB_KIND.plural, INCIDENTS.plural) == ("nodes", "jobs", "incidents")
