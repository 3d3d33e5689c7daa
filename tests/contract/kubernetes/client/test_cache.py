"""A cache against a whole server: level after changes, gaps and expiry.

Leases of a namespace are followed: no controller touches them, so every change is the test's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from outlast.adapters.kubernetes import KubernetesCluster
from outlast.model.cluster import LEASES, Lease
from outlast.ports.cluster import Patch, PatchType
from tests.contract.kubernetes.client.waiting import Told, running, until

pytestmark = pytest.mark.asyncio

HOLD = Patch(PatchType.MERGE, {"spec": {"holderIdentity": "somebody"}})
streaming_or_paged = pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "paged"])


async def create(cluster: KubernetesCluster, space: str, name: str, **labels: str) -> Lease:
    return await cluster.create(LEASES, {"metadata": {"name": name, "labels": labels}}, space)


@streaming_or_paged
async def test_a_cache_follows_what_happens(cluster: KubernetesCluster, space: str, streaming: bool) -> None:
    """Created, changed, deleted: told once each, in order, however the list was made."""
    await create(cluster, space, "old")
    cache, told = cluster.cache(LEASES, space), Told()
    cache.can_stream_lists = streaming
    async with running(cache, told):
        assert told.words == ["+old", "synced"]
        lease = await create(cluster, space, "new")
        await cluster.patch(LEASES, "new", HOLD, space)
        await until(lambda: told.words[2:] == ["+new", "~new"])
        held = cache.get("new", space)
        assert held is not None
        assert held.spec.holder_identity == "somebody"
        await cluster.delete(LEASES, "new", space, uid=lease.metadata.uid)
        await until(lambda: told.words[4:] == ["-new"])
        assert cache.get("new", space) is None
    assert cache.can_stream_lists is streaming
    assert cache.stats.failures == 0


@streaming_or_paged
@pytest.mark.parametrize("lost", ["expired", "future"])
async def test_a_lost_thread_is_found_by_the_difference(
    cluster: KubernetesCluster, space: str, streaming: bool, lost: str
) -> None:
    """A version long gone (410), or of a future the server does not have (silence or an error): list again.

    What vanished meanwhile is Removed; what came back under its name is Removed and Upserted.
    """
    for name in ("kept", "gone", "again"):
        await create(cluster, space, name)
    cache, told = cluster.cache(LEASES, space), Told()
    cache.can_stream_lists = streaming
    async with running(cache, told):
        first = cache.get("again", space)
    await cluster.delete(LEASES, "gone", space)
    await cluster.delete(LEASES, "again", space)
    await create(cluster, space, "again")
    told.words.clear()
    cache._limits = _impatient(cache._limits)
    cache._resource_version = "1" if lost == "expired" else "99999999"
    async with asyncio.TaskGroup() as group:
        task = group.create_task(cache.run(told))
        await until(lambda: "synced" in told.words)
        task.cancel()
    assert sorted(told.words) == ["+again", "-again", "-gone", "synced"]
    second = cache.get("again", space)
    assert first is not None
    assert second is not None
    assert first.metadata.uid != second.metadata.uid
    assert cache.stats.lists == 2


async def test_a_cache_resumes_without_a_list(cluster: KubernetesCluster, space: str) -> None:
    """What happened while nobody followed comes from the watch."""
    cache, told = cluster.cache(LEASES, space), Told()
    async with running(cache, told):
        pass
    await create(cluster, space, "meanwhile")
    async with running(cache, told):
        await until(lambda: told.words == ["synced", "+meanwhile"])
    assert cache.stats.lists == 1


async def test_a_watch_that_the_server_ends_goes_on(cluster: KubernetesCluster, space: str) -> None:
    """Every few minutes the server ends the stream as asked; nothing is lost and nothing listed again."""
    cache, told = cluster.cache(LEASES, space), Told()
    cache._limits = _brief_watches(cache._limits)
    async with running(cache, told):
        for number in range(4):
            watches = cache.stats.watches
            await until(lambda w=watches: cache.stats.watches > w)  # type: ignore[misc]
            await create(cluster, space, f"n{number}")
        await until(lambda: told.words == ["synced", "+n0", "+n1", "+n2", "+n3"])
        assert cache.synced
    assert cache.stats.lists == 1


async def test_an_object_that_stops_matching_is_removed(cluster: KubernetesCluster, space: str) -> None:
    """Selectors narrow a cache, and leaving the selection is leaving the cache."""
    cache, told = cluster.cache(LEASES, space, label_selector="pool=a"), Told()
    async with running(cache, told):
        await create(cluster, space, "other", pool="b")
        await create(cluster, space, "one", pool="a")
        await until(lambda: told.words == ["synced", "+one"])
        await cluster.patch(
            LEASES, "one", Patch(PatchType.MERGE, {"metadata": {"labels": {"pool": "b"}}}), space
        )
        await until(lambda: told.words == ["synced", "+one", "-one"])
    only = cluster.cache(LEASES, space, field_selector="metadata.name=other")
    async with running(only):
        assert [lease.metadata.name for lease in only.values()] == ["other"]


async def test_many_objects_are_listed_in_pages(cluster: KubernetesCluster, space: str) -> None:
    """More than a page: each object once."""
    for number in range(12):
        await create(cluster, space, f"n{number:02d}")
    listed = await _with_small_pages(cluster).list(LEASES, space)
    assert [lease.metadata.name for lease in listed] == [f"n{number:02d}" for number in range(12)]


def _with_small_pages(cluster: KubernetesCluster) -> KubernetesCluster:
    from dataclasses import replace

    cluster._transport._limits = replace(cluster._transport.limits, page_size=5)
    return cluster


def _changed(**changes: float) -> Callable:  # type: ignore[type-arg]
    from dataclasses import replace

    return lambda limits: replace(limits, **changes)


_impatient = _changed(inactivity_s=1.0)
_brief_watches = _changed(watch_s=1.0, reconnect_base_s=0.05)
