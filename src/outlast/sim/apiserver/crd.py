"""Custom kinds: from a CustomResourceDefinition to a served row with schema, columns and rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outlast.sim.apiserver.errors import Cause, invalid_value
from outlast.sim.apiserver.jsonpath import compile_path
from outlast.sim.apiserver.resources import Resource
from outlast.sim.apiserver.schema import Schema, compile_schema
from outlast.sim.apiserver.shapes import META, Shape


@dataclass(frozen=True, slots=True)
class Column:
    """One printer column."""

    name: str
    type: str
    path: Callable[[Any], list[Any]]
    description: str = ""
    priority: int = 0
    format: str = ""


@dataclass(frozen=True, slots=True)
class CustomKind:
    """What a definition says about the objects of its kind."""

    schema: Schema
    columns: tuple[Column, ...]
    raw_schema: dict[str, Any]

    def decode(self, obj: dict[str, Any]) -> list[str]:
        """Drop what the schema does not know and fill in defaults, in place; the dropped paths."""
        unknown = self.schema.prune(obj)
        self.schema.default(obj)
        return unknown

    def validate(self, obj: dict[str, Any], old: dict[str, Any] | None) -> list[Cause]:
        """What breaks the schema."""
        return self.schema.validate(obj, old)


def _version(definition: dict[str, Any]) -> dict[str, Any]:
    versions = (definition.get("spec") or {}).get("versions") or []
    return next((v for v in versions if v.get("storage")), {})


def definition_problems(definition: dict[str, Any]) -> list[Cause]:
    """What is wrong with a definition."""
    spec = definition.get("spec") or {}
    names = spec.get("names") or {}
    causes: list[Cause] = []
    expected = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if definition["metadata"].get("name") != expected:
        causes.append(
            invalid_value(
                "metadata.name",
                definition["metadata"].get("name"),
                'must be spec.names.plural+"."+spec.group',
            )
        )
    for path, value in (
        ("spec.group", spec.get("group")), ("spec.scope", spec.get("scope")),
        ("spec.names.plural", names.get("plural")), ("spec.names.kind", names.get("kind")),
    ):  # fmt: skip
        if not value:
            causes.append(Cause("FieldValueRequired", "Required value", path))
    if sum(bool(v.get("storage")) for v in spec.get("versions") or ()) != 1:
        causes.append(
            invalid_value(
                "spec.versions",
                spec.get("versions"),
                "must have exactly one version marked as storage version",
            )
        )
    elif not ((_version(definition).get("schema") or {}).get("openAPIV3Schema")):
        causes.append(
            Cause(
                "FieldValueRequired",
                "Required value: schemas are required",
                "spec.versions[0].schema.openAPIV3Schema",
            )
        )
    if not causes:
        try:
            to_resource(definition)
        except ValueError as error:
            causes.append(invalid_value("spec.versions", "", str(error)))
    return causes


def to_resource(definition: dict[str, Any]) -> Resource:
    """The served row of a valid definition. ValueError where its schema or columns cannot be used."""
    spec, version = definition["spec"], _version(definition)
    names = spec["names"]
    raw = version["schema"]["openAPIV3Schema"]
    columns = tuple(
        Column(
            c["name"], c.get("type", "string"), compile_path(c["jsonPath"]), c.get("description", ""),
            c.get("priority", 0), c.get("format", ""),
        )
        for c in version.get("additionalPrinterColumns") or ()
    )  # fmt: skip
    subresources = version.get("subresources") or {}
    shape = list_shape(raw)
    return Resource(
        spec["group"], version["name"], names["kind"], names["plural"],
        namespaced=spec["scope"] == "Namespaced",
        singular=names.get("singular", "") or names["kind"].lower(),
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        status="status" in subresources,
        generation=True,
        unconditional_update=False,
        shape=Shape({**shape.fields, "metadata": META}),
        custom=CustomKind(compile_schema(raw), columns, raw),
        fields=tuple(f["jsonPath"].lstrip(".") for f in version.get("selectableFields") or ()),
    )  # fmt: skip


def list_shape(schema: dict[str, Any]) -> Shape:
    """Which lists of a custom kind have items with owners of their own."""
    fields = {name: list_shape(s) for name, s in (schema.get("properties") or {}).items()}
    items = schema.get("items")
    keyed = schema.get("x-kubernetes-list-type")
    return Shape(
        fields,
        item=list_shape(items) if isinstance(items, dict) else None,
        owned_by=tuple(schema.get("x-kubernetes-list-map-keys") or ()) if keyed == "map" else (),
        owned_set=keyed == "set",
        atomic=schema.get("x-kubernetes-map-type") == "atomic",
        member=True,
    )


def accepted_status(definition: dict[str, Any], now: str) -> dict[str, Any]:
    """The status of a definition whose kind is served."""
    names = definition["spec"]["names"]
    names = {"singular": names["kind"].lower(), "listKind": names["kind"] + "List", **names}
    conditions = [
        {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found",
         "lastTransitionTime": now},
        {"type": "Established", "status": "True", "reason": "InitialNamesAccepted",
         "message": "the initial names have been accepted", "lastTransitionTime": now},
    ]  # fmt: skip
    return {
        "acceptedNames": names,
        "conditions": conditions,
        "storedVersions": [_version(definition)["name"]],
    }
