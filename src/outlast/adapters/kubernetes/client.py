"""The API server as the core sees it: `outlast.ports.cluster.Cluster` over HTTP.

There is no discovery: a Kind knows its path. Each write names its field manager and asks the server to
give up when we do, so that a write we no longer wait for does not land later.
"""

from __future__ import annotations

from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

from outlast.adapters.kubernetes.access import Access
from outlast.adapters.kubernetes.cache import WatchCache
from outlast.adapters.kubernetes.codec import Undecodable, decode_object, encode_body, encode_object
from outlast.adapters.kubernetes.errors import Reply, error_of, eviction_of
from outlast.adapters.kubernetes.limits import DEFAULT_LIMITS, Limits
from outlast.adapters.kubernetes.listing import Selection, list_all
from outlast.adapters.kubernetes.paths import creation_path, object_path
from outlast.adapters.kubernetes.transport import Request, Transport
from outlast.model.cluster import PODS, Kind, KubernetesObject
from outlast.ports.clock import Clock
from outlast.ports.cluster import Eviction, Invalid, Patch, PatchType, Unavailable

T = TypeVar("T", bound=KubernetesObject)

FIELD_MANAGER = "outlast-controller"
FIELD_MANAGER_CHARS_MAX = 128


class KubernetesCluster:
    """One API server as one user. Use as an async context manager, or call `close`.

    `field_manager` signs every write. `field_validation="Strict"` turns unknown fields into Invalid
    instead of a warning. Raises ValueError for a field manager the server would refuse.
    """

    def __init__(
        self,
        access: Access,
        *,
        clock: Clock,
        rng: Random,
        field_manager: str = FIELD_MANAGER,
        field_validation: str = "",
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        if not field_manager.isprintable() or not 0 < len(field_manager) <= FIELD_MANAGER_CHARS_MAX:
            raise ValueError(f"a field manager is 1 to {FIELD_MANAGER_CHARS_MAX} printable characters")
        self._transport = Transport(access, clock=clock, rng=rng, limits=limits)
        self._limits = limits
        self._write_params = [("fieldManager", field_manager)]
        if field_validation:
            self._write_params.append(("fieldValidation", field_validation))
        self.namespace = access.namespace

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; caches that still run will see a broken stream."""
        await self._transport.close()

    @property
    def request_deadline_s(self) -> float:
        """The longest a write can take, retries included: what a fence must keep in hand."""
        return self._limits.request_deadline_s

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """Read one object. Raises NotFound."""
        request = Request(_what("get", kind, name, namespace), "GET", object_path(kind, name, namespace))
        return _decoded(kind, request, _success(request, await self._transport.call(request)))

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        """Read a collection in pages; an empty namespace means all namespaces."""
        return await list_all(self._transport, Selection(kind, namespace, label_selector, field_selector))

    async def create(self, kind: Kind[T], body: dict[str, Any] | T, namespace: str = "") -> T:
        """Create from plain data or a shape. Raises AlreadyExists, Invalid."""
        name = body.metadata.name if isinstance(body, KubernetesObject) else _name_in(body)
        request = Request(
            _what("create", kind, name, namespace),
            "POST",
            creation_path(kind, namespace),
            [*self._write_params, self._timeout()],
            encode_object(kind, body),
        )
        reply = await self._transport.call(request)
        if not reply.ok:
            raise error_of(request.what, reply, creating=True)
        return _decoded(kind, request, reply)

    async def patch(
        self, kind: Kind[T], name: str, patch: Patch, namespace: str = "", *, subresource: str = ""
    ) -> T:
        """Write part of an object. Raises NotFound, Conflict, Invalid.

        `force` takes fields from other managers and is for apply only; elsewhere it raises Invalid.
        """
        is_apply = patch.type is PatchType.APPLY
        if patch.force and not is_apply:
            raise Invalid(
                f"{_what('patch', kind, name, namespace)}: force is for apply patches only", status=400
            )
        body = encode_object(kind, patch.body) if is_apply else encode_body(patch.body)
        request = Request(
            _what("patch", kind, name, namespace, subresource),
            "PATCH",
            object_path(kind, name, namespace, subresource),
            [*self._write_params, *([("force", "true")] if patch.force else []), self._timeout()],
            body,
            patch.type.value,
        )
        return _decoded(kind, request, _success(request, await self._transport.call(request)))

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
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options = _delete_options(preconditions, grace_period_s) | {"propagationPolicy": propagation}
        request = Request(
            _what("delete", kind, name, namespace),
            "DELETE",
            object_path(kind, name, namespace),
            [self._timeout()],
            encode_body(options),
        )
        _success(request, await self._transport.call(request))

    async def evict(
        self, name: str, namespace: str, *, uid: str, grace_period_s: int | None = None
    ) -> Eviction:
        """Ask for a pod to be moved, under its budgets. Overload raises Unavailable, never an answer.

        Raises Invalid without a uid, and for a grace period below one second: the server would delete
        the record at once while the process lives on.
        """
        what = _what("evict", PODS, name, namespace)
        if not uid:
            raise Invalid(f"{what}: the uid of the pod meant is missing", status=400)
        if grace_period_s is not None and grace_period_s < 1:
            raise Invalid(f"{what}: a grace period of {grace_period_s} s is never sent", status=400)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _delete_options({"uid": uid}, grace_period_s),
        }
        request = Request(
            what,
            "POST",
            object_path(PODS, name, namespace, "eviction"),
            [*self._write_params, self._timeout()],
            encode_body(body),
        )
        return eviction_of(what, await self._transport.call(request))

    def cache(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> WatchCache[T]:
        """A cache over a collection; nothing happens until its `run` is awaited."""
        return WatchCache(self._transport, Selection(kind, namespace, label_selector, field_selector))

    def _timeout(self) -> tuple[str, str]:
        return ("timeout", f"{max(1, round(self._limits.request_deadline_s))}s")


def _what(verb: str, kind: Kind[Any], name: str, namespace: str, subresource: str = "") -> str:
    place = f"{namespace}/{name}" if namespace else name
    return f"{verb} {kind.name} {place[:300]}{' ' + subresource if subresource else ''}"


def _name_in(body: dict[str, Any]) -> str:
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        return "without a name"
    return str(metadata.get("name") or f"{metadata.get('generateName', '')}*")


def _delete_options(preconditions: dict[str, str], grace_period_s: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    given = {key: value for key, value in preconditions.items() if value}
    if given:
        options["preconditions"] = given
    if grace_period_s is not None:
        options["gracePeriodSeconds"] = grace_period_s
    return options


def _success(request: Request, reply: Reply) -> Reply:
    if not reply.ok:
        raise error_of(request.what, reply)
    return reply


def _decoded(kind: Kind[T], request: Request, reply: Reply) -> T:
    try:
        return decode_object(kind.shape, reply.body)
    except Undecodable as error:
        # The server did answer 2xx; what it holds now is unknown to us all the same.
        raise Unavailable(
            f"{request.what}: the answer cannot be read: {error}", status=reply.status
        ) from None
