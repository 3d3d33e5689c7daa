"""From a request path to the collection, object and subresource it names."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from outlast.sim.apiserver.resources import Catalogue, Resource


@dataclass(frozen=True, slots=True)
class Target:
    """What a resource path is about."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse(path: str, catalogue: Catalogue) -> Target | None:
    """The target of `/api/v1/...` or `/apis/GROUP/VERSION/...`; None where nothing is served."""
    parts = [unquote(p) for p in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and not _is_namespace_subresource(group, rest):
        namespace, rest = rest[1], rest[2:]
    resource = catalogue.find(group, version, rest[0])
    if resource is None or len(rest) > 3 or (namespace and not resource.namespaced):
        return None
    name = rest[1] if len(rest) > 1 else ""
    if name and resource.namespaced and not namespace:
        return None
    return Target(resource, namespace, name, rest[2] if len(rest) > 2 else "")


def _is_namespace_subresource(group: str, rest: list[str]) -> bool:
    return not group and len(rest) == 3 and rest[2] in ("status", "finalize")
