"""JSON to shapes and back: the only place that knows how objects look on the wire.

Decoders are made once a shape. A page is decoded in one go; only where that fails is it taken apart, so
that one object we cannot read costs that object and not the page.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from outlast.model.cluster import Kind, KubernetesObject, ObjectMeta

T = TypeVar("T", bound=KubernetesObject)

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Undecodable(Exception):
    """JSON that is not what the API promises; the message never quotes the object."""


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """Metadata of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list; Go writes an empty list as null."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class _RawPage(msgspec.Struct, frozen=True):
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class Envelope(msgspec.Struct, frozen=True):
    """One line of a watch, its object still undecoded."""

    type: str
    object: msgspec.Raw


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder says of bytes that are no JSON, or not of this shape, or nested without end."""

_ENVELOPE = msgspec.json.Decoder(Envelope)
_RAW_PAGE = msgspec.json.Decoder(_RawPage)
_IDENTITY = msgspec.json.Decoder(KubernetesObject)


@lru_cache(maxsize=256)
def _object_decoder(shape: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(shape)


@lru_cache(maxsize=256)
def _page_decoder(shape: type[T]) -> msgspec.json.Decoder[Page[T]]:
    return msgspec.json.Decoder(Page[shape])  # type: ignore[valid-type]


def decode_envelope(line: bytes) -> Envelope:
    """A watch line, outer part. Raises Undecodable."""
    try:
        return _ENVELOPE.decode(line)
    except _UNREADABLE as error:
        raise Undecodable(f"a watch line is no event: {error}") from None


def decode_object(shape: type[T], data: bytes | msgspec.Raw) -> T:
    """One object. Raises Undecodable."""
    try:
        item: T = _object_decoder(shape).decode(data)
    except _UNREADABLE as error:
        raise Undecodable(str(error)) from None
    return item


def decode_identity(data: bytes | msgspec.Raw) -> ObjectMeta:
    """Metadata alone, for objects whose rest cannot be read, and for bookmarks. Raises Undecodable."""
    try:
        return _IDENTITY.decode(data).metadata
    except _UNREADABLE as error:
        raise Undecodable(f"an object without readable metadata: {error}") from None


def decode_page(shape: type[T], body: bytes) -> tuple[Page[T], list[tuple[ObjectMeta, str]]]:
    """A page, and the identity of each item that could not be read with the reason. Raises Undecodable."""
    try:
        return _page_decoder(shape).decode(body), []
    except _UNREADABLE:
        return _decode_page_by_item(shape, body)


def _decode_page_by_item(shape: type[T], body: bytes) -> tuple[Page[T], list[tuple[ObjectMeta, str]]]:
    try:
        raw = _RAW_PAGE.decode(body)
    except _UNREADABLE as error:
        raise Undecodable(f"the answer is no list: {error}") from None
    items: list[T] = []
    unreadable: list[tuple[ObjectMeta, str]] = []
    for item in raw.items or ():
        try:
            items.append(decode_object(shape, item))
        except Undecodable as reason:
            unreadable.append((decode_identity(item), str(reason)))
    return Page(raw.metadata, items), unreadable


def encode_body(body: Any) -> bytes:
    """Any write body as JSON. Raises ValueError for a time without a zone."""
    return msgspec.json.encode(_with_times(msgspec.to_builtins(body, builtin_types=(datetime,))))


def encode_object(kind: Kind[Any], body: dict[str, Any] | KubernetesObject) -> bytes:
    """A whole object as JSON; its apiVersion and kind are filled in from `kind`."""
    plain = msgspec.to_builtins(body, builtin_types=(datetime,))
    return encode_body({"apiVersion": kind.api_version, "kind": kind.name, **plain})


def micro_time(moment: datetime) -> str:
    """RFC 3339 with six digits, which both kinds of Kubernetes times accept (MicroTime insists on them)."""
    if moment.tzinfo is None:
        raise ValueError("a time without a time zone cannot be written to the cluster")
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _with_times(value: Any) -> Any:
    if isinstance(value, datetime):
        return micro_time(value)
    if isinstance(value, dict):
        return {key: _with_times(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_times(item) for item in value]
    return value
