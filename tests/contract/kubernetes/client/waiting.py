"""Waiting for a server: a condition with a deadline, and a cache that runs while a test looks at it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from outlast.adapters.kubernetes.cache import WatchCache
from outlast.model.cluster import KubernetesObject
from outlast.ports.cluster import Change, Removed, Synced, Upserted

T = TypeVar("T", bound=KubernetesObject)

DEADLINE_S = 20.0


async def until(condition: Callable[[], object]) -> None:
    """Return once it is true; fail after DEADLINE_S."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def until_read(read: Callable[[], Awaitable[T]], condition: Callable[[T], object]) -> T:
    """Read again and again until what was read is as wanted; fail after DEADLINE_S."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition(item := await read()):
            await asyncio.sleep(0.05)
    return item


def unique(stem: str) -> str:
    """A name that no other test has."""
    return f"{stem}-{uuid.uuid4().hex[:10]}"


class Told:
    """What a cache told its follower, in words: `+name`, `~name`, `-name`, `synced`."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, change: Change) -> None:
        match change:
            case Upserted(new, old):
                self.words.append(f"{'+' if old is None else '~'}{new.metadata.name}")
            case Removed(old):
                self.words.append(f"-{old.metadata.name}")
            case Synced():
                self.words.append("synced")


@asynccontextmanager
async def running(
    cache: WatchCache[Any], told: Callable[[Change], None] | None = None
) -> AsyncIterator[None]:
    """The cache follows while the block runs, and is in sync when it begins."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(cache.run(told))
        await until(lambda: cache.synced)
        yield
        task.cancel()
