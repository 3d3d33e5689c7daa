"""Attacks on the controller, on virtual time: many at once, slow writes, people who change their mind."""

from __future__ import annotations

import pytest

from outlast.model.incident import Phase
from outlast.model.names import CANCEL_ANNOTATION, HOLD_ANNOTATION
from outlast.model.policy import Rung
from outlast.sim.apiserver.resources import NODES
from outlast.sim.direct import Operation
from outlast.sim.virtual_time import run_virtual
from tests.sim.playground import MERGE, Playground, running

LONG = "a human has much to say " * 400
DISRUPTIVE = {Rung.REQUEST_CHECKPOINT, Rung.DRAIN, Rung.REBOOT, Rung.REPLACE}


class Slow:
    """An API server that takes its time with every request."""

    def __init__(self, ground: Playground, delay_s: float) -> None:
        self._ground = ground
        self._delay_s = delay_s

    async def __call__(self, operation: Operation) -> None:
        await self._ground.clock.sleep(self._delay_s)


def test_the_hours_budget_holds_when_many_nodes_become_due_at_once() -> None:
    """Thirty sick nodes, a slow API server, two repairs an hour: two repairs begin."""

    async def main() -> None:
        ground = Playground()
        budgets = {"maxUnavailablePercent": 100, "maxRepairsInFlight": 30, "maxRepairsPerHour": 2}
        ground.add_policy(budgets=budgets, storm={"nodes": 99})
        for index in range(30):
            ground.add_machine(f"n{index:02d}")
        async with running(ground.live(), ground.controller(Slow(ground, 0.3)).run()):
            await ground.clock.sleep(15)
            for index in range(30):
                ground.break_down(f"n{index:02d}")
            await ground.clock.sleep(300)
            incidents = ground.incidents()
        assert len(incidents) == 30 and all(i.status.phase is not Phase.WAITING for i in incidents)
        begun = [i for i in incidents if any(a.rung in DISRUPTIVE for a in i.status.attempts)]
        assert len(begun) == 2
        assert sum(machine.reboots for machine in ground.machines.values()) == 2

    run_virtual(main())


def test_a_policy_that_stops_acting_is_obeyed_before_the_watch_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mode Observe is the emergency brake; a watch that lags does not keep evictions and reboots going."""

    async def main() -> None:
        ground = Playground()
        ground.add_policy()
        ground.add_machine("n0")
        ground.add_machine("n1")
        controller = ground.controller()
        async with running(ground.live(), controller.run()):
            await ground.clock.sleep(15)
            monkeypatch.setattr(controller.book, "put", lambda policy: False)
            ground.change_policy("gpu", {"mode": "Observe"})
            ground.break_down("n0")
            await ground.clock.sleep(120)
            (incident,) = ground.incidents()
        assert not [a for a in incident.status.attempts if a.rung in DISRUPTIVE]
        assert ground.machines["n0"].reboots == 0 and not ground.jobs()
        assert "Observe" in incident.status.blocked_by_text

    run_virtual(main())


def test_people_may_give_long_reasons() -> None:
    """A hold and a cancel count whatever their length; the record keeps as much as it can."""

    async def main() -> None:
        ground = Playground()
        ground.add_policy()
        ground.add_machine("n0")
        ground.add_machine("n1")
        async with running(ground.live(), ground.controller().run()):
            await ground.clock.sleep(15)
            ground.store.patch(NODES, "n0", MERGE, {"metadata": {"annotations": {HOLD_ANNOTATION: LONG}}})
            ground.break_down("n0")
            await ground.clock.sleep(30)
            (incident,) = ground.incidents()
            assert not incident.status.attempts
            ground.annotate_incident(
                incident.metadata.name, {"metadata": {"annotations": {CANCEL_ANNOTATION: LONG}}}
            )
            await ground.until(lambda: ground.incidents()[0].status.phase is Phase.CLOSED, 60)
        assert ground.machines["n0"].reboots == 0

    run_virtual(main())
