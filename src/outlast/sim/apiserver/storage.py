"""Versioned storage: one counter over all kinds, encoded objects, a bounded past.

Objects are kept as the JSON that is sent, beside the few values that selectors need; who wants to
change one decodes a copy of its own. The past is kept per kind, so that watches resume and lists
continue at their revision, until a limit or `compact()` forgets it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

HISTORY_EVENTS_MAX = 8192
"""Changes remembered per kind; a watch from before them is answered 410."""
HISTORY_BYTES_MAX = 64 * 1024 * 1024
"""Encoded size of the changes remembered per kind."""
WATCH_BACKLOG_MAX = 16_384
"""Changes waiting for one slow watcher; beyond it the watch is ended, as a kube-apiserver does."""

Key = tuple[str, str]
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Entry:
    """One object at one version."""

    namespace: str
    name: str
    uid: str
    version: int
    raw: bytes
    labels: dict[str, str]
    fields: dict[str, str]
    owners: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return (self.namespace, self.name)

    def decode(self) -> dict[str, Any]:
        """A copy that belongs to the caller."""
        obj: dict[str, Any] = _decode(self.raw)
        return obj


class Change:
    """ADDED, MODIFIED or DELETED, with what was there before; encoded at most once per type."""

    __slots__ = ("_lines", "entry", "previous", "type")

    def __init__(self, type_: str, entry: Entry, previous: Entry | None) -> None:
        self.type = type_
        self.entry = entry
        self.previous = previous
        self._lines: dict[str, bytes] = {}

    @property
    def version(self) -> int:
        """The revision of the change."""
        return self.entry.version

    def line(self, type_: str) -> bytes:
        """The watch event as sent; an object that leaves a selection is sent as it was before."""
        line = self._lines.get(type_)
        if line is None:
            raw = self.entry.raw
            if type_ == "DELETED" and self.type != "DELETED" and self.previous is not None:
                raw = reversioned(self.previous, self.version)
            line = self._lines[type_] = b'{"type":"%s","object":%s}\n' % (type_.encode(), raw)
        return line


def reversioned(entry: Entry, version: int) -> bytes:
    """The encoded object with another resourceVersion."""
    obj = entry.decode()
    obj["metadata"]["resourceVersion"] = str(version)
    return _encode(obj)


class Subscription:
    """Changes for one watcher, already translated to what its selection sees."""

    __slots__ = ("_selects", "backlog_max", "overflowed", "queue", "wake")

    def __init__(self, selects: Callable[[Entry], bool], backlog_max: int) -> None:
        self._selects = selects
        self.backlog_max = backlog_max
        self.queue: deque[tuple[str, Change]] = deque()
        self.wake = asyncio.Event()
        self.overflowed = False

    def offer(self, change: Change) -> None:
        """Take a change if the selection sees it."""
        type_ = seen_as(change, self._selects)
        if not type_ or self.overflowed:
            return
        if len(self.queue) >= self.backlog_max:
            self.overflowed = True
        else:
            self.queue.append((type_, change))
        self.wake.set()

    async def wait(self) -> list[tuple[str, Change]]:
        """All waiting changes, at least one unless the subscription overflowed."""
        while not self.queue and not self.overflowed:
            self.wake.clear()
            await self.wake.wait()
        return self.drain()

    def drain(self) -> list[tuple[str, Change]]:
        """What waits now, perhaps nothing."""
        taken = list(self.queue)
        self.queue.clear()
        return taken


def seen_as(change: Change, selects: Callable[[Entry], bool]) -> str:
    """The event type that a selection sees, or "": moving in is ADDED, moving out is DELETED."""
    now = change.type != "DELETED" and selects(change.entry)
    before = change.previous is not None and selects(change.previous)
    if now:
        return "MODIFIED" if before else "ADDED"
    return "DELETED" if before else ""


class Collection:
    """The objects of one kind, in key order, and their recent changes."""

    def __init__(self, triggers: tuple[str, ...]) -> None:
        self.entries: dict[Key, Entry] = {}
        self.keys: list[Key] = []
        self.history: deque[Change] = deque()
        self.history_bytes = 0
        self.compacted = 0
        self._triggers = triggers
        self._everywhere: set[Subscription] = set()
        self._indexed: dict[tuple[str, str], set[Subscription]] = {}

    def record(self, change: Change) -> None:
        """Make a change visible to readers, history and watchers."""
        key = change.entry.key
        if change.type == "DELETED":
            del self.entries[key]
            del self.keys[bisect_left(self.keys, key)]
        else:
            if key not in self.entries:
                insort(self.keys, key)
            self.entries[key] = change.entry
        self.history.append(change)
        self.history_bytes += len(change.entry.raw)
        while len(self.history) > HISTORY_EVENTS_MAX or self.history_bytes > HISTORY_BYTES_MAX:
            self._forget_oldest()
        for subscription in self._interested(change):
            subscription.offer(change)

    def _forget_oldest(self) -> None:
        oldest = self.history.popleft()
        self.history_bytes -= len(oldest.entry.raw)
        self.compacted = oldest.version

    def compact(self, version: int) -> None:
        """Forget all changes up to a version."""
        while self.history and self.history[0].version <= version:
            self._forget_oldest()
        self.compacted = max(self.compacted, version)

    def _interested(self, change: Change) -> list[Subscription]:
        found = list(self._everywhere)
        if self._indexed:
            values = {(t, change.entry.fields.get(t, "")) for t in self._triggers}
            if change.previous is not None:
                values |= {(t, change.previous.fields.get(t, "")) for t in self._triggers}
            for value in values:
                found.extend(self._indexed.get(value, ()))
        return found

    def subscribe(
        self,
        selects: Callable[[Entry], bool],
        exact: dict[str, str],
        backlog_max: int = WATCH_BACKLOG_MAX,
    ) -> Subscription:
        """Follow changes; `exact` are fields that the selection requires, used as an index."""
        subscription = Subscription(selects, backlog_max)
        trigger = next(((t, exact[t]) for t in self._triggers if t in exact), None)
        if trigger is None:
            self._everywhere.add(subscription)
        else:
            self._indexed.setdefault(trigger, set()).add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop following."""
        self._everywhere.discard(subscription)
        for trigger, members in list(self._indexed.items()):
            if subscription in members:
                members.discard(subscription)
                if not members:
                    del self._indexed[trigger]
                return

    def since(self, version: int) -> Iterator[Change]:
        """Remembered changes after a version, oldest first."""
        newer: list[Change] = []
        for change in reversed(self.history):
            if change.version <= version:
                break
            newer.append(change)
        return reversed(newer)

    def at(self, version: int) -> tuple[dict[Key, Entry], list[Key]]:
        """The collection as it was at a remembered version."""
        if not self.history or self.history[-1].version <= version:
            return self.entries, self.keys
        entries = dict(self.entries)
        for change in reversed(self.history):
            if change.version <= version:
                break
            if change.previous is None:
                entries.pop(change.entry.key, None)
            else:
                entries[change.entry.key] = change.previous
        return entries, sorted(entries)


class Storage:
    """All collections under one revision counter."""

    def __init__(self) -> None:
        self.version = 1
        self._collections: dict[tuple[str, str], Collection] = {}
        self._observers: list[Callable[[tuple[str, str], Change], None]] = []
        self.dependents: dict[str, set[tuple[tuple[str, str], Key]]] = {}
        self.uids: dict[str, tuple[tuple[str, str], Key]] = {}

    def observe(self, observer: Callable[[tuple[str, str], Change], None]) -> None:
        """Call `observer` after each change, in order."""
        self._observers.append(observer)

    def collection(self, kind: tuple[str, str], triggers: tuple[str, ...] = ("metadata.name",)) -> Collection:
        """The collection of a kind, empty at first use."""
        found = self._collections.get(kind)
        if found is None:
            found = self._collections[kind] = Collection(triggers)
        return found

    def next_version(self) -> int:
        """Take the next revision."""
        self.version += 1
        return self.version

    def put(self, kind: tuple[str, str], entry: Entry) -> Change:
        """Store an object at its version."""
        collection = self.collection(kind)
        previous = collection.entries.get(entry.key)
        change = Change("ADDED" if previous is None else "MODIFIED", entry, previous)
        self._index(kind, previous, entry)
        collection.record(change)
        self._tell(kind, change)
        return change

    def remove(self, kind: tuple[str, str], entry: Entry) -> Change:
        """Take an object out; `entry` is its last state at the revision of the removal."""
        collection = self.collection(kind)
        change = Change("DELETED", entry, collection.entries[entry.key])
        self._index(kind, change.previous, None)
        collection.record(change)
        self._tell(kind, change)
        return change

    def _index(self, kind: tuple[str, str], old: Entry | None, new: Entry | None) -> None:
        if old is not None:
            if new is None or new.uid != old.uid:
                self.uids.pop(old.uid, None)
            for owner in old.owners:
                members = self.dependents.get(owner)
                if members is not None:
                    members.discard((kind, old.key))
                    if not members:
                        del self.dependents[owner]
        if new is not None:
            self.uids[new.uid] = (kind, new.key)
            for owner in new.owners:
                self.dependents.setdefault(owner, set()).add((kind, new.key))

    def _tell(self, kind: tuple[str, str], change: Change) -> None:
        for observer in self._observers:
            observer(kind, change)

    def compact(self) -> None:
        """Forget the whole past: older watches and continued lists are answered 410."""
        for collection in self._collections.values():
            collection.compact(self.version)
