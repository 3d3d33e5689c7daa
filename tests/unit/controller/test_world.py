"""The controller's picture: what it wrote counts until the cache has caught up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from outlast.controller.housekeeping import Housekeeping
from outlast.controller.options import ControllerOptions
from outlast.controller.steady import SteadyTime
from outlast.controller.world import World
from outlast.model.cluster import Lease, LeaseSpec, Node, ObjectMeta
from outlast.model.health import Fault
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
from outlast.model.policy import Rung
from outlast.sim.direct import DirectCluster
from tests.unit.remediation.builders import START, a_fault, a_health, after
from tests.unit.remediation.test_act import Desk, StillClock


class FixedCache:
    """A cache that shows what the test puts in."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}

    def get(self, name: str, namespace: str = "") -> Any:
        return self.items.get(name)


@pytest.fixture
def world() -> World:
    desk = Desk()
    made = World(DirectCluster(desk.store), StillClock(), ControllerOptions())
    made.nodes = FixedCache()  # type: ignore[assignment]
    return made


def node(version: int, uid: str = "u1") -> Node:
    return Node(metadata=ObjectMeta(name="n1", uid=uid, resource_version=str(version)))


def test_our_own_write_counts_until_the_cache_catches_up(world: World) -> None:
    """Else a block just made would look like a human's uncordon."""
    world.nodes.items["n1"] = node(5)
    world.wrote_node(node(9))
    assert world.node("n1").metadata.resource_version == "9"
    world.nodes.items["n1"] = node(12)
    assert world.node("n1").metadata.resource_version == "12"


def test_a_node_that_is_gone_or_new_is_not_hidden_by_our_write(world: World) -> None:
    """Another uid is another node, whatever we wrote to the old one."""
    world.nodes.items["n1"] = node(5)
    world.wrote_node(node(9))
    world.nodes.items["n1"] = node(7, uid="u2")
    assert world.node("n1").metadata.uid == "u2"
    world.wrote_node(node(20))
    world.nodes.items.clear()
    assert world.node("n1") is None


def incident(
    name: str, version: int, *, closed: bool = False, observed: bool = False, at: float = 0
) -> Incident:
    end = End(at=datetime(2026, 3, 1, tzinfo=UTC), result=EndResult.RETURNED) if closed else None
    return Incident(
        metadata=ObjectMeta(name=name, uid=name, resource_version=str(version)),
        spec=IncidentSpec(node_name="n1", node_uid="u1", opened_at=after(at), observe_only=observed),
        status=IncidentStatus(phase=Phase.CLOSED if closed else Phase.BLOCKED, end=end),
    )


def test_an_old_version_of_a_record_is_no_news(world: World) -> None:
    """The cache tells what we wrote before it tells what we write now."""
    assert world.saw_incident(incident("a", 9))
    assert not world.saw_incident(incident("a", 5, closed=True))
    assert world.open_incident("n1") is not None


def test_the_incident_that_acts_comes_before_one_that_observes(world: World) -> None:
    """Then the oldest; closed ones are the past, newest first."""
    for made in (
        incident("watch", 1, observed=True),
        incident("late", 2, at=60),
        incident("early", 3, at=30),
    ):
        world.saw_incident(made)
    assert world.open_incident("n1").metadata.name == "early"
    world.saw_incident(incident("early", 8, closed=True, at=30))
    world.saw_incident(incident("old", 9, closed=True, at=10))
    assert world.open_incident("n1").metadata.name == "late"
    assert [i.metadata.name for i in world.closed_incidents("n1")] == ["early", "old"]


def test_an_agent_is_alive_only_when_its_lease_moved_before_our_eyes(world: World) -> None:
    """A restart must not make a dead agent look fresh and proven."""
    lease = Lease(metadata=ObjectMeta(name="outlast-agent-n1"), spec=LeaseSpec(renew_time=START))
    assert world.saw_lease(lease, changed=False) == "n1"
    assert not world.sight("n1").moving
    later = msgspec.structs.replace(lease, spec=LeaseSpec(renew_time=after(10)))
    world.saw_lease(later, changed=True)
    assert world.sight("n1").moving


def test_other_leases_are_not_agents(world: World) -> None:
    """The controller's own Lease lives in the same namespace."""
    assert world.saw_lease(Lease(metadata=ObjectMeta(name="outlast-controller")), changed=True) == ""


def test_a_node_with_health_and_no_lease_grows_silent(world: World) -> None:
    """An agent whose Lease was deleted while no controller ran is as dead as one that stopped renewing."""
    clock = StillClock()
    world._clock = clock
    world.healths = FixedCache()  # type: ignore[assignment]
    assert world.sight("n1").silent_s is None, "nothing ever came of an agent"
    world.healths.items["n1"] = a_health()
    assert world.sight("n1").silent_s == 0
    clock.at_s = 200.0
    sight = world.sight("n1")
    assert sight.silent_s == 200 and sight.lease is None


def housekeeping(world: World, **options: Any) -> Housekeeping:
    chosen = ControllerOptions(**options)
    nobody: Any = None
    time = SteadyTime(StillClock())
    return Housekeeping(nobody, world, nobody, nobody, nobody, nobody, time, chosen)


def ended(name: str, result: EndResult, at: float, *faults: Fault, rebooted: bool = False) -> Incident:
    made = incident(name, 1, closed=True, at=at)
    cured = Attempt(
        id=f"1-{name}",
        rung=Rung.REBOOT,
        started_at=after(at),
        outcome=Outcome(at=after(at), result=Result.SUCCEEDED),
    )
    status = msgspec.structs.replace(
        made.status,
        faults=faults,
        attempts=(cured,) if rebooted else (),
        end=End(at=after(at), result=result),
    )
    return msgspec.structs.replace(made, status=status)


def test_a_cancel_is_kept_while_its_fault_stands(world: World) -> None:
    """Forgotten after a week, the fault a human lives with would open a new case."""
    long_ago = 8 * 24 * 3600.0
    world.healths = FixedCache()  # type: ignore[assignment]
    world.healths.items["n1"] = a_health(a_fault())
    for made in (
        ended("accepted", EndResult.CANCELLED_BY_HUMAN, -long_ago, a_fault()),
        ended("accepted-before", EndResult.CANCELLED_BY_HUMAN, -long_ago - 60, a_fault()),
        ended("other", EndResult.CANCELLED_BY_HUMAN, -long_ago, a_fault(code="xid/48")),
        ended("returned", EndResult.RETURNED, -long_ago, a_fault(), rebooted=True),
    ):
        world.saw_incident(made)
    gone = {i.metadata.name for i in housekeeping(world)._expired()}
    assert gone == {"accepted-before", "other", "returned"}
    world.healths.items["n1"] = a_health()
    assert "accepted" in {i.metadata.name for i in housekeeping(world)._expired()}


def test_many_small_cases_do_not_push_out_a_cure_by_reboot(world: World) -> None:
    """Else a fault that a reboot did not cure for good would be rebooted again and again."""
    world.healths = FixedCache()  # type: ignore[assignment]
    world.saw_incident(ended("cured", EndResult.RETURNED, -9000, a_fault(), rebooted=True))
    for number in range(12):
        world.saw_incident(ended(f"small-{number}", EndResult.NOT_NEEDED, -8000 + number))
    gone = {i.metadata.name for i in housekeeping(world)._expired()}
    assert gone == {f"small-{number}" for number in range(4)}
