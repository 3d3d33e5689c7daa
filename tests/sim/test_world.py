"""The players of the simulated world, and the judges: what they do, and that they can say no."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec
import pytest

from outlast.model.cluster import Node
from outlast.model.decision import Cordon
from outlast.model.health import FaultClass
from outlast.model.incident import (
    Attempt,
    End,
    EndResult,
    Incident,
    IncidentSpec,
    IncidentStatus,
    Outcome,
    Phase,
    Result,
)
from outlast.model.names import CORDON_ANNOTATION, REPAIR_LABEL
from outlast.model.policy import REMEDIATION_POLICIES, Rung
from outlast.schema.crds import definitions
from outlast.sim.apiserver import ApiError, Store
from outlast.sim.apiserver.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
)
from outlast.sim.world import objects
from outlast.sim.world.agenda import Agenda
from outlast.sim.world.chronicle import steps
from outlast.sim.world.clock import STALL_MAX_S, PacedClock
from outlast.sim.world.karpenter import TOLERATION_S, Karpenter
from outlast.sim.world.kubelet import Kubelets
from outlast.sim.world.machine import BOOT_S, Machine
from outlast.sim.world.objects import Place
from outlast.sim.world.referee import Referee
from outlast.sim.world.scenario import DEMO, Scenario, Shape, Story, Symptom
from outlast.sim.world.verdict import false_drains, is_over, judge
from tests.unit.web.samples import fault, incident

START = datetime(2026, 11, 30, 12, tzinfo=UTC)
PLACE = Place("rack-a", objects.TRAINING)


class HandClock:
    """Time that a test moves; sleepers are not needed."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed_s)

    def monotonic(self) -> float:
        return self.passed_s

    async def sleep(self, delay_s: float) -> None:
        self.passed_s += max(delay_s, 0.001)


class Switch:
    """Notes which agents run."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.killed: list[str] = []

    def start(self, machine: Machine) -> None:
        self.running.add(machine.name)

    def kill(self, machine: Machine) -> None:
        self.running.discard(machine.name)
        self.killed.append(machine.name)


class Stage:
    """A store with players and no platform; `pass_time` runs everything that is due, in order."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.store = Store(self.clock.now)
        for definition in definitions():
            self.store.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
        self.agenda = Agenda(self.clock)
        self.switch = Switch()
        self.kubelets = Kubelets(self.store, self.agenda, self.clock, Random(1), self.switch)
        self.machines: dict[str, Machine] = {}

    def add_machine(self, name: str = "gpu-001") -> Machine:
        machine = Machine(name, Shape(), self.clock, Random(2))
        self.machines[name] = machine
        self.store.create(NODES, objects.node(machine, Shape(), PLACE, self.clock.now()))
        self.kubelets.join(machine)
        return machine

    def add_pod(self, name: str, node: str, **spec: Any) -> dict[str, Any]:
        if not any(e.name == "work" for e in self.store.entries(NAMESPACES)):
            self.store.create(NAMESPACES, {"metadata": {"name": "work"}})
        labels = spec.pop("labels", {})
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i:1"}], **spec},
        }
        return self.store.create(PODS, body, "work").decode()

    def pass_time(self, seconds: float) -> None:
        until_s = self.clock.passed_s + seconds
        while self.clock.passed_s < until_s:
            self.clock.passed_s += 0.5
            self.agenda.do_what_is_due()

    def pod(self, name: str) -> dict[str, Any] | None:
        try:
            return self.store.get(PODS, name, "work")
        except ApiError:
            return None

    def boot_id(self, name: str = "gpu-001") -> str:
        return str(self.store.get(NODES, name)["status"]["nodeInfo"]["bootID"])

    def ready(self, name: str = "gpu-001") -> str:
        conditions = self.store.get(NODES, name)["status"]["conditions"]
        return str(next(c["status"] for c in conditions if c["type"] == "Ready"))


@pytest.fixture
def stage() -> Stage:
    return Stage()


def repair_pod(stage: Stage, boot_id: str) -> None:
    command = ["outlast", "act", "reboot", "--intent", "i-4", "--if-boot-id", boot_id]
    container = {"name": "repair", "image": "i:1", "command": command}
    stage.add_pod(
        "repair", "gpu-001", restartPolicy="Never", containers=[container], labels={REPAIR_LABEL: "i-4"}
    )


def test_a_pod_starts_runs_and_goes_when_it_is_told(stage: Stage) -> None:
    """A kubelet starts what is bound to its node and acknowledges a graceful deletion."""
    stage.add_machine()
    stage.add_pod("p", "gpu-001")
    stage.pass_time(5)
    pod = stage.pod("p")
    assert pod is not None
    assert pod["status"]["phase"] == "Running"
    stage.store.delete(PODS, "p", "work")
    assert stage.pod("p") is not None
    stage.pass_time(10)
    assert stage.pod("p") is None


def test_a_kubelet_has_a_lease_that_it_renews(stage: Stage) -> None:
    """`kubectl describe node` shows it, as on any cluster."""
    stage.add_machine()

    def renewed() -> str:
        return str(stage.store.get(LEASES, "gpu-001", "kube-node-lease")["spec"]["renewTime"])

    before = renewed()
    stage.pass_time(301)
    assert renewed() > before


def test_a_repair_pod_reboots_its_machine_once(stage: Stage) -> None:
    """The agent dies at once, the node turns Unknown, then it is back with a new boot id and an agent."""
    machine = stage.add_machine()
    stage.pass_time(20)
    before = stage.boot_id()
    repair_pod(stage, before)
    stage.pass_time(5)
    assert stage.switch.killed == ["gpu-001"]
    stage.pass_time(60)
    assert stage.ready() == "Unknown"
    assert stage.boot_id() == before
    stage.pass_time(BOOT_S + 60)
    assert stage.ready() == "True"
    assert stage.boot_id() == machine.boot_id != before
    assert stage.switch.running == {"gpu-001"}
    assert stage.kubelets.reboots["gpu-001"] == 1
    pod = stage.pod("repair")
    assert pod is not None
    assert pod["status"]["phase"] == "Failed"


def test_a_repair_pod_of_an_earlier_boot_does_nothing(stage: Stage) -> None:
    """The boot id is compared before the act: a second run of the same intent ends well and does nothing."""
    stage.add_machine()
    repair_pod(stage, "an-earlier-boot")
    stage.pass_time(BOOT_S + 60)
    assert stage.kubelets.reboots.total() == 0
    pod = stage.pod("repair")
    assert pod is not None
    assert pod["status"]["phase"] == "Succeeded"


def test_a_reboot_brings_back_what_was_stuck_and_not_what_is_dead() -> None:
    """Only the board that is dead falls off the bus again, and says so."""
    machine = Machine("gpu-001", Shape(), HandClock(), Random(1))
    machine.suffer(Symptom.GPU_LOST, 5)
    machine.suffer(Symptom.BOARD_DEAD, 2)
    machine.suffer(Symptom.EFA_LOST, 3)
    assert machine.hardware.off_bus == {machine.gpu(5), machine.gpu(2)}
    machine.reboot()
    machine.driver_is_up()
    assert machine.hardware.off_bus == {machine.gpu(2)}
    assert not machine.hardware.unplugged


@pytest.mark.parametrize(("age_s", "replaced"), [(TOLERATION_S - 30, []), (TOLERATION_S + 30, ["gpu-001"])])
def test_karpenter_replaces_after_its_toleration(stage: Stage, age_s: float, replaced: list[str]) -> None:
    """Not before ten minutes after the condition turned False, and then without asking."""
    launched: list[Place] = []
    for i in range(1, 7):
        stage.add_machine(f"gpu-{i:03d}")
    karpenter = Karpenter(
        stage.store, stage.agenda, stage.clock, terminate=_off(stage), launch=launched.append
    )
    _hand_over(stage, "gpu-001")
    stage.pass_time(age_s)
    assert karpenter.replaced == replaced
    stage.pass_time(300)
    assert len(launched) == 1


def test_karpenter_stops_when_a_fifth_of_the_pool_is_unhealthy(stage: Stage) -> None:
    """Its breaker counts NotReady nodes too; beyond a fifth it replaces nothing."""
    for i in range(1, 5):
        stage.add_machine(f"gpu-{i:03d}")
    karpenter = Karpenter(
        stage.store, stage.agenda, stage.clock, terminate=_off(stage), launch=lambda place: None
    )
    _hand_over(stage, "gpu-001")
    stage.pass_time(TOLERATION_S + 60)
    assert karpenter.replaced == []


def _off(stage: Stage) -> Callable[[str], Place]:
    def terminate(name: str) -> Place:
        stage.kubelets.power_off(stage.machines[name])
        return PLACE

    return terminate


def _hand_over(stage: Stage, name: str) -> None:
    condition = {
        "type": "AcceleratedHardwareReady",
        "status": "False",
        "lastTransitionTime": stage.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
    }

    def mutate(node: dict[str, Any]) -> dict[str, Any]:
        node["status"]["conditions"].append(condition)
        return node

    stage.store.update(NODES, name, mutate, subresource="status")


@pytest.mark.asyncio
async def test_time_stands_still_while_the_loop_is_away() -> None:
    """A stall of a second moves the clock by one bounded step, not by a minute."""
    pace = HandClock()
    clock = PacedClock(60, START, pace)
    pace.passed_s += 1.0
    assert clock.monotonic() <= STALL_MAX_S * 60
    before = clock.monotonic()
    clock.set_rate(120)
    assert clock.monotonic() == pytest.approx(before)
    assert clock.left_out_s == pytest.approx(1.0 - STALL_MAX_S)


def test_a_step_is_told_once(stage: Stage) -> None:
    """The chronicle tells what changed between two states, and no count that merely moves."""
    first = incident("n", Phase.BLOCKED, blocked_by=("storm: 5 nodes newly bad",))
    second = incident("n", Phase.BLOCKED, blocked_by=("storm: 6 nodes newly bad",))
    third = incident("n", Phase.CLOSED, end=EndResult.RETURNED)
    assert steps(None, first)[0].startswith("seen: GPU 5")
    assert "waits: storm: 5 nodes newly bad" in steps(None, first)
    assert steps(first, second) == []
    assert steps(second, third) == ["closed: healthy and back in service"]


def story_of(
    *, end: EndResult | None, rungs: tuple[Rung, ...] = (), never: tuple[Rung, ...] = ()
) -> Scenario:
    happening = msgspec.structs.replace(DEMO.stories[1].happenings[0], node=0)
    story = Story(title="t", happenings=(happening,), end=end, rungs=rungs, never=never)
    return Scenario(minutes=1, shape=Shape(nodes=1), stories=(story,))


def ended(result: EndResult | None, *rungs: Rung) -> Incident:
    attempts = tuple(
        Attempt(
            id=f"{i}-{rung}",
            rung=rung,
            started_at=START,
            because=("x",),
            outcome=Outcome(at=START, result=Result.SUCCEEDED),
        )
        for i, rung in enumerate(rungs)
    )
    return Incident(
        metadata=msgspec.structs.replace(incident("n").metadata, name="n-1"),
        spec=IncidentSpec(node_name="n", node_uid="u", opened_at=START, faults=(fault(),)),
        status=IncidentStatus(
            phase=Phase.CLOSED if result else Phase.DRAINING,
            attempts=attempts,
            end=End(at=START, result=result) if result else None,
        ),
    )


RETURNED = EndResult.RETURNED


@pytest.mark.parametrize(
    ("scenario", "incidents", "complaint"),
    [
        (story_of(end=RETURNED), [ended(RETURNED)], ""),
        (story_of(end=RETURNED), [], "no incident"),
        (story_of(end=RETURNED), [ended(None)], "still open"),
        (story_of(end=RETURNED), [ended(EndResult.REPLACED)], "ended Replaced"),
        (story_of(end=None), [ended(RETURNED)], "was opened"),
        (story_of(end=None), [], ""),
        (
            story_of(end=RETURNED, rungs=(Rung.DRAIN, Rung.REBOOT)),
            [ended(RETURNED, Rung.REBOOT)],
            "not taken",
        ),
        (story_of(end=RETURNED, never=(Rung.DRAIN,)), [ended(RETURNED, Rung.DRAIN)], "was taken"),
    ],
)
def test_a_story_with_a_wrong_end_is_not_ok(
    scenario: Scenario, incidents: list[Incident], complaint: str
) -> None:
    """The verdict that decides the demo's exit code says what is wrong."""
    (verdict,) = judge(scenario, ("n",), incidents)
    assert verdict.ok is not bool(complaint)
    assert complaint in " ".join(verdict.problems)


def test_a_drain_that_no_story_asks_for_is_a_false_drain() -> None:
    """Moving work off a node that has no drain in its story is counted, whatever came of it."""
    drained = [ended(RETURNED, Rung.BLOCK_NEW_WORK, Rung.DRAIN)]
    assert false_drains(story_of(end=RETURNED), ("n",), drained) == ("n-1",)
    assert false_drains(story_of(end=RETURNED, rungs=(Rung.DRAIN,)), ("n",), drained) == ()


def test_a_cordon_that_is_left_behind_is_no_end() -> None:
    """The stories are over only when every node takes work again."""
    machine = Machine("n", Shape(), HandClock(), Random(1))
    body = objects.node(machine, Shape(), PLACE, START)
    free = msgspec.convert(msgspec.json.decode(msgspec.json.encode(body)), Node, strict=False)
    body["metadata"]["annotations"] = {CORDON_ANNOTATION: "{}"}
    held = msgspec.convert(msgspec.json.decode(msgspec.json.encode(body)), Node, strict=False)
    assert is_over(story_of(end=RETURNED), ("n",), [ended(RETURNED)], {"n": free})
    assert not is_over(story_of(end=RETURNED), ("n",), [ended(RETURNED)], {"n": held})
    assert not is_over(story_of(end=RETURNED), ("n",), [], {"n": free})


def test_the_referee_sees_a_budget_that_is_passed(stage: Stage) -> None:
    """Two of two nodes blocked under a limit of one is found at the very change that does it."""
    policy = objects.policy()
    policy["spec"]["budgets"] |= {"maxUnavailable": 1, "maxUnavailablePercent": 100}
    stage.store.create(REMEDIATION_POLICIES, policy)
    referee = Referee(stage.store, stage.kubelets)

    def block(node: dict[str, Any]) -> dict[str, Any]:
        meta = node["metadata"]
        cordon = Cordon(
            incident=f"{meta['name']}-0a1b2c3d",
            node_uid=meta["uid"],
            epoch=1,
            fault_class=FaultClass.REBOOT_CURES,
            reason="xid/79",
            since=START,
        )
        node["spec"]["unschedulable"] = True
        meta.setdefault("annotations", {})[CORDON_ANNOTATION] = cordon.to_annotation()
        return node

    stage.add_machine("gpu-001")
    stage.add_machine("gpu-002")
    stage.store.update(NODES, "gpu-001", block)
    assert not [v for v in referee.violations if "budgets_hold" in v]
    stage.store.update(NODES, "gpu-002", block)
    assert [v for v in referee.violations if "budgets_hold" in v]
