"""Counts by policy, kept by differences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outlast.controller.fleet import Contribution, FleetLedger, contribution
from outlast.model.cluster import ObjectMeta
from outlast.model.incident import Attempt, Incident, IncidentSpec, IncidentStatus
from outlast.model.policy import Rung
from outlast.remediation.decide import RulingPolicy
from tests.unit.remediation.builders import START, a_node, enforce

NODES = [f"n{i}" for i in range(5)]
FACTS = st.builds(
    Contribution,
    policy=st.sampled_from(["gpu", "other", ""]),
    unavailable=st.booleans(),
    repairing=st.booleans(),
    domain=st.sampled_from(["a", "b", ""]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(NODES), FACTS),
        st.tuples(st.sampled_from(["drop", "reserve_block", "settle"]), st.sampled_from(NODES)),
        st.tuples(st.just("reserve_repair"), st.sampled_from(NODES), st.just("i1")),
    ),
    max_size=40,
)


@given(STEPS)
def test_differences_add_up_to_a_recount(steps: list) -> None:
    """After any history the counts are those of counting afresh."""
    ledger = FleetLedger()
    facts: dict[str, Contribution] = {}
    blocks: set[str] = set()
    repairs: set[str] = set()
    for step in steps:
        getattr(ledger, step[0])(*step[1:])
        name = step[1]
        if step[0] == "put":
            facts[name] = step[2]
        elif step[0] == "drop":
            facts.pop(name, None)
        if step[0] in ("drop", "settle"):
            blocks.discard(name)
            repairs.discard(name)
        blocks |= {name} if step[0] == "reserve_block" else set()
        repairs |= {name} if step[0] == "reserve_repair" else set()
    view = ledger.view("outsider", enforce(), START)
    ruled = {n: f for n, f in facts.items() if f.policy == "gpu"}
    assert ledger.totals("gpu")[0] == len(ruled)
    assert view.unavailable == sum(f.unavailable or n in blocks for n, f in ruled.items())
    assert view.repairs_in_flight == sum(f.repairing or n in repairs for n, f in ruled.items())


def test_a_node_is_left_out_of_its_own_view() -> None:
    """Asking twice for the same node gives the same answer."""
    ledger = FleetLedger()
    for name in NODES:
        ledger.put(name, Contribution("gpu", unavailable=True, repairing=True, domain="a"))
    view = ledger.view("n0", enforce(), START)
    assert (view.unavailable, view.repairs_in_flight, view.repairs_in_domain) == (4, 4, 4)


def test_a_reservation_counts_before_its_request_is_sent() -> None:
    """Two workers never see the same free slot."""
    ledger = FleetLedger()
    for name in NODES:
        ledger.put(name, Contribution("gpu"))
    ledger.reserve_block("n1")
    assert ledger.view("n0", enforce(), START).unavailable == 1
    ledger.settle("n1")
    assert ledger.view("n0", enforce(), START).unavailable == 0


def test_a_repair_on_its_way_counts_for_the_hour_until_its_record_does() -> None:
    """The hour's budget is spent by the decision, not by the answer to its write; and it is spent once."""
    ledger = FleetLedger()
    for name in NODES:
        ledger.put(name, Contribution("gpu"))
    ledger.reserve_repair("n1", "n1-i")
    assert ledger.view("n0", enforce(), START).repairs_last_hour == 1
    assert ledger.view("n1", enforce(), START).repairs_last_hour == 0
    drain = Attempt(id="2-Drain", rung=Rung.DRAIN, started_at=START)
    spec = IncidentSpec(node_name="n1", node_uid="n1", opened_at=START, policy="gpu")
    ledger.saw_incident(
        Incident(metadata=ObjectMeta(name="n1-i"), spec=spec, status=IncidentStatus(attempts=(drain,)))
    )
    assert ledger.view("n0", enforce(), START).repairs_last_hour == 1
    ledger.settle("n1")
    assert ledger.view("n0", enforce(), START).repairs_last_hour == 1


def test_a_policy_with_a_long_name_is_one_policy() -> None:
    """Incidents keep the beginning of a name; the budget they use up is still that of the policy."""
    ruling = RulingPolicy("gpu-" + "a" * 200, enforce().spec)
    ledger = FleetLedger()
    ledger.put("n1", contribution(a_node("n1", unschedulable=True), None, ruling))
    drain = Attempt(id="2-Drain", rung=Rung.DRAIN, started_at=START)
    spec = IncidentSpec(node_name="n1", node_uid="n1", opened_at=START, policy=ruling.name[:128])
    ledger.saw_incident(
        Incident(metadata=ObjectMeta(name="n1-i"), spec=spec, status=IncidentStatus(attempts=(drain,)))
    )
    view = ledger.view("n0", ruling, START)
    assert (view.unavailable, view.repairs_last_hour) == (1, 1)
    assert ledger.totals(ruling.name) == (1, 1)
