"""Lists a collection page by page.

A continue token can outlive the server's memory (410): then the pages seen so far are worth nothing and
the list starts again, a bounded number of times.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from outlast.adapters.kubernetes.codec import Page, Undecodable, decode_page
from outlast.adapters.kubernetes.errors import error_of
from outlast.adapters.kubernetes.paths import collection_path
from outlast.adapters.kubernetes.transport import Params, Request, Transport
from outlast.model.cluster import Kind, KubernetesObject, ObjectMeta
from outlast.ports.cluster import Expired, Invalid, Unavailable

T = TypeVar("T", bound=KubernetesObject)

PAGES_MAX = 10_000
"""Five million objects at the default page size; a server that never ends its list is stopped here."""


@dataclass(frozen=True, slots=True)
class Selection(Generic[T]):
    """Which objects: a kind, narrowed by namespace and selectors."""

    kind: Kind[T]
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""

    @property
    def path(self) -> str:
        """The path of the collection. Raises Invalid."""
        return collection_path(self.kind, self.namespace)

    @property
    def params(self) -> list[tuple[str, str]]:
        """The selectors as query parameters."""
        pairs = [("labelSelector", self.label_selector), ("fieldSelector", self.field_selector)]
        return [(key, value) for key, value in pairs if value]

    def __str__(self) -> str:
        return f"{self.kind.plural}{' in ' + self.namespace if self.namespace else ''}"


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One page, decoded; `unreadable` holds identity and reason of what could not be."""

    items: list[T]
    unreadable: list[tuple[ObjectMeta, str]]
    resource_version: str


async def parts(transport: Transport, selection: Selection[T]) -> AsyncIterator[Part[T]]:
    """Page after page. Raises ClusterError, Expired where a token ran out in mid-list."""
    token = ""
    for _ in range(PAGES_MAX):
        page, unreadable = await _page(transport, selection, token)
        yield Part(page.items or [], unreadable, page.metadata.resource_version)
        token = page.metadata.continue_
        if not token:
            return
    raise Unavailable(f"list {selection}: the server sent more than {PAGES_MAX} pages (PAGES_MAX)")


async def list_all(transport: Transport, selection: Selection[T]) -> list[T]:
    """The whole collection. Raises ClusterError, Invalid where an object cannot be read."""
    for restart in range(transport.limits.list_restarts_max + 1):
        items: list[T] = []
        try:
            async for part in parts(transport, selection):
                for identity, reason in part.unreadable:
                    raise Invalid(f"list {selection}: {identity.name} cannot be read: {reason}", status=200)
                items += part.items
        except Expired:
            if restart == transport.limits.list_restarts_max:
                raise
        else:
            return items
    raise AssertionError("the last start returns or raises")


async def _page(
    transport: Transport, selection: Selection[T], token: str
) -> tuple[Page[T], list[tuple[ObjectMeta, str]]]:
    params: Params = [*selection.params, ("limit", str(transport.limits.page_size))]
    if token:
        params = [*params, ("continue", token)]
    request = Request(f"list {selection}", "GET", selection.path, params)
    reply = await transport.call(request, deadline_s=transport.limits.list_deadline_s)
    if not reply.ok:
        raise error_of(request.what, reply)
    try:
        return decode_page(selection.kind.shape, reply.body)
    except Undecodable as error:
        raise Unavailable(f"list {selection}: {error}", status=reply.status) from None
