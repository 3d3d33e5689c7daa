"""The application: pages, twins, headers, hosts and live streams, over its ASGI interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import msgspec
import pytest

from outlast.adapters.clock import SystemClock
from outlast.model.incident import Phase
from outlast.web.app import Dashboard
from outlast.web.live import NAMES_MAX, Hub, TooManyClients
from outlast.web.pages import Address
from outlast.web.state import FleetState
from outlast.web.stream import Stream
from outlast.web.views.fleet import Filter
from tests.unit.web.samples import NOW, explanation, fleet_state, health, incident, node


class StillClock(SystemClock):
    """A wall clock that stands; waiting takes no time."""

    def now(self) -> datetime:
        return NOW

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(0)


def dashboard(state: Callable[[], FleetState] = fleet_state, hub: Hub | None = None) -> Dashboard:
    return Dashboard(state, lambda s, i, now: explanation(i), hub or Hub(), StillClock(), StillClock())


async def fetch(app: Any, path: str, *, host: str = "localhost:80") -> tuple[int, dict[str, str], str]:
    """One GET over the ASGI interface."""
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", host.encode())],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(m.get("body", b"") for m in sent[1:]).decode()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", "gpu-0003"),
        ("/?view=table&state=draining", "draining"),
        ("/incidents", "EFA missing"),
        ("/incidents/gpu-0003-7f3a91c0", "What happened"),
        ("/nodes/gpu-0003", "NVRM: Xid"),
        ("/policy", "repairs in flight"),
    ],
)
async def test_each_page_answers_without_scripts(path: str, text: str) -> None:
    """The server renders every page whole."""
    status, headers, body = await fetch(dashboard().application(), path)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert text in body


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "path",
    [
        "/fleet.json",
        "/?format=json",
        "/incidents.json",
        "/incidents/gpu-0003-7f3a91c0.json",
        "/nodes/gpu-0003.json",
        "/policy.json",
    ],
)
async def test_each_page_has_a_json_twin(path: str) -> None:
    """The same data, for programs."""
    status, headers, body = await fetch(dashboard().application(), path)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body)["synced"] is True


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "path",
    ["/nodes/none", "/incidents/none", "/else", "/nodes/a/b", "/static/../app.py", "/nodes/" + "x" * 4000],
)
async def test_what_is_not_there_is_a_404_with_a_way_out(path: str) -> None:
    """A wrong address answers with a sentence, never with a traceback."""
    status, _, body = await fetch(dashboard().application(), path)
    assert status == 404
    assert "Traceback" not in body


@pytest.mark.asyncio
async def test_hostile_names_stay_text() -> None:
    """Nothing a node or a pod is called becomes markup, in any page or part."""
    evil = "<script>alert(1)</script>"
    story = incident("n1", Phase.ON_HOLD, blocked_by=(evil,))
    hostile = msgspec.structs.replace(
        node("n1"),
        metadata=msgspec.structs.replace(
            node("n1").metadata,
            labels={"nvidia.com/gpu.present": "true", "topology.kubernetes.io/zone": evil},
        ),
    )
    state = FleetState.of([hostile], [health("n1")], [story])
    app = dashboard(lambda: state).application()
    for path in (
        "/",
        "/?view=table",
        f"/?q={evil}",
        "/incidents",
        f"/incidents/{story.metadata.name}",
        "/nodes/n1",
        f"/nodes/{evil}",
    ):
        _, _, body = await fetch(app, path)
        assert "<script>alert" not in body, path


@pytest.mark.asyncio
async def test_every_answer_forbids_foreign_code() -> None:
    """Pages, errors and refusals alike carry the policy that keeps injected text from running."""
    app = dashboard().application()
    for path, host in (("/", "localhost"), ("/none", "localhost"), ("/", "evil.example")):
        _, headers, _ = await fetch(app, path, host=host)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("127.0.0.1", 200),
        ("[::1]:8080", 200),
        ("evil.example", 421),
        ("", 421),
        ("localhost.evil.example", 421),
        ("outlast.internal", 200),
    ],
)
async def test_only_known_hosts_are_served(host: str, status: int) -> None:
    """A name that a stranger points at loopback gets nothing."""
    answer = await fetch(dashboard().application(["outlast.internal"]), "/", host=host)
    assert answer[0] == status


@pytest.mark.asyncio
async def test_health_says_when_the_state_is_old() -> None:
    """A dashboard that lost the API server is alive but not in sync, and says so on the page too."""
    stale = FleetState.of([node("n")], [health("n")], synced=False)
    app = dashboard(lambda: stale).application()
    assert (await fetch(app, "/healthz"))[0] == 503
    assert "last known state" in (await fetch(app, "/"))[2]


@asynccontextmanager
async def reading(
    where: Address, state: Callable[[], FleetState], hub: Hub
) -> AsyncIterator[AsyncIterator[bytes]]:
    with hub.subscribe() as mailbox:
        stream = Stream(where, state, lambda s, i, now: explanation(i), hub, StillClock(), StillClock())
        events = stream.events(mailbox)
        yield events
        await events.aclose()  # type: ignore[attr-defined]


@pytest.mark.asyncio
async def test_a_changed_node_is_sent_as_one_tile() -> None:
    """After the page only what changed travels: the tile, its group's heading, the numbers."""
    box = [fleet_state()]
    hub = Hub()
    async with reading(Address("fleet", filter=Filter()), lambda: box[0], hub) as events:
        assert (await anext(events)).startswith(b"retry")
        assert (await anext(events)).startswith(b"event: page")
        assert (await anext(events)).startswith(b"event: clock")
        old = box[0]
        box[0] = FleetState.of(
            old.nodes.values(),
            old.healths.values(),
            [*old.incidents.values(), incident("gpu-0040", Phase.BLOCKED)],
            old.policies.values(),
        )
        hub.changed("gpu-0040")
        kind, data = (await anext(events)).decode().split("\ndata: ")
    assert kind == "event: parts"
    assert set(json.loads(data)["parts"]) == {"n-gpu-0040", "head", "g-5"}


@pytest.mark.asyncio
async def test_a_new_node_brings_the_page_anew() -> None:
    """When the set of tiles changes, the reader gets the whole map."""
    box = [FleetState.of([node("a")], [health("a")])]
    hub = Hub()
    async with reading(Address("fleet", filter=Filter()), lambda: box[0], hub) as events:
        for _ in range(3):
            await anext(events)
        box[0] = FleetState.of([node("a"), node("b")], [health("a"), health("b")])
        hub.changed("b")
        assert b"n-b" in await anext(events)


@pytest.mark.asyncio
async def test_a_slow_reader_holds_names_not_pages() -> None:
    """A mailbox that overflows forgets the names and asks for the page anew."""
    hub = Hub()
    with hub.subscribe() as mailbox:
        for i in range(NAMES_MAX + 5):
            hub.changed(f"node-{i}")
        changes = await mailbox.take(1)
        assert changes is not None
        assert changes.everything
        assert not changes.names
        assert await mailbox.take(0.01) is None


@pytest.mark.asyncio
async def test_live_readers_are_limited_and_sent_away_at_the_end() -> None:
    """One reader more than the limit is refused; a closing hub ends every stream."""
    hub = Hub(clients_max=1)
    async with reading(Address("incidents"), fleet_state, hub) as events:
        with pytest.raises(TooManyClients), hub.subscribe():
            pass
        for _ in range(3):
            await anext(events)
        hub.close()
        assert (await anext(events)).startswith(b"event: bye")
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    assert hub.clients == 0
