"""status, explain, hold, cancel: on a served cluster, through the real command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlast.cli import EXIT_FAULT, EXIT_OK, EXIT_UNKNOWN, EXIT_USAGE, run
from outlast.model.cluster import NODES
from outlast.model.incident import INCIDENTS, Phase
from outlast.model.names import CANCEL_ANNOTATION, HOLD_ANNOTATION
from outlast.web.state import FleetState
from tests.unit.cli.conftest import ServedStore
from tests.unit.web.samples import fault, fleet_state, health, incident, node, policy

STORY = "gpu-0003-7f3a91c0"


def small(*, sick: bool = True) -> FleetState:
    stories = [incident("gpu-0003", Phase.DRAINING)] if sick else []
    faults = (fault(),) if sick else ()
    nodes = [node("gpu-0003", cordoned=sick), node("gpu-0004")]
    return FleetState.of(nodes, [health("gpu-0003", *faults), health("gpu-0004")], stories, [policy()])


def outlast(served: ServedStore, *words: str) -> int:
    return run([*words, "--kubeconfig", str(served.kubeconfig)])


def test_status_of_a_fleet_in_trouble_is_exit_1(
    served: ServedStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node out of service is a fault found; the table names node, state and fault."""
    served.fill(fleet_state())
    assert outlast(served, "status") == EXIT_FAULT
    out = capsys.readouterr().out
    assert "44 of 48 nodes in service" in out
    assert "gpu-0021" in out
    assert "on hold" in out


def test_status_of_a_healthy_fleet_is_exit_0(served: ServedStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing wrong is 0, and no table of incidents."""
    served.fill(small(sick=False))
    assert outlast(served, "status") == EXIT_OK
    assert "2 of 2 nodes in service" in capsys.readouterr().out


def test_status_fits_100_columns_and_has_no_colours_in_a_pipe(
    served: ServedStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """What goes into a file is plain text that an 100-column screen can show."""
    served.fill(fleet_state())
    outlast(served, "status")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_status_as_json_is_a_versioned_document(
    served: ServedStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs get the numbers and the open incidents."""
    served.fill(small())
    assert outlast(served, "status", "--json") == EXIT_FAULT
    document = json.loads(capsys.readouterr().out)
    assert document["apiVersion"] == "outlast.dev/cli/v1"
    assert document["fleet"]["outOfService"] == 1
    assert [row["node"] for row in document["incidents"]["open"]] == ["gpu-0003"]


@pytest.mark.parametrize("target", ["gpu-0003", STORY])
def test_explain_takes_a_node_or_an_incident(
    served: ServedStore, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    """Both words lead to the same page."""
    served.fill(small())
    assert outlast(served, "explain", target) == EXIT_OK
    out = capsys.readouterr().out
    assert "OUT OF SERVICE" in out
    assert "What happened" in out
    assert STORY in out
    assert max(len(line) for line in out.split("Overrule", maxsplit=1)[0].splitlines()) <= 100


def test_explain_a_healthy_node(served: ServedStore, capsys: pytest.CaptureFixture[str]) -> None:
    """A node without an incident has a page too."""
    served.fill(small())
    assert outlast(served, "explain", "gpu-0004", "--json") == EXIT_OK
    page = json.loads(capsys.readouterr().out)
    assert (page["node"], page["incident"], page["state"]) == ("gpu-0004", "", "healthy")


@pytest.mark.parametrize("words", [("explain",), ("hold", "--reason", "x"), ("cancel", "--reason", "x")])
def test_an_unknown_name_is_one_sentence_and_exit_2(
    served: ServedStore, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """What happened, to what, what to do."""
    served.fill(small())
    assert outlast(served, words[0], "gpu-9999", *words[1:]) == EXIT_USAGE
    err = capsys.readouterr().err
    assert "'gpu-9999'" in err
    assert "outlast status" in err
    assert len(err.splitlines()) == 1


def test_hold_writes_the_reason_on_the_node_and_takes_it_away_again(
    served: ServedStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """An incident's name holds its node."""
    served.fill(small())
    assert outlast(served, "hold", STORY, "--reason", "firmware test") == EXIT_OK
    assert served.store.get(NODES, "gpu-0003")["metadata"]["annotations"][HOLD_ANNOTATION] == "firmware test"
    assert "--off" in capsys.readouterr().out
    assert outlast(served, "hold", "gpu-0003", "--off") == EXIT_OK
    assert HOLD_ANNOTATION not in served.store.get(NODES, "gpu-0003")["metadata"].get("annotations", {})


def test_a_hold_needs_a_reason(served: ServedStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Others have to know why."""
    served.fill(small())
    assert outlast(served, "hold", "gpu-0003") == EXIT_USAGE
    assert "--reason" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["gpu-0003", STORY])
def test_cancel_writes_the_reason_on_the_incident(served: ServedStore, target: str) -> None:
    """A node's name cancels its open incident."""
    served.fill(small())
    assert outlast(served, "cancel", target, "--reason", "cable reseated") == EXIT_OK
    notes = served.store.get(INCIDENTS, STORY)["metadata"]["annotations"]
    assert notes[CANCEL_ANNOTATION] == "cable reseated"


def test_there_is_nothing_to_cancel_on_a_healthy_node(
    served: ServedStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without an open incident the answer is a sentence, not a write."""
    served.fill(small())
    assert outlast(served, "cancel", "gpu-0004", "--reason", "x") == EXIT_USAGE
    assert "nothing to cancel" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["status", "explain"])
def test_a_wrong_kubeconfig_is_one_sentence_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    """No traceback for a user's mistake."""
    words = [verb] + (["gpu-0001"] if verb == "explain" else [])
    assert run([*words, "--kubeconfig", str(tmp_path / "none")]) == EXIT_USAGE
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert str(tmp_path / "none") in err


def test_a_cluster_that_does_not_answer_is_exit_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], served: ServedStore
) -> None:
    """It could not be told."""
    text = served.kubeconfig.read_text()
    port = text.split("127.0.0.1:")[1].split("\n")[0].strip("'\" ")
    dead = tmp_path / "dead"
    dead.write_text(text.replace(port, "1"))
    assert run(["status", "--kubeconfig", str(dead)]) == EXIT_UNKNOWN
    assert "does not answer" in capsys.readouterr().err


def test_a_cluster_without_outlast_says_so(served: ServedStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing kinds are named, with how to look."""
    from outlast.sim.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS

    for entry in served.store.entries(CUSTOM_RESOURCE_DEFINITIONS):
        served.store.delete(CUSTOM_RESOURCE_DEFINITIONS, entry.name)
    assert outlast(served, "status") == EXIT_UNKNOWN
    assert "is outlast installed" in capsys.readouterr().err
