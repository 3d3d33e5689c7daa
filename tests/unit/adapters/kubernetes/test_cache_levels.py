"""Whatever happens to the streams, the cache ends up equal to the server, and its follower too.

A small model of a server keeps objects, versions and a history it may forget. A seeded stream of trouble
cuts connections in mid-line, ends watches, forgets history, talks garbage and refuses requests while
objects come, change, go and come back. A failing seed is printed by its parameter.
"""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest

from outlast.adapters.kubernetes import KubernetesCluster, Limits, access_with_token
from outlast.model.cluster import NODES
from outlast.ports.cluster import Change, Removed, Synced, Upserted
from tests.unit.adapters.kubernetes.hostile import Call, bookmark, hostile, node, node_list, status
from tests.unit.adapters.kubernetes.virtual import VirtualClock, eventually

SEEDS = range(10)
STEPS = 40
NAMES = tuple("abcdef")


class ModelServer:
    """Objects, a history, and trouble by chance."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.version = 100
        self.objects: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.forgotten = 0
        self.is_troubled = True
        self.changed = asyncio.Condition()
        self.can_stream = rng.random() < 0.7

    async def step(self) -> None:
        """One change of the world, or of what the server remembers."""
        self.version += 1
        name = self.rng.choice(NAMES)
        old = self.objects.get(name)
        if old is None:
            self._happen("ADDED", node(name, self.version, f"{name}{self.version}"))
        elif self.rng.random() < 0.4:
            del self.objects[name]
            self._happen("DELETED", node(name, self.version, old["metadata"]["uid"]))
        else:
            self._happen("MODIFIED", node(name, self.version, old["metadata"]["uid"]))
        if self.rng.random() < 0.15:
            self.forgotten = self.version
        async with self.changed:
            self.changed.notify_all()

    def _happen(self, type_: str, item: dict[str, Any]) -> None:
        if type_ != "DELETED":
            self.objects[item["metadata"]["name"]] = item
        self.history.append((self.version, type_, item))

    def _chance(self, share: float) -> bool:
        return self.is_troubled and self.rng.random() < share

    async def answer(self, call: Call) -> None:
        if self._chance(0.1):
            await call.answer(self.rng.choice([429, 500, 503]), b"no", content_type="text/plain")
        elif self._chance(0.05):
            call.drop()
        elif call.is_streaming_list and not self.can_stream:
            await call.answer(422, status(422, "Invalid", "unknown"))
        elif not call.is_watch:
            await self._page(call)
        else:
            await call.start()
            await self._stream(call)

    async def _page(self, call: Call) -> None:
        """Two objects a page; the token is the name to go on from and the version of the whole list."""
        token = call.query.get("continue", "")
        after, version = token.split("@") if token else ("", str(self.version))
        if token and (int(version) < self.forgotten or int(version) != self.version):
            await call.answer(410, status(410, "Expired", "the token is too old"))
            return
        names = [name for name in sorted(self.objects) if name > after]
        rest = f"{names[1]}@{version}" if len(names) > 2 else ""
        await call.answer(200, node_list(int(version), *(self.objects[n] for n in names[:2]), token=rest))

    async def _stream(self, call: Call) -> None:
        sent = self.version
        if call.is_streaming_list:
            for item in list(self.objects.values()):
                if not await self._line(call, "ADDED", item):
                    return
            if not await self._line(call, "BOOKMARK", bookmark(sent, ends_list=True)):
                return
        else:
            sent = int(call.query["resourceVersion"])
        while not call.closed.is_set():
            if sent < self.forgotten:
                await call.event("ERROR", status(410, "Expired", "too old"))
                await call.finish()
                return
            for version, type_, item in [h for h in self.history if h[0] > sent]:
                if not await self._line(call, type_, item):
                    return
                sent = version
            if self._chance(0.1):
                await call.finish()
                return
            async with self.changed:
                await self.changed.wait()

    async def _line(self, call: Call, type_: str, item: dict[str, Any]) -> bool:
        """Send a line, whole or not; False where the stream is over."""
        line = json.dumps({"type": type_, "object": item}).encode() + b"\n"
        if self._chance(0.04):
            await call.chunk(line[: self.rng.randrange(len(line))])
            call.drop()
            return False
        if self._chance(0.02):
            await call.chunk(self.rng.choice([b"{]\n", b"\xff\n", b'{"type":"WHAT","object":{}}\n']))
            return False
        half = self.rng.randrange(len(line))
        await call.chunk(line[:half] or line)
        if half:
            await call.chunk(line[half:])
        return True


class Mirror:
    """A follower that knows only what it is told, and objects to what makes no sense."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[str, str]] = {}
        self.syncs = 0

    def __call__(self, change: Change) -> None:
        match change:
            case Synced():
                self.syncs += 1
            case Upserted(new, old):
                meta, before = new.metadata, self.held.get(new.metadata.name)
                assert (old is None) == (before is None)
                assert old is None or before == (old.metadata.uid, old.metadata.resource_version)
                assert old is None or old.metadata.uid == meta.uid
                self.held[meta.name] = (meta.uid, meta.resource_version)
            case Removed(old):
                assert self.held.pop(old.metadata.name)[0] == old.metadata.uid


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", SEEDS)
async def test_the_cache_ends_level_with_the_server(seed: int) -> None:
    """After the trouble: cache, follower and server hold the same objects in the same versions."""
    server, clock, mirror = ModelServer(Random(seed)), VirtualClock(), Mirror()
    async with hostile(server.answer) as wire:
        access = access_with_token(wire.url)
        limits = Limits(reconnect_max_s=2.0, page_size=2)
        async with KubernetesCluster(access, clock=clock, rng=Random(seed), limits=limits) as cluster:
            cache = cluster.cache(NODES)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(cache.run(mirror))
                for _ in range(STEPS):
                    await server.step()
                    for _ in range(server.rng.randrange(4)):
                        await clock.pass_short_waits(10)
                        await asyncio.sleep(0.001)
                server.is_troubled = False
                await server.step()

                def is_level() -> bool:
                    truth = {
                        name: (item["metadata"]["uid"], item["metadata"]["resourceVersion"])
                        for name, item in server.objects.items()
                    }
                    held = {
                        n.metadata.name: (n.metadata.uid, n.metadata.resource_version) for n in cache.values()
                    }
                    return cache.synced and truth == held == mirror.held

                await eventually(is_level, clock)
                task.cancel()
    assert mirror.syncs >= 1
