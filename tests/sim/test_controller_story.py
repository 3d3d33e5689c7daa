"""The controller against a fleet on virtual time: the main line, and its ends."""

from __future__ import annotations

from outlast.model.health import FaultClass
from outlast.model.incident import EndResult, Phase
from outlast.sim.virtual_time import run_virtual
from tests.sim.playground import Playground, running


def test_a_fallen_gpu_is_blocked_drained_rebooted_and_returned() -> None:
    """The whole way: cordon, evictions, one reboot, a clean check, back in service, record closed."""

    async def story() -> None:
        ground = Playground()
        ground.add_policy()
        for index in range(20):
            ground.add_machine(f"n{index}")
        ground.add_pod("train", "n3")
        ground.add_pod("exporter", "n3", daemon=True)
        async with running(ground.live(), ground.controller().run()):
            await ground.clock.sleep(15)
            ground.break_down("n3")
            await ground.until(lambda: ground.node("n3")["spec"].get("unschedulable"), 2, "the cordon")
            await ground.until(
                lambda: ground.incidents() and ground.incidents()[0].status.phase is Phase.CLOSED
            )
        (incident,) = ground.incidents()
        assert incident.status.end.result is EndResult.RETURNED
        assert ground.machines["n3"].reboots == 1
        assert "unschedulable" not in ground.node("n3")["spec"]
        assert "outlast.dev/cordon" not in ground.node("n3")["metadata"].get("annotations", {})
        assert ground.evicted == ["train"], "the DaemonSet's pod stays"
        assert ground.jobs() == []
        for reason in (
            "NewWorkBlocked",
            "DrainStarted",
            "Drained",
            "RebootStarted",
            "NodeRebooted",
            "IncidentClosed",
        ):
            assert ground.notes.reasons().count(reason) == 1, reason

    run_virtual(story())


def test_a_board_that_dies_for_good_is_replaced() -> None:
    """A fault that survives the reboot is handed over, and the node's disappearance is the end."""

    async def story() -> None:
        ground = Playground()
        ground.add_policy()
        for index in range(10):
            ground.add_machine(f"n{index}")
        async with running(ground.live(), ground.controller().run()):
            await ground.clock.sleep(15)
            ground.break_down("n3", cured=False)
            await ground.until(
                lambda: ground.incidents() and ground.incidents()[0].status.phase is Phase.CLOSED
            )
        (incident,) = ground.incidents()
        assert incident.status.end.result is EndResult.REPLACED
        assert "n3" not in ground.machines

    run_virtual(story())


def test_observe_touches_nothing() -> None:
    """Only our own objects are written under the default mode."""

    async def story() -> None:
        ground = Playground()
        ground.add_policy(mode="Observe")
        ground.add_machine("n0")
        ground.add_pod("train", "n0")
        async with running(ground.live(), ground.controller().run()):
            await ground.clock.sleep(15)
            ground.break_down("n0", FaultClass.HARDWARE_GONE, "xid/64")
            await ground.clock.sleep(3600)
            (incident,) = ground.incidents()
            assert incident.spec.observe_only and incident.status.phase is Phase.WAITING
            assert "unschedulable" not in ground.node("n0")["spec"] and not ground.evicted
            ground.recover("n0")
            await ground.until(lambda: ground.incidents()[0].status.phase is Phase.CLOSED, 60)

    run_virtual(story())
