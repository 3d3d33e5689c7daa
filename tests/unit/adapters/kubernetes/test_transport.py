"""Deadlines, retries and refusals against a server that misbehaves, on a clock that does not wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from outlast.adapters.kubernetes import Access, KubernetesCluster, Limits, access_with_token
from outlast.adapters.kubernetes.credentials import FileCredential, SecretFiles
from outlast.model.cluster import NODES, PODS
from outlast.ports.cluster import (
    ClusterError,
    EvictionAnswer,
    Invalid,
    NotFound,
    Patch,
    PatchType,
    Unauthorized,
    Unavailable,
)
from tests.unit.adapters.kubernetes.hostile import (
    Answerer,
    Call,
    HostileServer,
    hostile,
    node,
    node_list,
    status,
)
from tests.unit.adapters.kubernetes.virtual import VirtualClock

CORDON = Patch(PatchType.MERGE, {"spec": {"unschedulable": True}})


class Bench:
    """A client on an instant clock, and the server it talks to."""

    def __init__(self, cluster: KubernetesCluster, server: HostileServer, clock: VirtualClock) -> None:
        self.cluster = cluster
        self.server = server
        self.clock = clock


@asynccontextmanager
async def bench(answerer: Answerer, **limits: Any) -> AsyncIterator[Bench]:
    clock = VirtualClock(instant=True)
    async with hostile(answerer) as server:
        access = access_with_token(server.url, "secret-token-of-this-test")
        async with KubernetesCluster(access, clock=clock, rng=Random(7), limits=Limits(**limits)) as cluster:
            yield Bench(cluster, server, clock)


def in_turn(*answers: Answerer) -> Answerer:
    """Answer the first call with the first, and so on; the last one stays."""
    left = list(answers)

    async def answerer(call: Call) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(call)

    return answerer


async def good(call: Call) -> None:
    await call.answer(200, node("n1", 5))


async def overloaded(call: Call) -> None:
    await call.answer(429, b"Too many requests", content_type="text/plain", Retry_After="1")


async def broken(call: Call) -> None:
    await call.answer(500, status(500, "InternalError", "oops"))


async def dropped(call: Call) -> None:
    call.drop()


async def hung(call: Call) -> None:
    await call.hang()


@pytest.mark.asyncio
@pytest.mark.parametrize("trouble", [overloaded, broken, dropped])
async def test_a_read_survives_trouble_that_passes(trouble: Answerer) -> None:
    """429, 5xx and a cut connection are tried again."""
    async with bench(in_turn(trouble, trouble, good)) as b:
        assert (await b.cluster.get(NODES, "n1")).metadata.resource_version == "5"


@pytest.mark.asyncio
async def test_retry_after_is_honoured() -> None:
    """The server's wish for a pause is the least we wait."""
    async with bench(in_turn(overloaded, good)) as b:
        await b.cluster.get(NODES, "n1")
        assert b.clock.slept_s == [1.0]


@pytest.mark.asyncio
async def test_tries_are_bounded_and_the_pauses_grow_with_jitter() -> None:
    """`attempts_max` tries, then Unavailable with the last reason."""
    async with bench(broken, attempts_max=4) as b:
        with pytest.raises(Unavailable, match="get Node n1: 500: oops"):
            await b.cluster.get(NODES, "n1")
        assert len(b.server.calls) == 4
        assert [0.1 * 2**i <= s <= 0.2 * 2**i for i, s in enumerate(b.clock.slept_s)] == [True] * 3


@pytest.mark.asyncio
@pytest.mark.parametrize("trouble", [broken, dropped])
@pytest.mark.parametrize("verb", ["create", "patch", "delete", "evict"])
async def test_a_write_whose_fate_is_unknown_is_sent_once(trouble: Answerer, verb: str) -> None:
    """5xx or a cut connection may hide a write that happened, also on a connection used before."""
    async with bench(in_turn(good, trouble)) as b:
        await b.cluster.get(NODES, "n1")
        with pytest.raises(Unavailable):
            await {
                "create": lambda: b.cluster.create(NODES, node("n1", 1)),
                "patch": lambda: b.cluster.patch(NODES, "n1", CORDON),
                "delete": lambda: b.cluster.delete(NODES, "n1"),
                "evict": lambda: b.cluster.evict("p", "ns", uid="u"),
            }[verb]()
        assert len(b.server.calls) == 2


@pytest.mark.asyncio
async def test_a_write_turned_away_by_overload_is_sent_again() -> None:
    """429 in plain text means that nothing was done."""
    async with bench(in_turn(overloaded, good)) as b:
        await b.cluster.patch(NODES, "n1", CORDON)
        assert len(b.server.calls) == 2


@pytest.mark.asyncio
async def test_a_write_never_outlives_its_deadline_by_retrying() -> None:
    """All tries of a write together stay inside the deadline a fence counts with."""

    async def slow_down(call: Call) -> None:
        await call.answer(429, b"no", content_type="text/plain", Retry_After="2")

    async with bench(slow_down, request_deadline_s=3.0) as b:
        with pytest.raises(Unavailable) as caught:
            await b.cluster.patch(NODES, "n1", CORDON)
        assert caught.value.retry_after_s == 2.0
        assert len(b.server.calls) == 2
        assert sum(b.clock.slept_s) < 3.0


@pytest.mark.asyncio
async def test_a_connection_refused_is_tried_again_even_for_a_write() -> None:
    """Nothing was sent, so nothing can have happened."""
    async with bench(good) as b:
        dead = access_with_token("http://127.0.0.1:9")
        async with KubernetesCluster(dead, clock=b.clock, rng=Random(1)) as cluster:
            with pytest.raises(Unavailable, match=r"no connection to http://127\.0\.0\.1:9"):
                await cluster.patch(NODES, "n1", CORDON)
        assert len(b.clock.slept_s) == 3


@pytest.mark.asyncio
async def test_a_server_that_never_answers_costs_the_deadline_and_no_more() -> None:
    """A half-open connection ends as Unavailable; a write is not repeated."""
    async with bench(hung, request_deadline_s=0.05) as b:
        with pytest.raises(Unavailable, match="no answer within"):
            await b.cluster.patch(NODES, "n1", CORDON)
        assert len(b.server.calls) == 1


@pytest.mark.asyncio
async def test_a_redirect_is_refused_and_the_token_goes_nowhere() -> None:
    """An API server does not redirect; following would hand the token to whoever is named."""

    async def redirect(call: Call) -> None:
        await call.answer(302, b"", Location=f"http://{call.headers['host']}/elsewhere")

    async with bench(redirect) as b:
        with pytest.raises(Unavailable, match="redirect"):
            await b.cluster.patch(NODES, "n1", CORDON)
        assert [call.path for call in b.server.calls] == ["/api/v1/nodes/n1"]


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\x00\xff", b'{"metadata":{"labels":[1]}}'])
async def test_an_answer_that_cannot_be_read_is_unavailable(body: bytes) -> None:
    """Garbage with status 200 tells nothing about the object."""

    async def garbage(call: Call) -> None:
        await call.answer(200, body)

    async with bench(garbage) as b:
        with pytest.raises(Unavailable, match="cannot be read"):
            await b.cluster.get(NODES, "n1")


@pytest.mark.asyncio
async def test_an_answer_without_end_is_cut() -> None:
    """A body is bounded by `body_bytes_max`, however it is sent."""

    async def endless(call: Call) -> None:
        await call.start()
        while True:
            await call.chunk(b"x" * 4096)

    async with bench(endless, body_bytes_max=65536, attempts_max=1) as b:
        with pytest.raises(Unavailable, match="body_bytes_max"):
            await b.cluster.get(NODES, "n1")


@pytest.mark.asyncio
async def test_a_refused_credential_is_renewed_once() -> None:
    """401 asks the source for another credential; a second 401 is the answer."""

    async def unauthorized(call: Call) -> None:
        await call.answer(401, status(401, "Unauthorized", "Unauthorized"))

    async with bench(in_turn(unauthorized, good)) as b:
        await b.cluster.get(NODES, "n1")
        assert len(b.server.calls) == 2
    async with bench(unauthorized) as b:
        with pytest.raises(Unauthorized):
            await b.cluster.patch(NODES, "n1", CORDON)
        assert len(b.server.calls) == 2


@pytest.mark.asyncio
async def test_a_rotated_token_is_read_again_when_the_old_one_is_refused(tmp_path: Path) -> None:
    """The kubelet replaced the file a moment ago: the request goes through, a write included."""
    token = tmp_path / "token"
    token.write_text("old")

    async def answerer(call: Call) -> None:
        if call.headers["authorization"] == "Bearer new":
            await good(call)
        else:
            token.write_text("new")
            await call.answer(401, status(401, "Unauthorized", "Unauthorized"))

    async with hostile(answerer) as server:
        access = Access(server.url, credentials=FileCredential(SecretFiles(token=token)))
        async with KubernetesCluster(access, clock=VirtualClock(instant=True), rng=Random(1)) as cluster:
            await cluster.patch(NODES, "n1", CORDON)
        assert len(server.calls) == 2


@pytest.mark.asyncio
async def test_each_write_is_signed_and_bounded_at_the_server() -> None:
    """The field manager goes with every write, and the server is told when we stop waiting."""
    async with bench(good) as b:
        await b.cluster.create(NODES, node("n1", 1))
        await b.cluster.patch(NODES, "n1", Patch(PatchType.APPLY, {"spec": {}}, force=True))
        create, apply = b.server.calls
        assert create.query["fieldManager"] == apply.query["fieldManager"] == "outlast-controller"
        assert create.query["timeout"] == "4s"
        assert apply.query["force"] == "true"
        assert apply.headers["content-type"] == "application/apply-patch+yaml"
        assert create.headers["authorization"] == "Bearer secret-token-of-this-test"


@pytest.mark.asyncio
async def test_no_error_and_no_repr_shows_the_token() -> None:
    """What is logged or shown never holds a secret."""
    async with bench(dropped, attempts_max=1) as b:
        with pytest.raises(ClusterError) as caught:
            await b.cluster.get(NODES, "n1")
        access = access_with_token(b.server.url, "secret-token-of-this-test")
        assert "secret-token" not in f"{caught.value!r} {access!r} {access.credentials!r} {b.cluster!r}"


@pytest.mark.asyncio
async def test_an_eviction_never_asks_for_what_kills_at_once() -> None:
    """No uid or a grace of zero is refused before anything is sent."""
    async with bench(good) as b:
        with pytest.raises(Invalid):
            await b.cluster.evict("p", "ns", uid="")
        with pytest.raises(Invalid):
            await b.cluster.evict("p", "ns", uid="u", grace_period_s=0)
        with pytest.raises(Invalid):
            await b.cluster.patch(NODES, "n1", Patch(PatchType.MERGE, {}, force=True))
        assert b.server.calls == []


@pytest.mark.asyncio
async def test_a_blocked_eviction_is_an_answer_at_once() -> None:
    """A budget's 429 is not overload: no retry, no wait."""
    causes = [{"reason": "DisruptionBudget"}]

    async def blocked(call: Call) -> None:
        await call.answer(429, status(429, "TooManyRequests", "Cannot evict", causes=causes))

    async with bench(blocked) as b:
        eviction = await b.cluster.evict("p", "ns", uid="u")
        assert eviction.answer is EvictionAnswer.BLOCKED_BY_BUDGET
        assert b.clock.slept_s == []


@pytest.mark.asyncio
async def test_a_list_follows_pages_and_starts_again_when_a_token_expires() -> None:
    """410 in mid-list throws away what was seen: no object twice, none missing."""
    pages = iter(
        [
            (200, node_list(1, node("a", 1), token="t1")),
            (410, status(410, "Expired", "too old")),
            (200, node_list(9, node("a", 1), token="t2")),
            (200, node_list(9, node("b", 2))),
        ]
    )

    async def answerer(call: Call) -> None:
        await call.answer(*next(pages))

    async with bench(answerer) as b:
        assert [n.metadata.name for n in await b.cluster.list(NODES)] == ["a", "b"]
        assert [c.query.get("continue", "") for c in b.server.calls] == ["", "t1", "", "t2"]
        assert b.server.calls[0].query["limit"] == "500"


@pytest.mark.asyncio
async def test_an_empty_list_may_be_null() -> None:
    """Go writes an empty list as null."""

    async def empty(call: Call) -> None:
        await call.answer(200, node_list(3))

    async with bench(empty) as b:
        assert await b.cluster.list(PODS, "ns", label_selector="a=b", field_selector="spec.nodeName=n") == []
        assert b.server.calls[0].query["labelSelector"] == "a=b"


@pytest.mark.asyncio
async def test_a_missing_object_is_not_retried() -> None:
    """A refusal is an answer."""

    async def missing(call: Call) -> None:
        await call.answer(404, status(404, "NotFound", "no"))

    async with bench(missing) as b:
        with pytest.raises(NotFound):
            await b.cluster.get(NODES, "n1")
        assert len(b.server.calls) == 1
