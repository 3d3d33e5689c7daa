"""Views: objects in, page data out."""

from datetime import timedelta

import msgspec
import pytest

from outlast.model.cluster import Condition
from outlast.model.incident import EndResult, Phase
from outlast.remediation.page import Milestone, State
from outlast.web.state import FleetState, out_seconds
from outlast.web.views.fleet import Filter, fleet, gpu_letters
from outlast.web.views.incidents import incidents
from outlast.web.views.limits import limits_of
from outlast.web.views.node import node as node_page
from outlast.web.views.policy import policies
from outlast.web.views.timeline import LABEL_WIDTH, timeline
from outlast.web.wording import fault_name, span, words_of
from tests.unit.web.samples import NOW, fault, fleet_state, health, incident, node, policy


def test_the_fleet_page_counts_every_node_once() -> None:
    """The counts over the words add up to the nodes, and those out of service to the headline."""
    page = fleet(fleet_state(), Filter(), NOW)
    counts = {c.state: c.nodes for c in page.headline.counts}
    assert sum(counts.values()) == page.headline.nodes == 48
    assert counts[State.DRAINING] == counts[State.REPAIRING] == counts[State.ON_HOLD] == 1
    assert page.headline.out_of_service == 4


def test_a_filter_hides_tiles_and_changes_no_number() -> None:
    """What is filtered away still counts on top and in its group's heading."""
    page = fleet(fleet_state(), Filter(state="draining"), NOW)
    assert [t.name for g in page.groups for t in g.tiles] == ["gpu-0003"]
    assert page.headline.nodes == 48
    assert page.groups[0].total == 8


def test_a_query_finds_nodes_by_fault() -> None:
    """The query looks at name, type and fault."""
    page = fleet(fleet_state(), Filter(query="EFA"), NOW)
    assert [t.name for g in page.groups for t in g.tiles] == ["gpu-0012"]


def test_gpus_that_do_not_enumerate_are_shown_as_lost() -> None:
    """A GPU missing from the inventory is a lost cell, not a shorter row."""
    seen = health("n", fault(index=2), lost=5)
    assert gpu_letters(seen) == "oofooxoo"
    short = msgspec.structs.replace(
        seen, status=msgspec.structs.replace(seen.status, gpus=seen.status.gpus[:7])
    )
    assert gpu_letters(short).endswith("x")
    assert len(gpu_letters(short)) == 8


def test_a_node_that_came_back_under_its_name_is_not_its_predecessor() -> None:
    """An incident belongs to a uid; the new machine of that name starts clean."""
    reborn = node("n")
    reborn = msgspec.structs.replace(reborn, metadata=msgspec.structs.replace(reborn.metadata, uid="new"))
    state = FleetState.of([reborn], [health("n")], [incident("n")])
    assert state.standing(reborn).state is State.HEALTHY


def test_availability_is_lost_by_blocks_of_ours_only_inside_the_window() -> None:
    """Time out of service is clipped to the window; observed incidents cost nothing."""
    since = NOW - timedelta(hours=1)
    assert out_seconds(incident("n", minutes=6), since, NOW) == pytest.approx(360)
    assert out_seconds(incident("n", minutes=600), since, NOW) == pytest.approx(3600)
    assert out_seconds(incident("n", minutes=6, observe_only=True), since, NOW) == 0
    assert out_seconds(incident("n", minutes=40, end=EndResult.RETURNED), since, NOW) == pytest.approx(1200)


def test_limits_show_their_present_use() -> None:
    """Only repairs that run now are in flight."""
    found = {limit.name: limit for limit in limits_of(policy(9), fleet_state(), NOW)}
    assert found["repairs in flight"].used == 2
    assert found["out of service"].reached


def test_a_storm_is_a_banner() -> None:
    """The policy's Storm condition stands over the fleet."""
    stormy = policy()
    condition = Condition(type="Storm", status="True", reason="Storm", message="8 nodes of rack-b: xid/79")
    stormy = msgspec.structs.replace(
        stormy, status=msgspec.structs.replace(stormy.status, conditions=(condition,))
    )
    page = fleet(FleetState.of([node("n")], [health("n")], [], [stormy]), Filter(), NOW)
    assert [(b.title, b.text) for b in page.headline.banners] == [("Storm", "8 nodes of rack-b: xid/79")]


def test_open_incidents_come_before_closed_ones() -> None:
    """Open first, newest first; a closed one shows its end and how long it lasted."""
    page = incidents(fleet_state(), NOW)
    assert page.open[0].node == "gpu-0012"
    assert [(r.end, r.lasted) for r in page.closed] == [("returned", "20 min")]


def test_the_node_page_keeps_the_raw_evidence() -> None:
    """What was seen is shown as it was seen."""
    page = node_page(fleet_state(), "gpu-0003", NOW)
    assert page is not None
    assert page.faults[0].evidence[0].text.startswith("NVRM: Xid")
    assert [g.word for g in page.gpus].count("lost") == 1


def test_a_node_that_left_is_remembered_by_its_incidents() -> None:
    """The page of a replaced node still tells its story; a name nobody knows has no page."""
    state = FleetState.of([], [], [incident("gone", Phase.CLOSED, end=EndResult.REPLACED)])
    page = node_page(state, "gone", NOW)
    assert page is not None
    assert "no longer" in page.because
    assert node_page(state, "never", NOW) is None


def test_the_policy_page_shows_what_is_in_force() -> None:
    """While a newer spec is not accepted, the numbers are those of the last good one."""
    good = policy()
    newer = msgspec.structs.replace(
        good,
        spec=msgspec.structs.replace(good.spec, reboot_tries=5),
        status=msgspec.structs.replace(good.status, in_force=good.spec),
    )
    card = policies(FleetState.of([], [], [], [newer]), NOW).policies[0]
    assert card.stale
    assert {s.name: s.value for s in card.settings}["reboots in one incident"] == "1"


def test_the_timeline_is_to_scale() -> None:
    """A step that took half of the time takes half of the axis; a short one is still visible."""
    marks = [
        Milestone(name="detect", started_at=NOW, ended_at=NOW + timedelta(milliseconds=90)),
        Milestone(name="drain", started_at=NOW, ended_at=NOW + timedelta(minutes=5)),
        Milestone(name="act", started_at=NOW + timedelta(minutes=5)),
    ]
    drawn = timeline(marks, NOW + timedelta(minutes=10))
    assert drawn is not None
    detect, drain, act = drawn.bars
    axis = drawn.right - drawn.left
    assert detect.x == LABEL_WIDTH
    assert detect.width >= 2
    assert drain.width == pytest.approx(axis / 2, abs=0.2)
    assert act.x == pytest.approx(drawn.left + axis / 2, abs=0.2)
    assert act.running


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0.092, "92 ms"),
        (4.2, "4.2 s"),
        (59, "59 s"),
        (370, "6 min 10 s"),
        (3900, "1 h 5 min"),
        (3 * 86400, "3 d"),
    ],
)
def test_spans_lose_precision_as_they_grow(seconds: float, text: str) -> None:
    """Nobody acts on the seconds of an hour."""
    assert span(seconds) == text


def test_codes_and_steps_are_said_in_words() -> None:
    """Catalogue codes and rungs read as people say them."""
    assert fault_name("xid/79") == "Xid 79"
    assert fault_name("efa/missing") == "EFA missing"
    assert words_of("ResetGPU") == "reset GPU"
    assert words_of("BlockNewWork") == "block new work"


def test_a_tile_is_made_anew_only_when_its_objects_changed() -> None:
    """With 10,000 nodes one change must not cost 10,000 tiles; what is shown is the same either way."""
    before = fleet_state()
    first = fleet(before, Filter(), NOW)
    changed = health("gpu-0000", fault())
    after = FleetState.of(
        before.nodes.values(),
        [h if h.metadata.name != "gpu-0000" else changed for h in before.healths.values()],
        before.incidents.values(),
        before.policies.values(),
        memo=before.memo,
    )
    second = fleet(after, Filter(), NOW)
    old = {t.name: t for g in first.groups for t in g.tiles}
    new = {t.name: t for g in second.groups for t in g.tiles}
    assert [name for name in new if new[name] is not old[name]] == ["gpu-0000"]
    assert (
        fleet(
            FleetState.of(
                after.nodes.values(),
                after.healths.values(),
                after.incidents.values(),
                after.policies.values(),
            ),
            Filter(),
            NOW,
        )
        == second
    )
