"""What the core needs from Kubernetes: read, write small, follow changes.

Writes are patches, creates, deletes and evictions; whole objects are never put back. Every error a
server can answer is one of the types below, so that callers decide by type and never by text.

    ClusterError
    |-- NotFound               404
    |-- AlreadyExists          409 on create
    |-- Conflict               409: resourceVersion or uid precondition failed
    |-- Invalid                422 (or 400): schema, CEL rule, or a failed JSON `test`; `causes` name fields
    |-- Forbidden              403: RBAC or an admission policy, our own fence among them
    |-- Unauthorized           401 after one token re-read
    |-- Expired                410
    `-- Unavailable            overload, 5xx, time-out, no route: nothing is known about the outcome
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from outlast.model.cluster import Kind, KubernetesObject

T = TypeVar("T", bound=KubernetesObject)
T_co = TypeVar("T_co", bound=KubernetesObject, covariant=True)


class ClusterError(Exception):
    """A request that did not succeed; `str()` says what happened to what."""

    def __init__(self, message: str, *, status: int = 0, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class NotFound(ClusterError):
    """No such object, or no such kind."""


class AlreadyExists(ClusterError):
    """The name is taken."""


class Conflict(ClusterError):
    """A resourceVersion or uid precondition failed: read again, decide again."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason of a refusal: the field and the rule it broke."""

    field: str
    message: str
    reason: str = ""


class Invalid(ClusterError):
    """The object broke the schema or a rule, or a JSON Patch `test` failed (then `causes` is empty)."""

    def __init__(self, message: str, *, status: int = 422, causes: tuple[Cause, ...] = ()) -> None:
        super().__init__(message, status=status)
        self.causes = causes


class Forbidden(ClusterError):
    """RBAC or an admission policy said no."""


class Unauthorized(ClusterError):
    """The credentials are not accepted."""


class Expired(ClusterError):
    """The resourceVersion is older than the server remembers."""


class Unavailable(ClusterError):
    """No answer that tells whether the write happened; look at the world before trying again."""


class PatchType(Enum):
    """The value is the content type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Patch:
    """A partial write. `body` is plain data: a list of operations for JSON, an object for the others."""

    type: PatchType
    body: Any
    force: bool = False


class EvictionAnswer(Enum):
    """What `pods/eviction` said."""

    ACCEPTED = "accepted"
    GONE = "gone"
    """404, or the uid differs: the pod we meant is no longer there."""
    BLOCKED_BY_BUDGET = "blocked by PodDisruptionBudget"
    MISCONFIGURED = "more than one PodDisruptionBudget covers the pod"
    """Permanent until a human changes the budgets."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """The answer, and the server's own words for people."""

    answer: EvictionAnswer
    message: str = ""


@dataclass(frozen=True, slots=True)
class Synced:
    """The cache now holds a complete list; sent again after each relist."""


@dataclass(frozen=True, slots=True)
class Upserted(Generic[T]):
    """An object appeared or changed; `old` is what the cache held before."""

    new: T
    old: T | None = None


@dataclass(frozen=True, slots=True)
class Removed(Generic[T]):
    """An object is gone, told by a watch or found missing by a relist."""

    old: T


Change = Synced | Upserted[Any] | Removed[Any]


class Cache(Protocol[T_co]):
    """A local copy of a collection, kept level with the server by list + watch.

    After any disconnect, 410 or silence it relists and reports the *difference*, deletions included,
    so a follower that only looks at changes never holds a ghost.
    """

    @property
    def synced(self) -> bool:
        """Whether a complete list has been seen and the watch is not known to be broken."""
        ...

    def get(self, name: str, namespace: str = "") -> T_co | None:
        """The object as last seen, or None."""
        ...

    def values(self) -> Collection[T_co]:
        """All objects as last seen; do not keep across an await."""
        ...

    async def run(self, on_change: Callable[[Change], None] | None = None) -> None:
        """Follow for ever; `on_change` is called in order and must not block. Ends by cancellation only."""
        ...


class Cluster(Protocol):
    """The API server. Every call may raise `ClusterError`; each has a deadline of its own."""

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """Read one object. Raises NotFound."""
        ...

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        """Read a collection in pages; an empty namespace means all namespaces."""
        ...

    async def create(self, kind: Kind[T], body: dict[str, Any] | T, namespace: str = "") -> T:
        """Create from plain data or a shape. Raises AlreadyExists, Invalid."""
        ...

    async def patch(
        self, kind: Kind[T], name: str, patch: Patch, namespace: str = "", *, subresource: str = ""
    ) -> T:
        """Write part of an object. Raises NotFound, Conflict, Invalid."""
        ...

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
        """Delete one object under preconditions. Raises NotFound, Conflict."""
        ...

    async def evict(
        self, name: str, namespace: str, *, uid: str, grace_period_s: int | None = None
    ) -> Eviction:
        """Ask for a pod to be moved, under its budgets. Overload raises Unavailable, never an answer."""
        ...

    def cache(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Cache[T]:
        """A cache over a collection; nothing happens until its `run` is awaited."""
        ...


class Fence(Protocol):
    """Whether this process may write now."""

    def may_write(self) -> bool:
        """True only while our lease cannot have run out before a request sent now would be over."""
        ...


@dataclass(frozen=True, slots=True)
class EventNote:
    """A Kubernetes Event to be written about an object."""

    kind: Kind[Any]
    name: str
    reason: str
    message: str
    namespace: str = ""
    uid: str = ""
    warning: bool = False


class EventRecorder(Protocol):
    """Writes Events; best effort, bounded, never in the way of an action."""

    def record(self, note: EventNote) -> None:
        """Queue a note; a full queue drops it and counts the drop."""
        ...


__all__ = [
    "AlreadyExists",
    "Cache",
    "Cause",
    "Change",
    "Cluster",
    "ClusterError",
    "Conflict",
    "EventNote",
    "EventRecorder",
    "Eviction",
    "EvictionAnswer",
    "Expired",
    "Fence",
    "Forbidden",
    "Invalid",
    "NotFound",
    "Patch",
    "PatchType",
    "Removed",
    "Synced",
    "Unauthorized",
    "Unavailable",
    "Upserted",
]
