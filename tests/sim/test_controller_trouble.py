"""Storms, budgets, people and hostile API servers, on virtual time."""

from __future__ import annotations

from random import Random

import pytest

from outlast.model.health import FaultClass
from outlast.model.incident import EndResult, Phase
from outlast.model.names import CANCEL_ANNOTATION
from outlast.model.policy import Budgets, Mode, RemediationPolicySpec
from outlast.ports.cluster import ClusterError, Conflict, Unavailable
from outlast.sim.apiserver import Writer
from outlast.sim.apiserver.resources import NODES
from outlast.sim.checkers import ALWAYS, AT_THE_END, scene_of, violations
from outlast.sim.direct import Operation
from outlast.sim.virtual_time import run_virtual
from tests.sim.playground import MERGE, Playground, running

PASSING = (FaultClass.TRANSIENT, FaultClass.MONITOR_HUNG, FaultClass.APPLICATION)
HUMAN = Writer(manager="kubectl-cordon")


def policy_of(**spec: object) -> RemediationPolicySpec:
    return RemediationPolicySpec(mode=Mode.ENFORCE, **spec)  # type: ignore[arg-type]


async def watch(ground: Playground, policy: RemediationPolicySpec, what: str = "") -> None:
    """Check the invariants every few seconds, for ever."""
    while True:
        scene = scene_of(ground.store, policy)
        scene.reboots = {m.name: m.reboots for m in ground.machines.values()}
        scene.evicted = list(ground.evicted)
        assert violations(scene) == [], what
        await ground.clock.sleep(2.0)


def phases(ground: Playground) -> dict[str, Phase]:
    return {i.spec.node_name: i.status.phase for i in ground.incidents()}


def test_budgets_hold_while_many_nodes_fail_one_by_one() -> None:
    """Never more blocked or under repair than allowed; all come back in the end."""
    policy = policy_of(budgets=Budgets(max_unavailable_percent=20, max_repairs_in_flight=2))

    async def main() -> None:
        ground = Playground()
        ground.add_policy(budgets={"maxUnavailablePercent": 20, "maxRepairsInFlight": 2}, storm={"nodes": 99})
        for index in range(20):
            ground.add_machine(f"n{index:02d}")
        async with running(ground.live(), ground.controller().run(), watch(ground, policy)):
            await ground.clock.sleep(15)
            for index in range(8):
                ground.break_down(f"n{index:02d}")
                await ground.clock.sleep(3)
            await ground.until(
                lambda: len(ground.incidents()) == 8 and set(phases(ground).values()) == {Phase.CLOSED}
            )
        assert [m.reboots for m in ground.machines.values()].count(1) == 8

    run_virtual(main())


def test_a_storm_stops_repairs_and_its_end_lets_them_go_on() -> None:
    """A rack falls at once: everything is blocked up to the cap, nothing is drained until it is over."""

    async def main() -> None:
        ground = Playground()
        ground.add_policy(
            budgets={"maxUnavailablePercent": 100, "maxRepairsInFlight": 10},
            storm={"nodes": 5, "windowSeconds": 600},
        )
        for index in range(10):
            ground.add_machine(f"n{index}")
        async with running(ground.live(), ground.controller().run()):
            await ground.clock.sleep(15)
            for index in range(6):
                ground.break_down(f"n{index}")
            await ground.until(lambda: len(ground.incidents()) == 6, 30)
            await ground.clock.sleep(300)
            stormy = [i for i in ground.incidents() if "storm" in i.status.blocked_by_text]
            started = sum(m.reboots for m in ground.machines.values())
            assert len(stormy) >= 6 - 4 and started <= 4, "only what began before the fifth fell goes on"
            (policy,) = ground.policies()
            assert any(c.type == "Storm" and c.status == "True" for c in policy.status.conditions)
            await ground.until(lambda: set(phases(ground).values()) == {Phase.CLOSED})
        assert [ground.machines[f"n{i}"].reboots for i in range(6)] == [1] * 6

    run_virtual(main())


def test_a_restart_of_the_controller_does_not_forget_a_storm() -> None:
    """The storm is read from the incidents, so another replica sees it too."""

    async def main() -> None:
        ground = Playground()
        ground.add_policy(
            budgets={"maxUnavailablePercent": 100, "maxRepairsInFlight": 10},
            storm={"nodes": 3, "windowSeconds": 3600},
        )
        for index in range(6):
            ground.add_machine(f"n{index}")
            ground.add_pod(f"p{index}", f"n{index}")
        ground.add_budget("all", "none", 1)
        async with running(ground.live()):
            await ground.clock.sleep(15)
            for index in range(4):
                ground.break_down(f"n{index}")
            async with running(ground.controller().run()):
                await ground.until(lambda: len(ground.incidents()) == 4, 30)
                await ground.clock.sleep(200)
                before = sum(m.reboots for m in ground.machines.values())
            async with running(ground.controller().run()):
                await ground.clock.sleep(600)
                assert sum(m.reboots for m in ground.machines.values()) == before < 4

    run_virtual(main())


def test_a_budget_of_pods_is_respected_until_it_gives_way() -> None:
    """The guarded pod stays, its budget is named, and the story goes on when the budget allows it."""

    async def main() -> None:
        ground = Playground()
        ground.add_policy()
        for index in range(4):
            ground.add_machine(f"n{index}")
        ground.add_pod("guarded", "n1", labels={"app": "web"})
        ground.add_budget("web", "web", 1)
        async with running(ground.live(), ground.controller().run()):
            await ground.clock.sleep(15)
            ground.break_down("n1")
            await ground.clock.sleep(60)
            (incident,) = ground.incidents()
            assert "web" in incident.status.blocked_by_text and "guarded" in incident.status.blocked_by_text
            assert ground.evicted == []
            ground.add_pod("spare", "n2", labels={"app": "web"})
            await ground.until(lambda: phases(ground)["n1"] is Phase.CLOSED)
        assert ground.evicted == ["guarded"]

    run_virtual(main())


def test_a_human_uncordons_and_is_obeyed() -> None:
    """The incident ends, the marks go, and the same fault opens no new case."""

    async def main() -> None:
        ground = Playground()
        ground.add_policy()
        ground.add_machine("n0")
        async with running(ground.live(), ground.controller().run()):
            await ground.clock.sleep(15)
            ground.break_down("n0", FaultClass.TRANSIENT, "thermal/throttle")
            await ground.clock.sleep(5)
            assert ground.node("n0")["spec"]["unschedulable"]
            ground.store.patch(NODES, "n0", MERGE, {"spec": {"unschedulable": None}}, writer=HUMAN)
            await ground.until(lambda: phases(ground)["n0"] is Phase.CLOSED, 10)
            await ground.clock.sleep(600)
            (incident,) = ground.incidents()
            assert incident.status.end.result is EndResult.CANCELLED_BY_HUMAN
            assert "unschedulable" not in ground.node("n0")["spec"]
            assert "outlast.dev/cordon" not in ground.node("n0")["metadata"].get("annotations", {})

    run_virtual(main())


def test_a_cordon_that_passed_to_a_human_stays() -> None:
    """Uncordon and cordon again between two looks: the field has another owner now."""

    async def main() -> None:
        ground = Playground()
        ground.add_policy()
        ground.add_machine("n0")
        async with running(ground.live(), ground.controller().run()):
            await ground.clock.sleep(15)
            ground.break_down("n0", FaultClass.TRANSIENT, "thermal/throttle")
            await ground.clock.sleep(5)
            ground.store.patch(NODES, "n0", MERGE, {"spec": {"unschedulable": None}}, writer=HUMAN)
            ground.store.patch(NODES, "n0", MERGE, {"spec": {"unschedulable": True}}, writer=HUMAN)
            await ground.clock.sleep(1)
            ground.recover("n0")
            await ground.until(lambda: phases(ground)["n0"] is Phase.CLOSED, 60)
            await ground.clock.sleep(5)
            assert ground.node("n0")["spec"]["unschedulable"] is True
            assert "outlast.dev/cordon" not in ground.node("n0")["metadata"].get("annotations", {})

    run_virtual(main())


def test_a_cancel_in_mid_repair_gives_the_node_back() -> None:
    """The repair Job's name stays occupied, so that the reboot cannot happen any more."""

    async def main() -> None:
        ground = Playground()
        ground.add_policy()
        ground.add_machine("n0")
        ground.add_machine("n1")
        ground.add_pod("guarded", "n0", labels={"app": "web"})
        ground.add_budget("web", "web", 1)
        async with running(ground.live(), ground.controller().run()):
            await ground.clock.sleep(15)
            ground.break_down("n0")
            await ground.clock.sleep(10)
            (incident,) = ground.incidents()
            body = {"metadata": {"annotations": {CANCEL_ANNOTATION: "mine"}}}
            ground.annotate_incident(incident.metadata.name, body)
            await ground.until(lambda: phases(ground)["n0"] is Phase.CLOSED, 10)
            await ground.clock.sleep(60)
            assert "unschedulable" not in ground.node("n0")["spec"] and ground.evicted == []
            assert ground.machines["n0"].reboots == 0

    run_virtual(main())


def test_a_silent_agent_blocks_and_its_word_releases() -> None:
    """Silence of a Ready node costs new work only, and ends with the next heartbeat."""

    async def main() -> None:
        ground = Playground()
        ground.add_policy()
        ground.add_machine("n0")
        ground.add_pod("train", "n0")
        async with running(ground.live(), ground.controller().run()):
            await ground.clock.sleep(30)
            ground.machines["n0"].agent_alive = False
            await ground.until(lambda: ground.node("n0")["spec"].get("unschedulable"), 240, "the block")
            await ground.clock.sleep(1800)
            assert ground.evicted == [] and phases(ground)["n0"] is Phase.BLOCKED
            ground.machines["n0"].agent_alive = True
            await ground.until(lambda: phases(ground)["n0"] is Phase.CLOSED, 60)
            assert "unschedulable" not in ground.node("n0")["spec"]

    run_virtual(main())


def test_a_bad_policy_names_the_field_and_the_last_good_one_rules() -> None:
    """Also after a restart: the accepted spec is kept in the policy's status."""

    async def main() -> None:
        ground = Playground()
        ground.add_policy()
        ground.add_machine("n0")
        ground.add_machine("n1")
        bad = [{"class": "RebootCures", "rungs": ["BlockNewWork", "Reboot"]}]
        async with running(ground.live()):
            async with running(ground.controller().run()):
                await ground.clock.sleep(15)
                ground.change_policy("gpu", {"ladders": bad})
                await ground.clock.sleep(15)
                (policy,) = ground.policies()
                accepted = next(c for c in policy.status.conditions if c.type == "Accepted")
                assert accepted.status == "False" and "spec.ladders[0].rungs" in accepted.message
            async with running(ground.controller().run()):
                await ground.clock.sleep(15)
                ground.break_down("n0")
                await ground.until(lambda: phases(ground).get("n0") is Phase.CLOSED)
        assert ground.machines["n0"].reboots == 1

    run_virtual(main())


class Hostile:
    """An API server that answers many requests with errors, before or after the write happened."""

    def __init__(self, seed: int, share: float) -> None:
        self._rng = Random(seed)
        self._share = share
        self.failures = 0

    async def __call__(self, operation: Operation) -> None:
        if operation.verb == "list" or self._rng.random() >= self._share:
            return
        self.failures += 1
        raise self._error(operation)

    def _error(self, operation: Operation) -> ClusterError:
        if operation.verb == "patch" and not operation.done and self._rng.random() < 0.3:
            return Conflict("conflict on purpose", status=409)
        return Unavailable("overload on purpose", status=self._rng.choice((429, 500, 504)), retry_after_s=1)


@pytest.mark.parametrize("seed", range(6))
def test_a_hostile_server_delays_and_changes_nothing(seed: int) -> None:
    """A quarter of all requests fails, half of those after the write: the same end, nothing twice."""
    policy = policy_of(budgets=Budgets(max_unavailable_percent=50))

    async def main() -> None:
        ground = Playground()
        ground.add_policy(storm={"nodes": 99}, budgets={"maxUnavailablePercent": 50})
        for index in range(6):
            ground.add_machine(f"n{index}")
            ground.add_pod(f"p{index}", f"n{index}")
        hostile = Hostile(seed, 0.25)
        async with running(
            ground.live(), ground.controller(hostile).run(), watch(ground, policy, f"seed {seed}")
        ):
            await ground.clock.sleep(15)
            ground.break_down("n1")
            ground.break_down("n2", FaultClass.TRANSIENT, "thermal/throttle")
            await ground.clock.sleep(120)
            ground.recover("n2")
            await ground.until(lambda: set(phases(ground).values()) == {Phase.CLOSED})
            await ground.clock.sleep(120)
        assert hostile.failures > 4
        scene = scene_of(ground.store, policy)
        assert violations(scene, (*ALWAYS, *AT_THE_END)) == []
        assert ground.machines["n1"].reboots == 1 and ground.machines["n2"].reboots == 0
        assert ground.evicted == ["p1"]

    run_virtual(main())


@pytest.mark.parametrize("seed", range(8))
def test_the_invariants_hold_on_seeded_trouble(seed: int) -> None:
    """Machines break and heal at random times, the controller dies and comes back."""
    policy = policy_of(budgets=Budgets(max_unavailable_percent=40, max_repairs_in_flight=2))
    rng = Random(seed)
    classes = [c for c in FaultClass if c is not FaultClass.HARDWARE_GONE]

    async def lives(ground: Playground) -> None:
        """A controller that ends and starts again now and then."""
        while True:
            async with running(ground.controller().run()):
                await ground.clock.sleep(rng.uniform(20, 400))
            await ground.clock.sleep(rng.uniform(0, 20))

    async def main() -> None:
        ground = Playground()
        ground.add_policy(
            storm={"nodes": 4, "windowSeconds": 300},
            budgets={"maxUnavailablePercent": 40, "maxRepairsInFlight": 2},
        )
        for index in range(12):
            ground.add_machine(f"n{index}")
            ground.add_pod(f"p{index}", f"n{index}")
        async with running(ground.live(), lives(ground), watch(ground, policy, f"seed {seed}")):
            for _ in range(14):
                await ground.clock.sleep(rng.uniform(1, 90))
                name = rng.choice(sorted(ground.machines))
                machine = ground.machines[name]
                if not machine.up:
                    continue
                if machine.broken is None:
                    chosen = rng.choice(classes)
                    ground.break_down(name, chosen, f"test/{chosen.lower()}")
                elif machine.broken in (
                    FaultClass.TRANSIENT,
                    FaultClass.MONITOR_HUNG,
                    FaultClass.APPLICATION,
                ):
                    ground.recover(name)
            for name, machine in sorted(ground.machines.items()):
                if machine.broken in PASSING:
                    ground.recover(name)
            await ground.until(
                lambda: all(p is Phase.CLOSED for p in phases(ground).values()), 4 * 3600, f"seed {seed}"
            )
            await ground.clock.sleep(300)
        assert violations(scene_of(ground.store, policy), (*ALWAYS, *AT_THE_END)) == []
        for name in ground.machines:
            assert "unschedulable" not in ground.node(name)["spec"], f"{name} is back in service"

    run_virtual(main())
