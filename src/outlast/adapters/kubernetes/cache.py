"""A local copy of a collection that stays level with the server.

List once, then follow the watch. Whatever breaks the thread (410, silence, a line we cannot read) leads
to a new list, and the new list is compared with what is held: what is missing there is reported as
removed, what has another uid as removed and added. So a missed event costs time, never truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from outlast.adapters.kubernetes.backoff import Backoff
from outlast.adapters.kubernetes.codec import (
    INITIAL_EVENTS_END,
    Envelope,
    Undecodable,
    decode_envelope,
    decode_identity,
    decode_object,
)
from outlast.adapters.kubernetes.errors import Status, error_of_status, read_status
from outlast.adapters.kubernetes.lines import LineSplitter, LineTooLong
from outlast.adapters.kubernetes.listing import Selection, parts
from outlast.adapters.kubernetes.store import Store
from outlast.adapters.kubernetes.transport import Request, Stream, Transport
from outlast.model.cluster import KubernetesObject, ObjectMeta
from outlast.ports.clock import Clock
from outlast.ports.cluster import Change, ClusterError, Expired, Invalid, Removed, Synced, Unavailable

T = TypeVar("T", bound=KubernetesObject)
Key = tuple[str, str]

COMPLAINTS_MAX = 256
"""Objects whose unreadable state is remembered, so that each is logged once and not at every change."""

_log = structlog.get_logger(__name__)


class _Broken(Exception):
    """The thread is lost: only a new list helps."""


class _Silent(_Broken):
    """Nothing arrived for too long."""


class _FollowerFailed(Exception):
    """Carries a follower's exception past the handlers of our own failures."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


@dataclass(slots=True)
class CacheStats:
    """What happened so far, for metrics and for people."""

    lists: int = 0
    watches: int = 0
    failures: int = 0
    unreadable: int = 0
    """Objects that did not fit their shape; the last good version stays in force."""
    last_failure: str = ""


class WatchCache(Generic[T]):
    """Implements `outlast.ports.cluster.Cache`."""

    def __init__(self, transport: Transport, selection: Selection[T]) -> None:
        self._transport = transport
        self._selection = selection
        self._limits = transport.limits
        self._clock: Clock = transport.clock
        self._store: Store[T] = Store()
        self._complained: set[Key] = set()
        self._synced = False
        self.can_stream_lists = True
        """False once the server has shown that it has none; set it to list in pages from the start."""
        self._resource_version = ""
        self._backoff = Backoff(self._limits.reconnect_base_s, self._limits.reconnect_max_s, transport.rng)
        self._on_change: Callable[[Change], None] | None = None
        self.stats = CacheStats()

    @property
    def synced(self) -> bool:
        """Whether a complete list has been seen and the watch is not known to be broken."""
        return self._synced

    def get(self, name: str, namespace: str = "") -> T | None:
        """The object as last seen, or None."""
        return self._store.get((namespace, name))

    def values(self) -> Collection[T]:
        """All objects as last seen; do not keep across an await."""
        return self._store.values()

    async def run(self, on_change: Callable[[Change], None] | None = None) -> None:
        """Follow for ever. Raises what `on_change` raises, and KubeconfigError; else ends by cancellation."""
        self._on_change = on_change
        self._selection.path  # noqa: B018 - an impossible selection must fail here, not be retried for ever
        try:
            while True:
                retry_after_s = await self._follow_once()
                await self._clock.sleep(max(self._backoff.next_s(), retry_after_s))
        except _FollowerFailed as failed:
            raise failed.error from None
        finally:
            self._synced = False

    async def _follow_once(self) -> float:
        """One list if needed and one watch, to its end; the least seconds to wait before the next."""
        try:
            if self._resource_version:
                await self._watch()
            elif self.can_stream_lists:
                await self._list_and_watch()
            else:
                await self._list_pages()
                await self._watch()
        except (Expired, _Broken, LineTooLong, Undecodable) as error:
            self._lost(error, must_list=True)
        except ClusterError as error:
            # After a refusal (404, 403) the collection may be another one when it comes back.
            self._lost(error, must_list=not isinstance(error, Unavailable))
            return min(error.retry_after_s or 0.0, self._limits.reconnect_max_s)
        return 0.0

    def _lost(self, error: Exception, *, must_list: bool) -> None:
        self._synced = False
        self.stats.failures += 1
        self.stats.last_failure = str(error)
        if must_list:
            self._resource_version = ""
        _log.warning(
            "lost the watch", of=str(self._selection), why=str(error), then="list" if must_list else "watch"
        )

    async def _list_and_watch(self) -> None:
        """A streaming list, then the same stream as the watch. Falls back to pages where it is refused."""
        params = [
            ("sendInitialEvents", "true"),
            ("resourceVersionMatch", "NotOlderThan"),
            *self._watch_params(),
        ]
        try:
            async with self._stream(params) as stream:
                self.stats.lists += 1
                try:
                    await self._consume(stream, initial=True)
                except (_Silent, LineTooLong):
                    # A server that does not know streaming lists may never send their end, and an
                    # object too long for a line can still be listed in a page.
                    self.can_stream_lists = bool(self._resource_version)
                    raise
        except Invalid as error:
            _log.info("the server has no streaming lists", of=str(self._selection), why=str(error))
            self.can_stream_lists = False
            await self._list_pages()
            await self._watch()

    async def _list_pages(self) -> None:
        self.stats.lists += 1
        seen: set[Key] = set()
        resource_version = ""
        async for part in parts(self._transport, self._selection):
            for item in part.items:
                seen.add(_key(item.metadata))
                self._upsert(item)
            for identity, reason in part.unreadable:
                self._keep_last_good(identity, reason)
                seen.add(_key(identity))
            resource_version = part.resource_version
        self._complete(seen, resource_version)

    def _complete(self, seen: set[Key], resource_version: str) -> None:
        if not resource_version:
            raise Undecodable(f"list {self._selection}: the list has no resourceVersion")
        for key in self._store.missing_from(seen):
            self._remove(key)
        self._resource_version = resource_version
        self._synced = True
        self._emit(Synced())

    async def _watch(self) -> None:
        params = [("resourceVersion", self._resource_version), *self._watch_params()]
        async with self._stream(params) as stream:
            self._synced = True
            await self._consume(stream, initial=False)

    @asynccontextmanager
    async def _stream(self, params: list[tuple[str, str]]) -> AsyncIterator[Stream]:
        self.stats.watches += 1
        request = Request(
            f"watch {self._selection}", "GET", self._selection.path, [*self._selection.params, *params]
        )
        async with self._transport.stream(request, deadline_s=self._limits.list_deadline_s) as stream:
            yield stream

    def _watch_params(self) -> list[tuple[str, str]]:
        watch_s = self._limits.watch_s * (1 + self._transport.rng.random())
        return [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(max(1, round(watch_s)))),
        ]

    async def _consume(self, stream: Stream, *, initial: bool) -> None:
        """Apply lines until the stream ends. A line cut off by the end is dropped: the next watch has it."""
        seen: set[Key] | None = set() if initial else None
        splitter = LineSplitter(self._limits.line_bytes_max)
        silence_s = self._limits.list_deadline_s if initial else self._limits.inactivity_s
        async with _watchdog(self._clock, silence_s) as dog:
            async for chunk in stream.chunks():
                dog.fed()
                for line in splitter.feed(chunk):
                    event = decode_envelope(line)
                    if event.type == "ERROR":
                        raise self._refusal(event)
                    if seen is None:
                        # Only the watch counts as progress: a list that succeeds before each 410 does not.
                        self._backoff.reset()
                    if event.type == "BOOKMARK":
                        seen = self._bookmark(event, seen)
                        dog.silence_s = self._limits.inactivity_s if seen is None else silence_s
                    else:
                        self._apply(event, seen)
        if seen is not None:
            raise _Broken(f"list {self._selection}: the stream ended before the list did")

    def _refusal(self, event: Envelope) -> Exception:
        """What an ERROR line means; whatever its code, this watch cannot be resumed."""
        status = read_status(event.object) or Status(message="an ERROR event without a readable Status")
        error = error_of_status(f"watch {self._selection}", status)
        return error if isinstance(error, Expired) else _Broken(str(error))

    def _bookmark(self, event: Envelope, seen: set[Key] | None) -> set[Key] | None:
        metadata = decode_identity(event.object)
        if not metadata.resource_version:
            raise Undecodable("a bookmark without a resourceVersion")
        if seen is not None:
            if metadata.annotations.get(INITIAL_EVENTS_END) == "true":
                self._complete(seen, metadata.resource_version)
                return None
            return seen
        self._resource_version = metadata.resource_version
        return None

    def _apply(self, event: Envelope, seen: set[Key] | None) -> None:
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise Undecodable(f"a watch event of unknown type {event.type[:40]!r}")
        item: T | None = None
        try:
            item = decode_object(self._selection.kind.shape, event.object)
            metadata: ObjectMeta = item.metadata
        except Undecodable as reason:
            metadata = decode_identity(event.object)
            if event.type != "DELETED":
                self._keep_last_good(metadata, str(reason))
        key = _key(metadata)
        if event.type == "DELETED":
            if seen is not None:
                seen.discard(key)
            self._delete(key, metadata.uid, item)
        else:
            if seen is not None:
                seen.add(key)
            if item is not None:
                self._upsert(item)
        if seen is None and metadata.resource_version:
            self._resource_version = metadata.resource_version

    def _upsert(self, item: T) -> None:
        key = _key(item.metadata)
        self._complained.discard(key)
        if self._store.holds_another(key, item.metadata.uid):
            self._remove(key)
        change = self._store.put(key, item)
        if change is not None:
            self._emit(change)

    def _delete(self, key: Key, uid: str, last: T | None) -> None:
        held = self._store.get(key)
        if held is None or self._store.holds_another(key, uid):
            return
        self._store.pop(key)
        self._emit(Removed(last or held))

    def _remove(self, key: Key) -> None:
        held = self._store.pop(key)
        if held is not None:
            self._emit(Removed(held))

    def _keep_last_good(self, identity: ObjectMeta, reason: str) -> None:
        self.stats.unreadable += 1
        key = _key(identity)
        if key not in self._complained and len(self._complained) < COMPLAINTS_MAX:
            self._complained.add(key)
            _log.error("an object cannot be read", of=str(self._selection), name=key[1][:253], why=reason)
        if self._store.holds_another(key, identity.uid):
            self._remove(key)

    def _emit(self, change: Change) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(change)
        except Exception as error:
            raise _FollowerFailed(error) from error


class _Watchdog:
    """Knows when something last arrived."""

    def __init__(self, clock: Clock, silence_s: float) -> None:
        self._clock = clock
        self.silence_s = silence_s
        self._fed_at_s = clock.monotonic()

    def fed(self) -> None:
        """Something arrived."""
        self._fed_at_s = self._clock.monotonic()

    async def watch(self) -> None:
        """Raise _Silent once nothing has arrived for `silence_s`."""
        while (left_s := self._fed_at_s + self.silence_s - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)
        raise _Silent(f"nothing arrived for {self.silence_s:g} s")


@asynccontextmanager
async def _watchdog(clock: Clock, silence_s: float) -> AsyncIterator[_Watchdog]:
    dog = _Watchdog(clock, silence_s)
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(dog.watch())
            yield dog
            task.cancel()
    except BaseExceptionGroup as failures:
        # One body and one watchdog: raise the one that counts, as if there were no group.
        by_follower = (e for e in failures.exceptions if isinstance(e, _FollowerFailed))
        raise next(by_follower, failures.exceptions[0]) from None


def _key(metadata: ObjectMeta) -> Key:
    return (metadata.namespace, metadata.name)
