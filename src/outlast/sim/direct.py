"""The embedded API server without the wire: the same store behind the `Cluster` port, in process.

For simulations on virtual time. A gate sees each request before and after it happens and may delay it,
fail it or end the caller there, which is how crashes at every write are made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import msgspec

from outlast.model.cluster import PODS, Kind, KubernetesObject
from outlast.ports import cluster as port
from outlast.ports.cluster import Change, Eviction, EvictionAnswer, Patch
from outlast.sim.apiserver.errors import ApiError
from outlast.sim.apiserver.eviction import evict
from outlast.sim.apiserver.storage import Change as StoredChange
from outlast.sim.apiserver.storage import Entry
from outlast.sim.apiserver.store import Deletion, Store, Writer

T = TypeVar("T", bound=KubernetesObject)


@dataclass(frozen=True, slots=True)
class Operation:
    """One request of one caller."""

    verb: str
    """get, list, create, patch, delete, evict."""
    kind: str
    name: str = ""
    subresource: str = ""
    done: bool = False
    """False before it happens, True after."""

    @property
    def writes(self) -> bool:
        """Whether it changes anything."""
        return self.verb not in ("get", "list")


Gate = Callable[[Operation], Awaitable[None]]


async def _open(_: Operation) -> None:
    return None


def _error(error: ApiError, *, creating: bool) -> port.ClusterError:
    """A refusal of the store as the error of the port that a client makes of the same answer."""
    text, code = error.message, error.code
    if code == 404:
        return port.NotFound(text, status=code)
    if code == 409:
        return (port.AlreadyExists if creating else port.Conflict)(text, status=code)
    if code in (400, 422):
        causes = tuple(
            port.Cause(c.get("field", ""), c.get("message", ""), c.get("reason", ""))
            for c in (error.details or {}).get("causes", ())
        )
        return port.Invalid(text, status=code, causes=causes)
    if code == 403:
        return port.Forbidden(text, status=code)
    return port.Unavailable(text, status=code)


def _decode(kind: Kind[T], entry: Entry) -> T:
    return msgspec.json.decode(entry.raw, type=kind.shape)


class DirectCluster:
    """Implements `outlast.ports.cluster.Cluster` on a store."""

    def __init__(self, store: Store, *, manager: str = "outlast-controller", gate: Gate = _open) -> None:
        self._store = store
        self._writer = Writer(manager=manager, unknown_fields="Strict")
        self._gate = gate

    async def _do(self, operation: Operation, call: Callable[[], Any]) -> Any:
        await self._gate(operation)
        try:
            result = call()
        except ApiError as error:
            raise _error(error, creating=operation.verb == "create") from error
        if operation.writes:
            await self._gate(replace(operation, done=True))
        return result

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """Read one object."""
        operation = Operation("get", kind.name, name)
        return _decode(kind, await self._do(operation, lambda: self._store.entry(kind, name, namespace)))

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        """Read a collection."""
        entries = await self._do(
            Operation("list", kind.name),
            lambda: self._store.entries(
                kind, namespace, label_selector=label_selector, field_selector=field_selector
            ),
        )
        return [_decode(kind, entry) for entry in entries]

    async def create(self, kind: Kind[T], body: dict[str, Any] | T, namespace: str = "") -> T:
        """Create an object."""
        plain: dict[str, Any] = _json(body)
        plain |= {"apiVersion": kind.api_version, "kind": kind.name}
        name = plain.get("metadata", {}).get("name", "")
        entry = await self._do(
            Operation("create", kind.name, name),
            lambda: self._store.create(kind, plain, namespace, self._writer),
        )
        return _decode(kind, entry)

    async def patch(
        self, kind: Kind[T], name: str, patch: Patch, namespace: str = "", *, subresource: str = ""
    ) -> T:
        """Write part of an object."""
        body = _json(patch.body)
        entry = await self._do(
            Operation("patch", kind.name, name, subresource),
            lambda: self._store.patch(
                kind, name, patch.type.value, body, namespace, subresource=subresource, writer=self._writer
            ),
        )
        return _decode(kind, entry)

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_period_s: int | None = None,
        propagation: str = "Background",
    ) -> None:
        """Delete one object."""
        options = Deletion(uid, resource_version, grace_period_s, propagation)
        await self._do(
            Operation("delete", kind.name, name),
            lambda: self._store.delete(kind, name, namespace, options, self._writer),
        )

    async def evict(
        self, name: str, namespace: str, *, uid: str, grace_period_s: int | None = None
    ) -> Eviction:
        """Ask for a pod to be moved."""
        body = {"deleteOptions": {"preconditions": {"uid": uid}}}
        await self._gate(Operation("evict", PODS.name, name))
        try:
            evict(self._store, name, namespace, body, self._writer)
        except ApiError as error:
            if error.code in (404, 409):
                return Eviction(EvictionAnswer.GONE, error.message)
            causes = (error.details or {}).get("causes", ())
            if error.code == 429 and causes:
                return Eviction(EvictionAnswer.BLOCKED_BY_BUDGET, causes[0]["message"])
            if error.code == 500 and "more than one" in error.message:
                return Eviction(EvictionAnswer.MISCONFIGURED, error.message)
            raise _error(error, creating=False) from error
        await self._gate(Operation("evict", PODS.name, name, done=True))
        return Eviction(EvictionAnswer.ACCEPTED)

    def cache(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> DirectCache[T]:
        """A cache over a collection."""
        return DirectCache(self._store, kind, namespace, label_selector, field_selector)


class DirectCache(Generic[T]):
    """Implements `outlast.ports.cluster.Cache`: follows the store's own changes."""

    def __init__(
        self, store: Store, kind: Kind[T], namespace: str, label_selector: str, field_selector: str
    ) -> None:
        self._store = store
        self._kind = kind
        resource = store.resource(kind)
        self._selection = store.select(resource, namespace, label_selector, field_selector)
        self._collection = store.collection(resource)
        self._items: dict[tuple[str, str], T] = {}
        self._synced = False

    @property
    def synced(self) -> bool:
        """Whether a complete list was seen."""
        return self._synced

    def get(self, name: str, namespace: str = "") -> T | None:
        """The object as last seen."""
        return self._items.get((namespace, name))

    def values(self) -> Collection[T]:
        """All objects as last seen."""
        return self._items.values()

    async def run(self, on_change: Callable[[Change], None] | None = None) -> None:
        """Follow for ever."""
        tell = on_change or (lambda _: None)
        selects = self._selection.predicate()
        subscription = self._collection.subscribe(selects, self._selection.exact())
        try:
            for key in list(self._collection.keys):
                if selects(self._collection.entries[key]):
                    self._put(self._collection.entries[key], tell)
            self._synced = True
            tell(port.Synced())
            while True:
                for type_, change in await subscription.wait():
                    self._take(type_, change, tell)
        finally:
            self._synced = False
            self._collection.unsubscribe(subscription)

    def _take(self, type_: str, change: StoredChange, tell: Callable[[Change], None]) -> None:
        if type_ != "DELETED":
            self._put(change.entry, tell)
            return
        old = self._items.pop(change.entry.key, None)
        if old is not None:
            tell(port.Removed(old))

    def _put(self, entry: Entry, tell: Callable[[Change], None]) -> None:
        old = self._items.get(entry.key)
        new = _decode(self._kind, entry)
        self._items[entry.key] = new
        tell(port.Upserted(new, old))


def _json(body: Any) -> Any:
    """What the wire would make of a body: plain values, times as text."""
    return msgspec.json.decode(msgspec.json.encode(body))
