"""The checks that every body passes before its kind is looked at: shape, name, namespace, identity."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import msgspec

from outlast.sim.apiserver import errors, field_types, strategy
from outlast.sim.apiserver.errors import ApiError, Cause
from outlast.sim.apiserver.options import Writer
from outlast.sim.apiserver.resources import Resource
from outlast.sim.apiserver.selectors import extract_fields
from outlast.sim.apiserver.storage import Entry

OBJECT_BYTES_MAX = 1_500_000
"""Largest encoded object; etcd refuses requests above 1.5 MiB."""
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_encode = msgspec.json.Encoder().encode


def check_envelope(resource: Resource, obj: dict[str, Any], namespace: str) -> None:
    """Refuse a body of another kind or namespace with 400."""
    if resource.custom is not None and not (obj.get("kind") and obj.get("apiVersion")):
        missing = "Kind" if not obj.get("kind") else "apiVersion"
        raise errors.bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): "
            f"Object '{missing}' is missing"
        )
    api_version = obj.setdefault("apiVersion", resource.api_version)
    kind = obj.setdefault("kind", resource.kind)
    if api_version != resource.api_version or kind != resource.kind:
        raise errors.bad_request(
            f'{kind} in version "{api_version}" cannot be handled as a {resource.kind} of '
            f"{resource.api_version}: unknown conversion"
        )
    given = obj["metadata"].get("namespace")
    if resource.namespaced and given and given != namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if resource.namespaced and not namespace:
        raise errors.bad_request("an empty namespace may not be set during creation")
    if not resource.namespaced:
        obj["metadata"].pop("namespace", None)


def check_name(resource: Resource, name: str) -> None:
    """Refuse a missing or malformed name with 422."""
    if not name:
        cause = Cause(
            "FieldValueRequired", "Required value: name or generateName is required", "metadata.name"
        )
        raise errors.invalid(resource, name, [cause])
    if problem := strategy.name_problem(resource, name):
        raise errors.invalid(resource, name, [errors.invalid_value("metadata.name", name, problem)])


def check_preconditions(
    resource: Resource, entry: Entry, meta: dict[str, Any], *, put: bool, subresource: str
) -> None:
    """Refuse an update of another version or object with 409."""
    version = meta.get("resourceVersion") or ""
    if put and not version and not resource.unconditional_update:
        cause = Cause(
            "FieldValueInvalid",
            "Invalid value: 0: must be specified for an update",
            "metadata.resourceVersion",
        )
        raise errors.invalid(replace(resource, kind=resource.plural), entry.name, [cause])
    if put and meta.get("uid") and meta["uid"] != entry.uid:
        why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {entry.uid}"
        raise errors.conflict(resource, entry.name, why)
    if version and version != str(entry.version):
        raise errors.conflict(resource, entry.name)


def as_object(resource: Resource, obj: Any) -> dict[str, Any]:
    """The outermost checks of a body, and a shallow copy."""
    if not isinstance(obj, dict):
        raise errors.bad_request("the object provided is unrecognized (must be an object)")
    meta = obj.get("metadata")
    if meta is None:
        meta = {}
    if not isinstance(meta, dict):
        raise errors.Undecodable(
            resource, "json: cannot unmarshal into Go struct field ObjectMeta of metadata"
        )
    cleaned = {
        k: v for k, v in meta.items() if v is not None and not (v in ({}, []) and k != "managedFields")
    }
    return {**obj, "metadata": cleaned}


def decode_fields(resource: Resource, obj: dict[str, Any], writer: Writer) -> None:
    """Refuse wrong types, drop unknown fields, and fill in defaults of custom kinds, in place."""
    try:
        unknown = field_types.check(resource.group, resource.kind, obj)
    except field_types.WrongType as error:
        raise errors.Undecodable(resource, str(error)) from error
    if resource.custom is not None:
        unknown += resource.custom.decode(obj)
    listed = [f'unknown field "{path}"' for path in sorted(unknown)]
    if listed and writer.unknown_fields == "Strict":
        raise errors.Undecodable(resource, "strict decoding error: " + ", ".join(listed))
    if writer.unknown_fields == "Warn":
        writer.warnings.extend(listed)


_IMMUTABLE = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def keep_identity(resource: Resource, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Fields that only the server sets: filled in where left out, refused where changed."""
    causes = []
    for field_name in _IMMUTABLE:
        given, kept = new.get(field_name), old.get(field_name)
        if given in (None, ""):
            if kept is not None:
                new[field_name] = kept
        elif given != kept:
            causes.append(errors.invalid_value(f"metadata.{field_name}", given, "field is immutable"))
    if causes:
        raise errors.invalid(resource, name, causes)
    new["resourceVersion"] = old["resourceVersion"]
    for field_name in ("generation", "generateName"):
        if field_name in old:
            new[field_name] = old[field_name]
        else:
            new.pop(field_name, None)


def encoded(resource: Resource, obj: dict[str, Any], version: int) -> Entry:
    """The stored form of an object. Refused with 500 where it is too large."""
    meta = obj["metadata"]
    meta["resourceVersion"] = str(version)
    if not meta.get("managedFields", True):
        del meta["managedFields"]
    ordered = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
    raw = _encode(ordered)
    if len(raw) > OBJECT_BYTES_MAX:
        raise ApiError(500, "", "etcdserver: request is too large")
    return Entry(
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta["uid"],
        version=version,
        raw=raw,
        labels=meta.get("labels") or {},
        fields=extract_fields(obj, resource.fields),
        owners=tuple(o["uid"] for o in meta.get("ownerReferences") or ()),
    )


def name_suffix(uid: str) -> str:
    """Five characters for generateName, from a fresh uid."""
    number, suffix = uuid.UUID(uid).int, ""
    for _ in range(5):
        number, digit = divmod(number, len(_SUFFIX))
        suffix += _SUFFIX[digit]
    return suffix
