"""What is served, in the four forms that clients ask for: classic, aggregated, OpenAPI v2 and v3.

OpenAPI is as small as kubectl needs: schemas of custom kinds for `explain` and `apply`, and the query
parameters that tell it the server validates fields itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outlast.sim.apiserver.resources import VERBS, Catalogue, Resource

VERSION = {
    "major": "1", "minor": "37", "gitVersion": "v1.37.2", "gitCommit": "", "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "python", "platform": "linux/amd64",
}  # fmt: skip
"""The API level whose behaviour is followed."""
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_STATUS_VERBS = ("get", "patch", "update")
_REVIEWS = (
    ("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    ("authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews"),
)


def subresources(resource: Resource) -> list[tuple[str, str, str, str, tuple[str, ...]]]:
    """Name, group, version, kind and verbs of each subresource."""
    found: list[tuple[str, str, str, str, tuple[str, ...]]] = []
    if resource.status:
        found.append(("status", resource.group, resource.version, resource.kind, _STATUS_VERBS))
    if resource.kind == "Pod" and not resource.group:
        found.append(("eviction", "policy", "v1", "Eviction", ("create",)))
        found.append(("binding", "", "v1", "Binding", ("create",)))
    return found


def _singular(resource: Resource) -> str:
    return resource.singular or resource.kind.lower()


def group_versions(catalogue: Catalogue) -> dict[str, list[str]]:
    """Served versions by group, core first."""
    groups: dict[str, list[str]] = {"": ["v1"]}
    for resource in catalogue.rows():
        versions = groups.setdefault(resource.group, [])
        if resource.version not in versions:
            versions.append(resource.version)
    for group, _, _ in _REVIEWS:
        groups.setdefault(group, ["v1"])
    return groups


def _group(name: str, versions: Iterable[str]) -> dict[str, Any]:
    listed = [{"groupVersion": f"{name}/{v}", "version": v} for v in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def api_versions(address: str) -> dict[str, Any]:
    """`/api`."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def api_groups(catalogue: Catalogue) -> dict[str, Any]:
    """`/apis`."""
    groups = [_group(n, v) for n, v in group_versions(catalogue).items() if n]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_group(catalogue: Catalogue, group: str) -> dict[str, Any] | None:
    """`/apis/GROUP`, or None."""
    versions = group_versions(catalogue).get(group)
    return None if not versions else {"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions)}


def api_resources(catalogue: Catalogue, group: str, version: str) -> dict[str, Any] | None:
    """`/apis/GROUP/VERSION`, or None."""
    if version not in group_versions(catalogue).get(group, ()):
        return None
    rows: list[dict[str, Any]] = []
    for resource in catalogue.rows():
        if (resource.group, resource.version) != (group, version):
            continue
        row: dict[str, Any] = {
            "name": resource.plural, "singularName": _singular(resource), "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": list(VERBS),
        }  # fmt: skip
        if resource.short_names:
            row["shortNames"] = list(resource.short_names)
        if resource.categories:
            row["categories"] = list(resource.categories)
        rows.append(row)
        for name, sub_group, sub_version, kind, verbs in subresources(resource):
            row = {
                "name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced,
                "kind": kind, "verbs": list(verbs),
            }  # fmt: skip
            if (sub_group, sub_version) != (group, version):
                row |= {"group": sub_group, "version": sub_version}
            rows.append(row)
    for review_group, kind, plural in _REVIEWS:
        if review_group == group:
            rows.append(
                {
                    "name": plural,
                    "singularName": kind.lower(),
                    "namespaced": False,
                    "kind": kind,
                    "verbs": ["create"],
                }
            )
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": rows}


def aggregated(catalogue: Catalogue, *, core: bool) -> dict[str, Any]:
    """`/api` or `/apis` as one document."""
    items = []
    for group, versions in group_versions(catalogue).items():
        if (group == "") is not core:
            continue
        documents = []
        for version in versions:
            rows = [r for r in catalogue.rows() if (r.group, r.version) == (group, version)]
            documents.append(
                {"version": version, "freshness": "Current",
                 "resources": [_discovered(r) for r in rows] + _discovered_reviews(group)}
            )  # fmt: skip
        metadata = {"name": group} if group else {}
        items.append({"metadata": metadata, "versions": documents})
    return {
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": items,
    }  # fmt: skip


def _discovered(resource: Resource) -> dict[str, Any]:
    row: dict[str, Any] = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": _singular(resource),
        "verbs": list(VERBS),
    }
    if resource.short_names:
        row["shortNames"] = list(resource.short_names)
    if resource.categories:
        row["categories"] = list(resource.categories)
    below = [
        {"subresource": name, "responseKind": {"group": group, "version": version, "kind": kind},
         "verbs": list(verbs)}
        for name, group, version, kind, verbs in subresources(resource)
    ]  # fmt: skip
    if below:
        row["subresources"] = below
    return row


def _discovered_reviews(group: str) -> list[dict[str, Any]]:
    return [
        {"resource": plural, "responseKind": {"group": group, "version": "v1", "kind": kind},
         "scope": "Cluster", "singularResource": kind.lower(), "verbs": ["create"]}
        for review_group, kind, plural in _REVIEWS
        if review_group == group
    ]  # fmt: skip


_QUERY = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]


def openapi_index(catalogue: Catalogue) -> dict[str, Any]:
    """`/openapi/v3`."""
    paths = {}
    for group, versions in group_versions(catalogue).items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={catalogue.changes}"}
    return {"paths": paths}


def _gvk(resource: Resource) -> dict[str, str]:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def schema_name(resource: Resource) -> str:
    """The name of a kind among the schemas."""
    reverse = ".".join(reversed(resource.group.split("."))) if resource.group else "io.k8s.api.core"
    return f"{reverse}.{resource.version}.{resource.kind}"


def _schema(resource: Resource) -> dict[str, Any]:
    schema: dict[str, Any] = dict(resource.custom.raw_schema) if resource.custom else {"type": "object"}
    properties = dict(schema.get("properties") or {})
    for name, text in (
        ("apiVersion", "Version of the schema of this object."),
        ("kind", "Kind of this object."),
    ):
        properties[name] = {"type": "string", "description": text}
    properties["metadata"] = {"type": "object", "description": "Standard object metadata."}
    return {**schema, "properties": properties, "x-kubernetes-group-version-kind": [_gvk(resource)]}


def _path(resource: Resource) -> str:
    root = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    return f"{root}{scope}/{resource.plural}"


def openapi_v3(catalogue: Catalogue, group: str, version: str) -> dict[str, Any]:
    """`/openapi/v3/apis/GROUP/VERSION`."""
    paths, schemas = {}, {}
    for resource in catalogue.rows():
        if (resource.group, resource.version) != (group, version):
            continue
        name = schema_name(resource)
        schemas[name] = _schema(resource)
        body = {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}
        answer = {"responses": {"200": {"description": "OK", **body}}}
        common = {"x-kubernetes-group-version-kind": _gvk(resource), "parameters": _QUERY, **answer}
        paths[_path(resource)] = {
            "get": {**common, "x-kubernetes-action": "list"},
            "post": {**common, "x-kubernetes-action": "post"},
        }
        paths[_path(resource) + "/{name}"] = {
            "get": {**common, "x-kubernetes-action": "get"},
            "put": {**common, "x-kubernetes-action": "put"},
            "patch": {**common, "x-kubernetes-action": "patch"},
        }
    info = {"title": "outlast embedded Kubernetes API", "version": VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def openapi_v2(catalogue: Catalogue) -> dict[str, Any]:
    """`/openapi/v2`."""
    paths, definitions = {}, {}
    parameters = [{"name": p["name"], "in": "query", "type": "string", "uniqueItems": True} for p in _QUERY]
    for resource in catalogue.rows():
        name = schema_name(resource)
        definitions[name] = _schema(resource)
        answer = {"200": {"description": "OK", "schema": {"$ref": f"#/definitions/{name}"}}}
        operation = {
            "x-kubernetes-group-version-kind": _gvk(resource),
            "parameters": parameters,
            "responses": answer,
        }
        paths[_path(resource) + "/{name}"] = {"get": operation, "patch": operation}
    info = {"title": "outlast embedded Kubernetes API", "version": VERSION["gitVersion"]}
    return {"swagger": "2.0", "info": info, "paths": paths, "definitions": definitions}
