"""Misbehaviour: which requests are hit, how often, and with what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from outlast.model.cluster import NODES
from outlast.sim.apiserver import ApiServer, Fault, Match
from outlast.sim.apiserver.faults import RULES_MAX, Faults, Request

DEADLINE_S = 10.0


def test_a_rule_acts_so_many_times() -> None:
    """Then it is gone, and has counted."""
    faults = Faults()
    rule = faults.add(Match(verb="get"), Fault(status=500), times=2)
    taken = [faults.take(Request("get", "nodes")) is not None for _ in range(3)]
    assert (taken, rule.hits) == ([True, True, False], 2)


MATCHES = [
    (Match(), True),
    (Match(verb="patch"), True),
    (Match(verb="write"), True),
    (Match(verb="get"), False),
    (Match(plural="nodes", name="n1"), True),
    (Match(name="n2"), False),
    (Match(client="outlast-agent"), True),
    (Match(client="kubectl"), False),
    (Match(subresource="status"), True),
    (Match(subresource=""), False),
    (Match(user="eve"), False),
]


@pytest.mark.parametrize(("match", "hit"), MATCHES, ids=[str(i) for i in range(len(MATCHES))])
def test_a_rule_hits_its_class_of_requests(match: Match, hit: bool) -> None:
    """By verb, kind, name, subresource, client and user; an empty field matches all."""
    request = Request("patch", "nodes", "n1", "", "status", "outlast-agent/0.1", "system:admin")
    assert match.matches(request) is hit


def test_rules_are_bounded() -> None:
    """A loop that adds rules is stopped."""
    faults = Faults()
    for _ in range(RULES_MAX):
        faults.add(Match(), Fault())
    with pytest.raises(ValueError, match="more than"):
        faults.add(Match(), Fault())


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A running server with one node."""
    async with ApiServer() as running:
        running.store.create(NODES, {"metadata": {"name": "n"}})
        yield running


@pytest_asyncio.fixture
async def session(server: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    """A client."""
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    async with aiohttp.ClientSession(base_url=server.url, timeout=timeout) as made:
        yield made


@pytest.mark.asyncio
async def test_overload_is_answered_as_text(server: ApiServer, session: aiohttp.ClientSession) -> None:
    """429 of priority and fairness: text/plain and Retry-After."""
    server.faults.add(Match(verb="get"), Fault(status=429, retry_after_s=3), times=1)
    async with session.get("/api/v1/nodes/n") as answer:
        assert (answer.status, answer.content_type) == (429, "text/plain")
        assert answer.headers["Retry-After"] == "3"
    async with session.get("/api/v1/nodes/n") as answer:
        assert answer.status == 200


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "reason"), [(409, "Conflict"), (500, "InternalError"), (503, "ServiceUnavailable")]
)
async def test_errors_are_answered_as_a_status(
    server: ApiServer, session: aiohttp.ClientSession, status: int, reason: str
) -> None:
    """A Status object with code and reason."""
    server.faults.add(Match(plural="nodes"), Fault(status=status), times=1)
    async with session.get("/api/v1/nodes/n") as answer:
        body = await answer.json()
    assert (answer.status, body["code"], body["reason"]) == (status, status, reason)


@pytest.mark.asyncio
async def test_a_lost_answer_leaves_the_write_done(server: ApiServer, session: aiohttp.ClientSession) -> None:
    """The client learns nothing, the object is there."""
    server.faults.add(Match(verb="create"), Fault(after_write=True), times=1)
    with pytest.raises(aiohttp.ClientError):
        await session.post("/api/v1/nodes", json={"metadata": {"name": "new"}})
    assert server.store.get(NODES, "new")["metadata"]["name"] == "new"


async def lines(session: aiohttp.ClientSession, server: ApiServer, writes: int) -> list[bytes]:
    """What a watch delivers while nodes are written, until it ends or two seconds are over."""
    found: list[bytes] = []
    params = {"watch": "1", "resourceVersion": str(server.store.storage.version)}
    async with session.get("/api/v1/nodes", params=params) as answer:
        for number in range(writes):
            server.store.create(NODES, {"metadata": {"name": f"w{number}"}})
        try:
            async with asyncio.timeout(1.0):
                async for line in answer.content:
                    found.append(line)  # noqa: PERF401 - what came before the break counts
        except (TimeoutError, aiohttp.ClientError):
            found.append(b"broken")
    return found


@pytest.mark.asyncio
async def test_a_watch_can_be_dropped(server: ApiServer, session: aiohttp.ClientSession) -> None:
    """It ends cleanly after so many events."""
    server.faults.add(Match(verb="watch"), Fault(drop_watch_after=2), times=1)
    assert len(await lines(session, server, 4)) == 2


@pytest.mark.asyncio
async def test_a_watch_can_freeze(server: ApiServer, session: aiohttp.ClientSession) -> None:
    """It stays open and says nothing more."""
    server.faults.add(Match(verb="watch"), Fault(freeze_watch_after=1), times=1)
    assert (await lines(session, server, 3))[1:] == [b"broken"]


@pytest.mark.asyncio
async def test_a_watch_can_be_cut_within_a_line(server: ApiServer, session: aiohttp.ClientSession) -> None:
    """The connection breaks in the middle of an event."""
    server.faults.add(Match(verb="watch"), Fault(cut_watch_after=1), times=1)
    found = await lines(session, server, 3)
    assert found[-1] == b"broken"
    assert not found[-2].endswith(b"\n") or len(found) == 2


@pytest.mark.asyncio
async def test_only_names_of_this_machine_are_answered(
    server: ApiServer, session: aiohttp.ClientSession
) -> None:
    """A Host header with another name is refused: DNS rebinding reaches nothing."""
    async with session.get("/version", headers={"Host": "evil.example"}) as answer:
        assert answer.status == 403
    async with session.get("/version", headers={"Host": "localhost:1"}) as answer:
        assert answer.status == 200


@pytest.mark.asyncio
async def test_tokens_let_in_who_has_one() -> None:
    """With tokens a stranger is 401 and a user is known by name."""
    async with ApiServer(tokens={"secret": "eve"}) as guarded, aiohttp.ClientSession(guarded.url) as session:
        async with session.get("/api/v1/nodes") as answer:
            assert answer.status == 401
        guarded.faults.add(Match(user="eve"), Fault(status=503), times=1)
        async with session.get("/api/v1/nodes", headers={"Authorization": "Bearer secret"}) as answer:
            assert answer.status == 503
