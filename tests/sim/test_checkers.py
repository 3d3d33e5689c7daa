"""Negative twins: each invariant's checker finds what it is there to find, and the simulation lets it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from outlast.model.cluster import Node, NodeSpec, ObjectMeta
from outlast.model.decision import Cordon
from outlast.model.health import FaultClass
from outlast.model.incident import Attempt, Incident, IncidentSpec, IncidentStatus, Phase
from outlast.model.names import CORDON_ANNOTATION
from outlast.model.policy import Budgets, Mode, RemediationPolicySpec, Rung
from outlast.remediation.decide import climbing
from outlast.sim import checkers
from outlast.sim.checkers import Scene, scene_of, violations
from outlast.sim.virtual_time import run_virtual
from tests.sim.playground import Playground, running
from tests.unit.remediation.builders import a_fault

NOW = datetime(2026, 3, 1, tzinfo=UTC)
POLICY = RemediationPolicySpec(mode=Mode.ENFORCE, budgets=Budgets(max_unavailable_percent=50))


def node(name: str, *, ours: bool = False, cordoned: bool = False) -> Node:
    marks = {}
    if ours:
        cordon = Cordon(
            incident=f"{name}-0000000a",
            node_uid=name,
            epoch=1,
            fault_class=FaultClass.TRANSIENT,
            reason="x",
            since=NOW,
        )
        marks[CORDON_ANNOTATION] = cordon.to_annotation()
    return Node(
        metadata=ObjectMeta(name=name, uid=name, annotations=marks),
        spec=NodeSpec(unschedulable=ours or cordoned),
    )


def incident(name: str, *attempts: Attempt, phase: Phase = Phase.DRAINING, **spec: object) -> Incident:
    status = IncidentStatus(phase=phase, attempts=attempts)
    return Incident(
        metadata=ObjectMeta(name=f"{name}-0000000a"),
        spec=IncidentSpec(node_name=name, node_uid=name, opened_at=NOW, **spec),  # type: ignore[arg-type]
        status=status,
    )


def attempt(epoch: int, rung: Rung, *because: str) -> Attempt:
    return Attempt(id=f"{epoch}-{rung}", rung=rung, started_at=NOW, because=because or ("why",))


def scene(*incidents: Incident, nodes: tuple[Node, ...] = (), **facts: object) -> Scene:
    made = Scene({n.metadata.name: n for n in nodes}, list(incidents), POLICY)
    for name, value in facts.items():
        setattr(made, name, value)
    return made


DRAIN, REBOOT = attempt(1, Rung.DRAIN), attempt(2, Rung.REBOOT)
MANY = tuple(node(f"n{i}", ours=i < 3) for i in range(4))
HUNG = (a_fault(FaultClass.MONITOR_HUNG),)
BAD = {
    "too many blocked": (checkers.budgets_hold, scene(nodes=MANY)),
    "too many repairs": (checkers.budgets_hold, scene(*(incident(f"n{i}", DRAIN) for i in range(6)))),
    "a reboot nobody recorded": (checkers.disruption_is_recorded, scene(reboots={"n0": 1})),
    "a reboot beyond the record": (
        checkers.disruption_is_recorded,
        scene(incident("n0", REBOOT), reboots={"n0": 2}),
    ),
    "no reason": (
        checkers.disruption_is_recorded,
        scene(incident("n0", msgspec.structs.replace(DRAIN, because=()))),
    ),
    "an attempt twice": (checkers.nothing_twice, scene(incident("n0", DRAIN, DRAIN))),
    "two open intents": (checkers.nothing_twice, scene(incident("n0", DRAIN, REBOOT))),
    "a pod ended twice": (checkers.nothing_twice, scene(evicted=["p", "p"])),
    "a foreign cordon undone": (
        checkers.foreign_marks_stay,
        scene(nodes=(node("n0"),), foreign_cordons=frozenset({"n0"})),
    ),
    "unknown drained": (checkers.unknown_never_drains, scene(incident("n0", DRAIN, faults=HUNG))),
    "observed and acted": (checkers.observed_is_untouched, scene(incident("n0", DRAIN, observe_only=True))),
    "in progress for ever": (checkers.waiting_is_explained, scene(incident("n0"))),
    "closed without an end": (checkers.waiting_is_explained, scene(incident("n0", phase=Phase.CLOSED))),
    "a stranded cordon": (checkers.nothing_is_stranded, scene(nodes=(node("n0", ours=True),))),
    "closed with an open intent": (
        checkers.nothing_is_stranded,
        scene(incident("n0", DRAIN, phase=Phase.CLOSED)),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_each_checker_finds_its_violation(name: str) -> None:
    """A checker that cannot fail proves nothing."""
    checker, bad = BAD[name]
    assert violations(bad, (checker,))


def test_a_good_scene_has_no_violation() -> None:
    """And one that always fails proves nothing either."""
    good = scene(incident("n0", DRAIN), nodes=(node("n0", ours=True), node("n1"), node("n2")))
    assert violations(good) == []


def test_a_controller_without_budgets_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same simulation that passes with budgets fails without them."""
    monkeypatch.setattr(climbing, "refuses_repair", lambda *_: "")
    policy = RemediationPolicySpec(
        mode=Mode.ENFORCE, budgets=Budgets(max_unavailable_percent=100, max_repairs_in_flight=2)
    )

    async def main() -> list[str]:
        ground = Playground()
        ground.add_policy(budgets={"maxUnavailablePercent": 100, "maxRepairsInFlight": 2})
        for index in range(6):
            ground.add_machine(f"n{index}")
        async with running(ground.live(), ground.controller().run()):
            await ground.clock.sleep(15)
            for index in range(6):
                ground.break_down(f"n{index}")
            await ground.clock.sleep(5)
            return violations(scene_of(ground.store, policy))

    assert any("repairs at once" in text for text in run_virtual(main()))
