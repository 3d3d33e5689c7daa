"""What the controller counts, against what happened to the fleet."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from outlast.adapters.linux.own_process import own_process
from outlast.controller.main import Controller
from outlast.controller.metrics import METRICS, page
from outlast.model.incident import Phase
from outlast.sim.virtual_time import run_virtual
from tests.sim.playground import Playground, running


def samples(controller: Controller) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(page(controller, own_process()).decode()):
        for sample in family.samples:
            found[f"{sample.name}[{','.join(sample.labels.values())}]"] = sample.value
    return found


def test_a_repaired_node_is_counted_by_its_steps() -> None:
    """Open while it runs, by phase; afterwards each rung with its result, and nothing open."""

    async def story() -> None:
        ground = Playground()
        ground.add_policy()
        for index in range(20):
            ground.add_machine(f"n{index}")
        ground.add_pod("train", "n3")
        controller = ground.controller()
        async with running(ground.live(), controller.run()):
            await ground.clock.sleep(15)
            assert samples(controller)["outlast_nodes[]"] == 20
            assert samples(controller)["outlast_controller_leader[]"] == 1
            ground.break_down("n3")
            await ground.until(
                lambda: ground.incidents() and ground.incidents()[0].status.phase is Phase.REPAIRING
            )
            await ground.clock.sleep(1)
            assert samples(controller)["outlast_incidents_open[Repairing]"] == 1
            await ground.until(lambda: ground.incidents()[0].status.phase is Phase.CLOSED)
            await ground.clock.sleep(1)
        found = samples(controller)
        assert all(found[f"outlast_incidents_open[{p}]"] == 0 for p in Phase if p is not Phase.CLOSED)
        attempts = ground.incidents()[0].status.attempts
        assert {
            name.partition("[")[2]: count
            for name, count in found.items()
            if name.startswith("outlast_actions_total")
        } == {f"{a.rung},{a.outcome.result}]": 1 for a in attempts if a.outcome is not None}
        assert found["outlast_actions_total[Reboot,Succeeded]"] == 1

    run_virtual(story())


def test_a_node_that_a_budget_holds_back_is_counted() -> None:
    """Held back now, and how often that began."""

    async def story() -> None:
        ground = Playground()
        ground.add_policy(budgets={"maxUnavailable": 1, "maxUnavailablePercent": 1})
        for index in range(6):
            ground.add_machine(f"n{index}")
        controller = ground.controller()
        async with running(ground.live(), controller.run()):
            await ground.clock.sleep(15)
            ground.break_down("n1", cured=False)
            ground.break_down("n2", cured=False)
            await ground.clock.sleep(60)
            found = samples(controller)
            assert found["outlast_incidents_held_back[]"] >= 1
            assert found["outlast_decisions_held_back_total[]"] >= 1

    run_virtual(story())


def test_every_metric_is_on_the_page_from_the_start() -> None:
    """Those without labels have a value before anything happened."""

    async def story() -> None:
        found = samples(Playground().controller())
        assert {f"{metric.name}[]" for metric in METRICS if not metric.labels} <= set(found)

    run_virtual(story())
