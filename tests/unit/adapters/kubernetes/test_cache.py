"""A cache stays level with its server, whatever the server does to the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from outlast.adapters.kubernetes import KubernetesCluster, Limits, access_with_token
from outlast.adapters.kubernetes.cache import WatchCache
from outlast.model.cluster import NODES, Node
from outlast.ports.cluster import Change, Removed, Synced, Upserted
from tests.unit.adapters.kubernetes.hostile import (
    Answerer,
    Call,
    HostileServer,
    bookmark,
    hostile,
    node,
    node_list,
    status,
)
from tests.unit.adapters.kubernetes.virtual import VirtualClock, eventually


class Following:
    """A running cache and what its follower was told, in short words."""

    def __init__(self, cache: WatchCache[Node], server: HostileServer, clock: VirtualClock) -> None:
        self.cache = cache
        self.server = server
        self.clock = clock
        self.told: list[str] = []

    def on_change(self, change: Change) -> None:
        match change:
            case Synced():
                self.told.append("synced")
            case Upserted(new, old):
                verb = "+" if old is None else "~"
                self.told.append(f"{verb}{new.metadata.name}@{new.metadata.resource_version}")
            case Removed(old):
                self.told.append(f"-{old.metadata.name}/{old.metadata.uid}")

    async def until(self, *told: str) -> None:
        """Wait until exactly this was told."""
        try:
            await eventually(lambda: len(self.told) >= len(told), self.clock)
        finally:
            assert self.told == list(told)

    @property
    def names(self) -> list[str]:
        return sorted(item.metadata.name for item in self.cache.values())


@asynccontextmanager
async def following(answerer: Answerer, **limits: Any) -> AsyncIterator[Following]:
    clock = VirtualClock()
    async with hostile(answerer) as server:
        access = access_with_token(server.url)
        async with KubernetesCluster(access, clock=clock, rng=Random(3), limits=Limits(**limits)) as cluster:
            state = Following(cluster.cache(NODES), server, clock)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(state.cache.run(state.on_change))
                yield state
                task.cancel()


def paged(*lists: dict[str, Any], watch: Answerer) -> Answerer:
    """A server without streaming lists: each plain list gets the next answer, each watch goes to `watch`."""
    left = list(lists)

    async def answerer(call: Call) -> None:
        if call.is_streaming_list:
            await call.answer(422, status(422, "Invalid", "sendInitialEvents is forbidden"))
        elif call.is_watch:
            await watch(call)
        else:
            await call.answer(200, left.pop(0) if len(left) > 1 else left[0])

    return answerer


async def silent(call: Call) -> None:
    await call.start()
    await call.hang()


def watches(*answerers: Answerer) -> Answerer:
    """The first watch goes to the first, and so on; the last one stays."""
    left = list(answerers)

    async def answerer(call: Call) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(call)

    return answerer


@pytest.mark.asyncio
async def test_a_streaming_list_is_the_first_choice_and_its_stream_goes_on_as_the_watch() -> None:
    """One request lists and follows; nothing is synced before the end mark."""
    go_on = asyncio.Event()

    async def answerer(call: Call) -> None:
        await call.start()
        await call.event("ADDED", node("a", 1))
        await go_on.wait()
        await call.event("BOOKMARK", bookmark(7, ends_list=True))
        await call.event("MODIFIED", node("a", 8))
        await call.event("DELETED", node("a", 9))
        await call.hang()

    async with following(answerer) as f:
        await f.until("+a@1")
        assert not f.cache.synced
        go_on.set()
        await f.until("+a@1", "synced", "~a@8", "-a/uid-a")
        assert f.cache.synced
        assert len(f.server.calls) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("code", [400, 422])
async def test_a_server_without_streaming_lists_gets_pages(code: int) -> None:
    """400 and 422 both mean that the server does not know them; it is not asked again."""

    async def answerer(call: Call) -> None:
        if call.is_streaming_list:
            await call.answer(code, status(code, "Invalid", "forbidden"))
        elif call.is_watch:
            await call.start()
            await call.event("ADDED", node("b", 6))
            await call.hang()
        else:
            await call.answer(200, node_list(5, node("a", 1)))

    async with following(answerer) as f:
        await f.until("+a@1", "synced", "+b@6")
        assert f.server.watches[-1].query["resourceVersion"] == "5"
        assert f.server.watches[-1].query["allowWatchBookmarks"] == "true"


@pytest.mark.asyncio
async def test_after_410_a_new_list_reports_what_is_gone() -> None:
    """A deletion that happened while nobody watched is found by the difference."""

    async def expired(call: Call) -> None:
        await call.start()
        await call.event("ERROR", status(410, "Expired", "too old resource version"))
        await call.finish()

    lists = node_list(10, node("a", 1), node("b", 2)), node_list(20, node("a", 1), node("c", 15))
    async with following(paged(*lists, watch=watches(expired, silent))) as f:
        await f.until("+a@1", "+b@2", "synced", "+c@15", "-b/uid-b", "synced")
        assert f.names == ["a", "c"]


@pytest.mark.asyncio
async def test_410_as_a_status_leads_to_a_new_list_too() -> None:
    """Some servers refuse the watch itself."""

    async def expired(call: Call) -> None:
        await call.answer(410, status(410, "Expired", "too old"))

    lists = node_list(10, node("a", 1)), node_list(20)
    async with following(paged(*lists, watch=watches(expired, silent))) as f:
        await f.until("+a@1", "synced", "-a/uid-a", "synced")


@pytest.mark.asyncio
async def test_an_object_deleted_and_created_again_between_two_looks_is_told_as_both() -> None:
    """The same name with another uid is another object."""

    async def expired(call: Call) -> None:
        await call.answer(410, status(410, "Expired", "too old"))

    lists = node_list(10, node("a", 1, "first")), node_list(20, node("a", 15, "second"))
    async with following(paged(*lists, watch=watches(expired, silent))) as f:
        await f.until("+a@1", "synced", "-a/first", "+a@15", "synced")


@pytest.mark.asyncio
async def test_a_new_uid_in_the_watch_is_told_as_both() -> None:
    """Also where the DELETED event was lost by the server."""

    async def recreated(call: Call) -> None:
        await call.start()
        await call.event("MODIFIED", node("a", 15, "second"))
        await call.event("DELETED", node("a", 16, "first"))
        await call.hang()

    async with following(paged(node_list(10, node("a", 1, "first")), watch=recreated)) as f:
        await f.until("+a@1", "synced", "-a/first", "+a@15")
        await eventually(lambda: f.names == ["a"])


@pytest.mark.asyncio
async def test_a_relist_that_finds_nothing_new_tells_nothing_new() -> None:
    """The difference is empty where the versions are the same."""

    async def expired(call: Call) -> None:
        await call.answer(410, status(410, "Expired", "too old"))

    async with following(paged(node_list(10, node("a", 1)), watch=watches(expired, silent))) as f:
        await f.until("+a@1", "synced", "synced")


@pytest.mark.asyncio
async def test_a_cut_connection_resumes_where_it_was_and_drops_the_half_line() -> None:
    """No list: the watch goes on from the last version, and the cut-off object comes again whole."""

    async def cut(call: Call) -> None:
        await call.start()
        await call.event("BOOKMARK", bookmark(12))
        await call.chunk(b'{"type":"ADDED","object":{"metadata":{"name":"half"')
        call.drop()

    async def whole(call: Call) -> None:
        await call.start()
        await call.event("ADDED", node("half", 13))
        await call.hang()

    async with following(paged(node_list(10), watch=watches(cut, whole))) as f:
        await f.until("synced", "+half@13")
        assert [c.query["resourceVersion"] for c in f.server.watches[1:]] == ["10", "12"]
        assert len(f.server.lists) == 1
        assert f.cache.synced


@pytest.mark.asyncio
async def test_a_stream_that_ends_in_order_resumes_from_the_last_event() -> None:
    """Servers end watches every few minutes; that is no reason to list or to be out of sync."""

    async def ending(call: Call) -> None:
        await call.start()
        await call.event("ADDED", node("a", 11))
        await call.finish()

    async with following(paged(node_list(10), watch=watches(ending, silent))) as f:
        await f.until("synced", "+a@11")
        await eventually(lambda: len(f.server.watches) == 3, f.clock)
        assert f.server.watches[-1].query["resourceVersion"] == "11"
        assert f.cache.synced


@pytest.mark.asyncio
async def test_silence_leads_to_a_new_list() -> None:
    """A frozen watch and one from a future version look alike: 200, then nothing for ever."""
    lists = node_list(10, node("a", 1)), node_list(20)
    async with following(paged(*lists, watch=silent)) as f:
        await f.until("+a@1", "synced")
        await eventually(lambda: len(f.server.watches) == 2)
        await f.clock.advance(89)
        assert len(f.server.lists) == 1
        assert f.cache.synced
        await f.clock.advance(91)  # The answer may have reached the client only after the first step.
        await f.until("+a@1", "synced", "-a/uid-a", "synced")


@pytest.mark.asyncio
async def test_bookmarks_keep_a_quiet_watch_alive() -> None:
    """An idle cluster is not a dead watch."""
    tick = asyncio.Event()

    async def bookmarking(call: Call) -> None:
        await call.start()
        for version in (11, 12):
            await tick.wait()
            tick.clear()
            await call.event("BOOKMARK", bookmark(version))
        await call.hang()

    async with following(paged(node_list(10), watch=bookmarking)) as f:
        await f.until("synced")
        await eventually(lambda: len(f.server.watches) == 2)
        for version in ("11", "12"):
            await f.clock.advance(60)
            tick.set()
            await eventually(lambda v=version: f.cache._resource_version == v)  # type: ignore[misc]
        await f.clock.advance(60)
        assert len(f.server.lists) == 1


@pytest.mark.asyncio
async def test_a_streaming_list_that_never_ends_falls_back_to_pages() -> None:
    """A server may take the parameters and not know them."""

    async def answerer(call: Call) -> None:
        if call.is_streaming_list:
            await call.start()
            await call.event("ADDED", node("a", 1))
            await call.hang()
        elif call.is_watch:
            await silent(call)
        else:
            await call.answer(200, node_list(5, node("b", 2)))

    async with following(answerer) as f:
        await f.until("+a@1")
        await f.clock.advance(31)
        await f.until("+a@1", "+b@2", "-a/uid-a", "synced")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"{}\n",
        b'{"type":"ADDED","object":5}\n',
        b'{"type":"EXPLODED","object":{}}\n',
        b'{"type":"BOOKMARK","object":{}}\n',
        b'{"type":"ERROR","object":"?"}\n',
        b"\xff\xfe\x00\n",
        b'{"type":"ADDED","object":{"metadata":{"name":3}}}\n',
        b"x" * 5000,
    ],
)
async def test_a_line_that_cannot_be_read_leads_to_a_new_list(line: bytes) -> None:
    """What was in it is unknown, so only a list makes the cache level again; the reason is visible."""

    async def garbage(call: Call) -> None:
        await call.start()
        await call.chunk(line)
        await call.hang()

    lists = node_list(10, node("a", 1)), node_list(20)
    server = paged(*lists, watch=watches(garbage, silent))
    async with following(server, line_bytes_max=4096) as f:
        await f.until("+a@1", "synced", "-a/uid-a", "synced")
        assert f.cache.stats.failures == 1
        assert f.cache.stats.last_failure


@pytest.mark.asyncio
async def test_an_object_that_does_not_fit_its_shape_keeps_its_last_good_version() -> None:
    """One bad object costs neither the stream nor the good version; it is counted."""
    bad = node("a", 11) | {"spec": {"unschedulable": "perhaps"}}

    async def watch(call: Call) -> None:
        await call.start()
        await call.event("MODIFIED", bad)
        await call.event("ADDED", node("b", 12))
        await call.hang()

    async with following(paged(node_list(10, node("a", 1)), watch=watch)) as f:
        await f.until("+a@1", "synced", "+b@12")
        kept = f.cache.get("a")
        assert kept is not None
        assert kept.metadata.resource_version == "1"
        assert f.cache.stats.unreadable == 1


@pytest.mark.asyncio
async def test_a_bad_object_in_a_list_costs_that_object_only() -> None:
    """The rest of the page is used."""
    page = node_list(10, node("a", 1), node("bad", 2) | {"spec": []}, node("c", 3))
    async with following(paged(page, watch=silent)) as f:
        await f.until("+a@1", "+c@3", "synced")
        assert f.cache.stats.unreadable == 1


@pytest.mark.asyncio
async def test_a_server_that_expires_every_watch_at_once_is_not_hammered() -> None:
    """A list that succeeds is no progress while each watch fails: the pauses grow."""

    async def expired(call: Call) -> None:
        await call.answer(410, status(410, "Expired", "too old"))

    async with following(paged(node_list(10), watch=expired)) as f:
        await eventually(lambda: len(f.server.lists) >= 6, f.clock)
        pauses_s = [s for s in f.clock.slept_s if s < 80][:5]
        assert all(a < b * 1.01 for a, b in zip(pauses_s, pauses_s[2:], strict=False))
        assert pauses_s[4] >= 4.0


@pytest.mark.asyncio
async def test_an_unreachable_server_makes_the_cache_unsynced_until_it_is_back() -> None:
    """What is held stays readable; `synced` says not to rely on it."""
    is_down = asyncio.Event()

    async def watch(call: Call) -> None:
        if is_down.is_set():
            await call.answer(503, status(503, "ServiceUnavailable", "down"))
            return
        await call.start()
        await call.event("BOOKMARK", bookmark(11))
        await is_down.wait()
        call.drop()

    async with following(paged(node_list(10, node("a", 1)), watch=watch)) as f:
        await f.until("+a@1", "synced")
        is_down.set()
        await eventually(lambda: not f.cache.synced)
        assert f.names == ["a"]
        is_down.clear()
        await eventually(lambda: f.cache.synced, f.clock)
        assert len(f.server.lists) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [RuntimeError("bug"), TimeoutError("late"), ConnectionError("no")])
async def test_what_a_follower_raises_comes_out_of_run(error: Exception) -> None:
    """A bug in a reconciler is never taken for trouble with the server, whatever its type."""

    def on_change(change: Change) -> None:
        raise error

    async def answerer(call: Call) -> None:
        await call.start()
        await call.event("ADDED", node("a", 1))
        await call.hang()

    async with hostile(answerer) as server:
        access = access_with_token(server.url)
        async with KubernetesCluster(access, clock=VirtualClock(), rng=Random(1)) as cluster:
            with pytest.raises(type(error)) as caught:
                await cluster.cache(NODES).run(on_change)
            assert caught.value is error


@pytest.mark.asyncio
async def test_a_refused_collection_is_asked_for_again_with_pauses() -> None:
    """A CRD that comes later, a right that is granted later: nothing to restart."""
    answers = iter([403, 404])

    async def answerer(call: Call) -> None:
        code = next(answers, 200)
        if code != 200:
            await call.answer(code, status(code, "Refused", "not yet"))
        else:
            await call.start()
            await call.event("BOOKMARK", bookmark(1, ends_list=True))
            await call.hang()

    async with following(answerer) as f:
        await f.until("synced")
        assert f.cache.stats.failures == 2
        assert "not yet" in f.cache.stats.last_failure
