"""The controller dies before and after every single write, and another takes over."""

from __future__ import annotations

import pytest

from outlast.model.incident import EndResult, Phase
from outlast.model.policy import Mode, RemediationPolicySpec
from outlast.sim.checkers import ALWAYS, AT_THE_END, scene_of, violations
from outlast.sim.direct import Operation
from outlast.sim.virtual_time import run_virtual
from tests.sim.playground import Playground, running

TAKEOVER_S = 15.0


class Died(BaseException):
    """The process is gone: nothing in it may catch this."""


class Bomb:
    """Ends the controller at the n-th moment around a write."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.went_off: Operation | None = None

    async def __call__(self, operation: Operation) -> None:
        if not operation.writes or self.went_off is not None:
            return
        if self.left == 0:
            self.went_off = operation
            raise Died(str(operation))
        self.left -= 1


async def survive(ground: Playground, bomb: Bomb) -> None:
    """Run a controller until the bomb ends it, then another for ever."""
    try:
        await ground.controller(bomb).run()
    except BaseExceptionGroup as group:
        if group.split(Died)[0] is None:
            raise
    await ground.clock.sleep(TAKEOVER_S)
    await ground.controller().run()


async def story(at: int, *, cured: bool) -> Operation | None:
    ground = Playground()
    ground.add_policy()
    for index in range(4):
        ground.add_machine(f"n{index}")
    ground.add_pod("plain", "n1")
    ground.add_pod("train", "n1", labels={"app": "train", "outlast.dev/checkpoint": "on-request"})
    bomb = Bomb(at)

    async def check() -> None:
        while True:
            scene = scene_of(ground.store, RemediationPolicySpec(mode=Mode.ENFORCE))
            scene.reboots = {m.name: m.reboots for m in ground.machines.values()}
            scene.evicted = list(ground.evicted)
            assert violations(scene) == [], f"crash at moment {at}: {bomb.went_off}"
            await ground.clock.sleep(3.0)

    async with running(ground.live(), survive(ground, bomb), check()):
        await ground.clock.sleep(15)
        ground.break_down("n1", cured=cured)
        await ground.until(
            lambda: ground.incidents() and ground.incidents()[-1].status.phase is Phase.CLOSED,
            what=f"the end after a crash at moment {at} ({bomb.went_off})",
        )
        await ground.clock.sleep(65)
    (incident,) = ground.incidents()
    assert incident.status.end is not None
    scene = scene_of(ground.store, RemediationPolicySpec(mode=Mode.ENFORCE))
    assert violations(scene, (*ALWAYS, *AT_THE_END)) == [], f"crash at moment {at}: {bomb.went_off}"
    assert sorted(ground.evicted) == ["plain", "train"]
    if cured:
        assert incident.status.end.result is EndResult.RETURNED
        assert ground.machines["n1"].reboots == 1
        assert "unschedulable" not in ground.node("n1")["spec"]
    else:
        assert incident.status.end.result is EndResult.REPLACED
    assert ground.jobs() == []
    return bomb.went_off


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("cured", [True, False], ids=["cured", "replaced"])
def test_a_crash_at_any_write_does_nothing_twice_and_strands_nothing(cured: bool) -> None:
    """For every write, before and after it: one reboot, each pod moved once, the same end."""
    moments = 0
    while run_virtual(story(moments, cured=cured)) is not None:
        moments += 1
    assert moments > 20, "the story has more writes than that"


async def lose_leadership(ground: Playground) -> None:
    """A fence that closes in the middle of the story stops every write."""
    from tests.sim.playground import AlwaysLeader

    fence = AlwaysLeader()
    writes: list[Operation] = []

    async def gate(operation: Operation) -> None:
        if operation.writes and not fence.open:
            writes.append(operation)

    async with running(ground.live(), ground.controller(gate, fence).run()):
        await ground.clock.sleep(15)
        ground.break_down("n1")
        await ground.clock.sleep(1)
        fence.open = False
        await ground.clock.sleep(600)
        assert writes == [] and ground.machines["n1"].reboots == 0
        fence.open = True
        await ground.until(lambda: ground.incidents()[0].status.phase is Phase.CLOSED)
    assert ground.machines["n1"].reboots == 1


def test_a_closed_fence_stops_every_write_and_an_open_one_goes_on() -> None:
    """Who may not write writes nothing, and who may again goes on where the record stands."""

    async def main() -> None:
        ground = Playground()
        ground.add_policy()
        for index in range(4):
            ground.add_machine(f"n{index}")
        ground.add_pod("train", "n1")
        await lose_leadership(ground)

    run_virtual(main())
