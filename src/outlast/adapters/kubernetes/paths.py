"""From a Kind to its URL path: no discovery, no guessing.

Names are checked before they become part of a path, because an empty or dotted name would turn
"delete this object" into "delete the collection" or into another object.
"""

import re
from typing import Any

from outlast.model.cluster import Kind
from outlast.ports.cluster import Invalid

_SEGMENT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:@-]{0,251}[A-Za-z0-9])?")
_SUBRESOURCE = re.compile(r"[a-z]{1,63}")


def collection_path(kind: Kind[Any], namespace: str = "") -> str:
    """Path of a collection; an empty namespace means all of them. Raises Invalid."""
    root = "/api/v1" if kind.api_version == "v1" else f"/apis/{kind.api_version}"
    if not namespace:
        return f"{root}/{kind.plural}"
    if not kind.namespaced:
        raise Invalid(f"{kind.name} has no namespace, but {namespace!r} was given", status=400)
    return f"{root}/namespaces/{_segment(namespace, 'namespace')}/{kind.plural}"


def creation_path(kind: Kind[Any], namespace: str) -> str:
    """Path to create in: as the collection, but a namespaced kind needs its namespace. Raises Invalid."""
    _require_namespace(kind, namespace)
    return collection_path(kind, namespace)


def object_path(kind: Kind[Any], name: str, namespace: str = "", subresource: str = "") -> str:
    """Path of one object or of its subresource. Raises Invalid for a name that is no name."""
    _require_namespace(kind, namespace)
    path = f"{collection_path(kind, namespace)}/{_segment(name, kind.name + ' name')}"
    if not subresource:
        return path
    if not _SUBRESOURCE.fullmatch(subresource):
        raise Invalid(f"{subresource[:80]!r} is not a subresource", status=400)
    return f"{path}/{subresource}"


def _require_namespace(kind: Kind[Any], namespace: str) -> None:
    if kind.namespaced and not namespace:
        raise Invalid(f"{kind.name} needs a namespace", status=400)


def _segment(text: str, what: str) -> str:
    if not _SEGMENT.fullmatch(text):
        raise Invalid(f"{text[:80]!r} is not a {what}", status=400)
    return text
