"""Budgets, storms and what a policy may say."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.cluster import ObjectMeta
from outlast.model.decision import Block, Evict, StartRepair
from outlast.model.health import FaultClass
from outlast.model.incident import (
    Attempt,
    Incident,
    IncidentSpec,
    IncidentStatus,
    Outcome,
    Phase,
    Result,
)
from outlast.model.policy import Budgets, Ladder, Mode, RemediationPolicySpec, Rung, Storm
from outlast.remediation.decide import FleetView, StormSight
from outlast.remediation.decide.budgets import refuses_repair, unavailable_cap
from outlast.remediation.decide.ladder import DEFAULT_LADDERS, executable, next_rung, policy_problems
from outlast.remediation.decide.opening import repair_job_name
from outlast.remediation.decide.recent import NewlyBad, RecentRepairs
from tests.unit.remediation.builders import START, a_fault, a_node, a_pod, a_sick_node, after


@pytest.mark.parametrize(
    ("nodes", "percent", "count", "cap"),
    [(100, 10, None, 10), (5, 10, None, 1), (100, 10, 3, 3), (100, 0, None, 0), (100, 50, 0, 0)],
)
def test_the_cap_is_the_smaller_limit_with_a_floor_of_one(
    nodes: int, percent: int, count: int | None, cap: int
) -> None:
    """A small pool can lose one node; zero means none."""
    budgets = Budgets(max_unavailable_percent=percent, max_unavailable=count)
    assert unavailable_cap(budgets, nodes) == cap


def test_a_spent_budget_holds_the_block_back_and_says_so() -> None:
    """The node still takes work; the record names the limit, and the block follows when it is free."""
    tale = a_sick_node()
    tale.fleet = FleetView(nodes=10, unavailable=1)
    tale.look()
    assert not tale.acts(Block)
    tale.look()
    assert tale.status.phase is Phase.WAITING and "maxUnavailable" in tale.status.blocked_by_text
    tale.fleet = FleetView(nodes=10, unavailable=0)
    tale.look()
    assert tale.acts(Block)
    assert "being written" in tale.status.blocked_by_text, "a waiting incident always says for what"
    tale.look()
    assert tale.status.phase is not Phase.WAITING and not tale.status.blocked_by


def test_a_node_that_is_down_already_costs_no_budget() -> None:
    """Cordoning a NotReady node takes nothing away from anybody."""
    tale = a_sick_node(node=a_node(ready=False))
    tale.fleet = FleetView(nodes=10, unavailable=5)
    tale.look()
    assert tale.acts(Block)


@pytest.mark.parametrize(
    ("view", "name"),
    [
        (FleetView(nodes=100, repairs_in_flight=5), "maxRepairsInFlight"),
        (FleetView(nodes=100, repairs_last_hour=20), "maxRepairsPerHour"),
        (FleetView(nodes=100, domain="zone-a", repairs_in_domain=1), "maxRepairsPerDomain"),
        (FleetView(nodes=100, storm=StormSight("xid/79", 7)), "storm"),
        (FleetView(nodes=100, complete=False), "picture of the cluster is not complete"),
    ],
)
def test_each_limit_stops_repairs_and_names_itself(view: FleetView, name: str) -> None:
    """Nothing disruptive begins past a limit; what was blocked stays blocked."""
    tale = a_sick_node(pods=(a_pod(),))
    tale.ruling = replace(
        tale.ruling,
        spec=RemediationPolicySpec(mode=Mode.ENFORCE, budgets=Budgets(max_repairs_per_domain=1)),
    )
    tale.fleet = view
    tale.look()
    assert tale.acts(Block)
    tale.look()
    assert not tale.acts(Evict) and name in tale.status.blocked_by_text
    tale.fleet = FleetView(nodes=100)
    tale.look()
    assert tale.acts(Evict)


def test_a_storm_stops_evictions_under_way() -> None:
    """Stop disrupting means also what has begun; the reboot already under way is still verified."""
    tale = a_sick_node(pods=(a_pod(),))
    tale.look()
    tale.look()
    tale.fleet = FleetView(nodes=100, storm=StormSight("xid/79", 7))
    tale.look()
    assert not tale.acts(Evict) and "storm" in tale.status.blocked_by_text
    tale.look(3600)
    assert tale.status.phase is Phase.DRAINING, "the deadline does not run out against a storm"
    assert not tale.acts(StartRepair)


def test_a_storm_starts_no_reboot_that_a_crash_left_undone() -> None:
    """Its intent is on record and its Job is not there: nothing runs yet, so it waits like any other."""
    tale = a_sick_node(pods=())
    for _ in range(4):
        tale.look()
    assert tale.acts(StartRepair), "the intent, whose Job the crash kept from being made"
    tale.fleet = FleetView(nodes=100, storm=StormSight("xid/79", 9))
    tale.look()
    assert not tale.acts(StartRepair) and "storm" in tale.status.blocked_by_text
    tale.fleet = FleetView(nodes=100)
    tale.look()
    assert tale.acts(StartRepair)


def _opened(name: str, at: float, code: str = "xid/79") -> Incident:
    spec = IncidentSpec(node_name=name, node_uid=name, opened_at=after(at), faults=(a_fault(code=code),))
    return Incident(metadata=ObjectMeta(name=f"{name}-i"), spec=spec)


def _storm(*incidents: Incident, at: float = 600) -> StormSight | None:
    bad = NewlyBad()
    for incident in incidents:
        bad.saw(incident)
    return bad.storm(Storm(nodes=3, window_s=600), after(at))


def test_a_storm_is_many_nodes_one_code_one_window() -> None:
    """The same node twice is no storm, nor are different codes, nor is last week."""
    three = [_opened("a", 10), _opened("b", 20), _opened("c", 30)]
    assert _storm(*three) == StormSight("xid/79", 3)
    assert _storm(*three[:2], _opened("b", 30)) is None
    assert _storm(*three[:2], _opened("c", 30, "xid/95")) is None
    assert _storm(*three, at=10_000) is None


def test_a_storm_ends_when_its_window_has_passed() -> None:
    """Nodes leave the count as they grow old, one by one."""
    bad = NewlyBad()
    for incident in (_opened("a", 0), _opened("b", 300), _opened("c", 300)):
        bad.saw(incident)
    storm = Storm(nodes=3, window_s=600)
    assert bad.storm(storm, after(599)) is not None
    assert bad.storm(storm, after(601)) is None
    bad.saw(_opened("a", 0))
    assert bad.storm(storm, after(601.5)) is None, "an old incident that is told again is no news"


def test_repairs_count_for_an_hour_and_never_against_themselves() -> None:
    """The hour's budget counts other nodes' repairs, each once however often it is told."""
    repairs = RecentRepairs()
    for name in ("a", "b"):
        opened = _opened(name, 0)
        began = IncidentStatus(attempts=_tried(Rung.BLOCK_NEW_WORK, Rung.DRAIN))
        for _ in range(2):
            repairs.saw(msgspec.structs.replace(opened, status=began))
    repairs.saw(_opened("c", 0))
    assert repairs.of_others("z", after(10)) == 2 and repairs.of_others("a", after(20)) == 1
    assert repairs.of_others("z", after(3700)) == 0
    repairs.saw(msgspec.structs.replace(_opened("a", 0), status=began))
    assert repairs.of_others("z", after(3700.5)) == 0, "an old repair that is told again is no news"


@given(st.integers(0, 30), st.integers(0, 10), st.integers(0, 30), st.integers(0, 30))
def test_no_count_passes_its_limit(in_flight: int, limit: int, hour: int, per_hour: int) -> None:
    """Whatever the counts, a repair is admitted only strictly below every limit."""
    budgets = Budgets(max_repairs_in_flight=limit, max_repairs_per_hour=per_hour)
    view = FleetView(nodes=100, repairs_in_flight=in_flight, repairs_last_hour=hour)
    admitted = not refuses_repair(budgets, view)
    assert admitted == (in_flight < limit and hour < per_hour)


def _tried(*rungs: Rung, result: Result = Result.FAILED) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(id=f"{i}-{r}", rung=r, started_at=START, outcome=Outcome(at=START, result=result))
        for i, r in enumerate(rungs)
    )


@given(st.lists(st.sampled_from(list(Rung)), max_size=6), st.sampled_from(list(FaultClass)))
def test_the_ladder_only_climbs(done: list[Rung], fault_class: FaultClass) -> None:
    """The next rung is above all that were tried, so every story ends."""
    rung = next_rung(executable(DEFAULT_LADDERS[fault_class]), _tried(*done), reboot_tries=1)
    assert rung is None or rung.height > max((r.height for r in done), default=-1)


def test_reboot_tries_are_counted() -> None:
    """With two tries the second reboot comes before the replacement, a third never."""
    path = executable(DEFAULT_LADDERS[FaultClass.REBOOT_CURES])
    assert next_rung(path, _tried(Rung.DRAIN, Rung.REBOOT), 2) is Rung.REBOOT
    assert next_rung(path, _tried(Rung.DRAIN, Rung.REBOOT, Rung.REBOOT), 2) is Rung.REPLACE
    assert next_rung(path, _tried(Rung.DRAIN), 0) is Rung.REPLACE


def test_a_called_off_try_is_no_try() -> None:
    """What a hold interrupted is taken up again when the hold is gone."""
    path = executable(DEFAULT_LADDERS[FaultClass.REBOOT_CURES])
    called_off = _tried(Rung.REBOOT, result=Result.CANCELLED)
    assert next_rung(path, (*_tried(Rung.DRAIN), *called_off), 1) is Rung.REBOOT


@pytest.mark.parametrize(
    ("rungs", "field"),
    [
        ((Rung.DRAIN, Rung.BLOCK_NEW_WORK), "spec.ladders[0].rungs[1]"),
        ((Rung.BLOCK_NEW_WORK, Rung.REBOOT), "spec.ladders[0].rungs"),
        ((Rung.DRAIN, Rung.REBOOT), "spec.ladders[0].rungs"),
        ((Rung.BLOCK_NEW_WORK, Rung.BLOCK_NEW_WORK), "spec.ladders[0].rungs[1]"),
    ],
)
def test_a_ladder_that_would_do_harm_is_refused_by_field(rungs: tuple[Rung, ...], field: str) -> None:
    """A repair without a drain kills running jobs; the field and the rule are named."""
    spec = RemediationPolicySpec(ladders=(Ladder(fault_class=FaultClass.REBOOT_CURES, rungs=rungs),))
    assert any(problem.startswith(field) for problem in policy_problems(spec))


def test_the_defaults_are_accepted() -> None:
    """Our own ladders keep the rules that we ask of others."""
    ladders = tuple(Ladder(fault_class=c, rungs=r) for c, r in DEFAULT_LADDERS.items())
    assert policy_problems(RemediationPolicySpec(ladders=ladders)) == ()


@given(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?", fullmatch=True), st.integers(1, 10**6))
def test_job_names_are_labels_and_differ_by_epoch(incident: str, epoch: int) -> None:
    """A Job's name is a label value of its pods: 63 characters, no dots; another intent, another name."""
    name = repair_job_name(incident, epoch)
    assert len(name) <= 63 and "." not in name
    assert name != repair_job_name(incident, epoch + 1)
