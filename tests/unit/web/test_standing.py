"""The seven words."""

import msgspec
import pytest

from outlast.model.cluster import Condition, Node, NodeStatus
from outlast.model.health import Subsystem, SubsystemVerdict, Verdict
from outlast.model.incident import EndResult, Phase
from outlast.remediation.explain import explain
from outlast.remediation.page import State
from outlast.web.standing import in_service, standing
from tests.unit.web.samples import NOW, fault, health, incident, node


def _cordoned(one: Node) -> Node:
    """As `kubectl cordon` leaves it."""
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, unschedulable=True))


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        (Phase.WAITING, State.WATCHED),
        (Phase.BLOCKED, State.BLOCKED),
        (Phase.CHECKPOINTING, State.DRAINING),
        (Phase.DRAINING, State.DRAINING),
        (Phase.REPAIRING, State.REPAIRING),
        (Phase.VERIFYING, State.REPAIRING),
        (Phase.WATCHED, State.WATCHED),
        (Phase.ON_HOLD, State.ON_HOLD),
    ],
)
def test_an_open_incident_decides_the_word(phase: Phase, state: State) -> None:
    """Each phase of an open incident has one word."""
    assert standing(node("n"), health("n"), incident("n", phase)).state is state


def test_a_hold_by_a_human_wins_over_everything() -> None:
    """A held node is on hold and says why, whatever the incident does."""
    held = node("n", outlast_dev__hold="firmware test")
    stands = standing(held, health("n"), incident("n", Phase.REPAIRING))
    assert stands.state is State.ON_HOLD
    assert "firmware test" in stands.because


def test_a_held_node_is_out_of_service_only_when_it_is_cordoned() -> None:
    """A hold leaves a node as it is, so new work may still come to one that nobody cordoned."""
    assert in_service(State.ON_HOLD, unschedulable=False)
    assert not in_service(State.ON_HOLD, unschedulable=True)
    assert not in_service(State.BLOCKED, unschedulable=False), "a block that is not in the cache yet"


def test_terminal_and_browser_have_the_same_word_for_a_node_without_an_incident() -> None:
    """`explain` and the fleet map judge the same objects; they must not disagree."""
    sick = health("n", fault())
    lost = Condition(type="Ready", status="Unknown", reason="NodeStatusUnknown")
    down = msgspec.structs.replace(node("n"), status=NodeStatus(conditions=(lost,)))
    for one, agent in (
        (node("n"), health("n")),
        (node("n"), sick),
        (node("n"), None),
        (_cordoned(node("n")), health("n")),
        (_cordoned(node("n")), None),
        (node("n", cordoned=True), sick),
        (node("n", outlast_dev__hold="firmware test"), health("n")),
        (_cordoned(node("n", outlast_dev__hold="firmware test")), sick),
        (down, health("n")),
    ):
        page = explain(None, one, agent, None, None, NOW)
        stands = standing(one, agent, None)
        assert page.state is stands.state, page.headline
        if page.state is not State.UNKNOWN:
            assert page.in_service is in_service(stands.state, unschedulable=one.spec.unschedulable)


def test_an_observed_incident_leaves_the_node_in_service() -> None:
    """Under Observe nothing was done, so the node is watched and takes work."""
    stands = standing(node("n"), health("n", fault()), incident("n", Phase.BLOCKED, observe_only=True))
    assert stands.state is State.WATCHED
    assert in_service(stands.state)


def test_a_closed_incident_says_nothing_about_the_present() -> None:
    """After the end the agent's word counts again."""
    over = incident("n", Phase.CLOSED, end=EndResult.RETURNED)
    assert standing(node("n"), health("n"), over).state is State.HEALTHY


def test_silence_is_unknown_never_healthy() -> None:
    """A node without a completed check is unknown."""
    assert standing(node("n"), None, None).state is State.UNKNOWN
    unchecked = msgspec.structs.replace(
        health("n"), status=msgspec.structs.replace(health("n").status, checked_at=None)
    )
    assert standing(node("n"), unchecked, None).state is State.UNKNOWN


def test_an_unknown_monitor_makes_the_node_unknown() -> None:
    """Without a source that vouches for the GPUs nobody calls them healthy."""
    status = health("n").status
    verdicts = (
        SubsystemVerdict(subsystem=Subsystem.MONITOR, verdict=Verdict.UNKNOWN, reason="LibraryMissing"),
    )
    seen = msgspec.structs.replace(health("n"), status=msgspec.structs.replace(status, verdicts=verdicts))
    stands = standing(node("n"), seen, None)
    assert (stands.state, stands.because) == (State.UNKNOWN, "LibraryMissing")


def test_a_foreign_cordon_is_named_as_such() -> None:
    """A cordon without our annotation is somebody else's."""
    stands = standing(_cordoned(node("n")), health("n"), None)
    assert stands.state is State.BLOCKED
    assert "somebody else" in stands.because


def test_a_node_the_kubelet_lost_is_unknown() -> None:
    """Ready other than True is unknown, with its reason."""
    lost = Condition(type="Ready", status="Unknown", reason="NodeStatusUnknown")
    gone = msgspec.structs.replace(node("n"), status=NodeStatus(conditions=(lost,)))
    assert standing(gone, health("n"), None).state is State.UNKNOWN
