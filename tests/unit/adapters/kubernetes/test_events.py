"""Events never hold anything up: bounded, counted, dropped in the open."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from outlast.adapters.kubernetes import QueuedEvents
from outlast.adapters.kubernetes.events import MESSAGE_CHARS_MAX, NAME_CHARS_MAX
from outlast.model.cluster import NODES
from outlast.ports.cluster import ClusterError, EventNote, Forbidden, NotFound, Patch, Unavailable
from tests.unit.adapters.kubernetes.virtual import VirtualClock

NOTE = EventNote(NODES, "n1", "Cordoned", "Xid 79 on GPU 3", uid="u1", warning=True)


class EventServer:
    """Takes Events, or fails in the given way first."""

    def __init__(self, *failures: ClusterError) -> None:
        self.created: list[dict[str, Any]] = []
        self.patched: list[tuple[str, dict[str, Any]]] = []
        self.failures = list(failures)

    async def create(self, kind: Any, body: dict[str, Any], namespace: str = "") -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.created.append(body)

    async def patch(self, kind: Any, name: str, patch: Patch, namespace: str = "", **_: Any) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.patched.append((name, patch.body))


def recorder(server: EventServer, **options: Any) -> QueuedEvents:
    return QueuedEvents(server, clock=VirtualClock(instant=True), rng=Random(1), **options)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_full_queue_is_said_once_and_again_when_it_is_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever misses an Event finds in the log why it is not there."""
    events = recorder(EventServer(), queue_max=1)
    for number in range(3):
        events.record(replace(NOTE, message=str(number)))
    await events.flush()
    said = capsys.readouterr().out
    assert said.count("events are dropped until") == 1
    assert said.count("queue of events is written") == 1 and "dropped=2" in said


@pytest.mark.asyncio
async def test_the_same_note_again_raises_a_count() -> None:
    """Waiting repetitions are one write; later ones patch the Event that is there."""
    server = EventServer()
    events = recorder(server)
    events.record(NOTE)
    events.record(NOTE)
    await events.flush()
    events.record(NOTE)
    await events.flush()
    assert [event["count"] for event in server.created] == [2]
    assert [(name, body["count"]) for name, body in server.patched] == [
        (server.created[0]["metadata"]["name"], 3)
    ]
    assert server.created[0]["type"] == "Warning"
    assert server.created[0]["metadata"]["namespace"] == "default"


@pytest.mark.asyncio
async def test_an_event_that_expired_starts_a_new_life() -> None:
    """The server forgets Events after an hour."""
    server = EventServer()
    events = recorder(server)
    events.record(NOTE)
    await events.flush()
    server.failures = [NotFound("gone", status=404)]
    events.record(NOTE)
    await events.flush()
    assert [event["count"] for event in server.created] == [1, 1]


def test_a_full_queue_drops_and_counts() -> None:
    """The queue has a limit with a name; what it costs is visible."""
    events = recorder(EventServer(), queue_max=2)
    for number in range(5):
        events.record(EventNote(NODES, f"n{number}", "R", "m"))
    assert events.dropped == 3


@pytest.mark.asyncio
async def test_trouble_that_passes_is_tried_again_and_a_refusal_is_not() -> None:
    """Unavailable: a few tries with pauses. Forbidden: dropped at once, counted, nothing raised."""
    server = EventServer(Unavailable("down"), Unavailable("down"))
    events = recorder(server)
    events.record(NOTE)
    await events.flush()
    assert len(server.created) == 1
    server.failures = [Forbidden("no right", status=403)]
    events.record(EventNote(NODES, "n2", "R", "m"))
    await events.flush()
    assert events.dropped == 1


@pytest.mark.asyncio
async def test_names_and_messages_fit_the_server() -> None:
    """Long input is shortened, never refused by the server."""
    server = EventServer()
    events = recorder(server)
    events.record(EventNote(NODES, "n" * 253, "R", "m" * 5000))
    await events.flush()
    assert len(server.created[0]["metadata"]["name"]) <= NAME_CHARS_MAX
    assert len(server.created[0]["message"]) == MESSAGE_CHARS_MAX
