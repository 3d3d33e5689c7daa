"""A msgspec type as the OpenAPI schema that Kubernetes calls structural.

Everything is inlined and typed; what Kubernetes refuses or silently drops (`$ref`, `anyOf` with null,
tuples of fixed shape, tagged unions) is refused here, at generation, with the path of the field.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect as shapes

JsonSchema = dict[str, Any]


class Unsupported(Exception):
    """A type that has no structural schema; `str()` names the field."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule of the API server. `message` is what a person reads when it is broken."""

    rule: str
    message: str

    def to_plain(self) -> dict[str, str]:
        """As `x-kubernetes-validations` wants it."""
        return {"rule": self.rule, "message": self.message}


@dataclass(frozen=True, slots=True)
class Hints:
    """What a struct cannot say: rules, list keys, and where defaults are written into stored objects.

    Keys are paths of JSON names; `spec.ladders[]` means the items of a list.
    """

    rules: dict[str, tuple[Rule, ...]] = field(default_factory=dict)
    list_keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    defaults_under: tuple[str, ...] = ()


def structural_schema(type_: Any, hints: Hints, path: str = "") -> JsonSchema:
    """The schema of a type at a path. Raises Unsupported."""
    return _Generator(hints).schema(shapes.type_info(type_), path)


class _Generator:
    def __init__(self, hints: Hints) -> None:
        self._hints = hints

    def schema(self, type_: shapes.Type, path: str) -> JsonSchema:
        """One type; `path` finds its hints and names it in errors."""
        schema = self._bare(type_, path)
        rules = self._hints.rules.get(path)
        if rules:
            schema["x-kubernetes-validations"] = [rule.to_plain() for rule in rules]
        return schema

    def _bare(self, type_: shapes.Type, path: str) -> JsonSchema:
        match type_:
            case shapes.Metadata():
                return {**self._bare(type_.type, path), **(type_.extra_json_schema or {})}
            case shapes.BoolType():
                return {"type": "boolean"}
            case shapes.IntType():
                return _bounded({"type": "integer", "format": "int64"}, type_.ge, type_.le)
            case shapes.FloatType():
                return _bounded({"type": "number"}, type_.ge, type_.le)
            case shapes.StrType():
                limits = {
                    "minLength": type_.min_length,
                    "maxLength": type_.max_length,
                    "pattern": type_.pattern,
                }
                return {"type": "string", **_given(limits)}
            case shapes.DateTimeType():
                return {"type": "string", "format": "date-time"}
            case shapes.EnumType():
                return {"type": "string", "enum": [member.value for member in type_.cls]}
            case shapes.ListType() | shapes.VarTupleType():
                return self._list(type_, path)
            case shapes.DictType():
                return {"type": "object", "additionalProperties": self._bare(type_.value_type, f"{path}.*")}
            case shapes.UnionType():
                return self._optional(type_, path)
            case shapes.StructType():
                return self._struct(type_, path)
        raise Unsupported(f"{path or 'the root'}: {type(type_).__name__} has no structural schema")

    def _optional(self, type_: shapes.UnionType, path: str) -> JsonSchema:
        present = [t for t in type_.types if not isinstance(t, shapes.NoneType)]
        if len(present) != 1:
            raise Unsupported(f"{path}: a union of {len(present)} types has no structural schema")
        return self._bare(present[0], path)

    def _list(self, type_: shapes.ListType | shapes.VarTupleType, path: str) -> JsonSchema:
        limits = {"minItems": type_.min_length, "maxItems": type_.max_length}
        schema: JsonSchema = {"type": "array", **_given(limits)}
        keys = self._hints.list_keys.get(path)
        if keys:
            schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
        else:
            schema["x-kubernetes-list-type"] = "atomic"
        schema["items"] = self.schema(type_.item_type, f"{path}[]")
        return schema

    def _struct(self, type_: shapes.StructType, path: str) -> JsonSchema:
        if type_.tag is not None or type_.array_like:
            raise Unsupported(f"{path}: tagged and array-like structs have no structural schema")
        fields = [f for f in type_.fields if path or f.encode_name != "metadata"]
        properties = {f.encode_name: self._field(f, _join(path, f.encode_name)) for f in fields}
        required = sorted(f.encode_name for f in fields if f.required)
        description = inspect.cleandoc(type_.cls.__doc__ or "").split("\n\n")[0].replace("\n", " ")
        schema: JsonSchema = {"type": "object", "description": description, "properties": properties}
        if required:
            schema["required"] = required
        return schema

    def _field(self, field_: shapes.Field, path: str) -> JsonSchema:
        schema = self.schema(field_.type, path)
        if "description" not in schema:
            raise Unsupported(f"{path}: a field needs a description")
        if any(path == root or path.startswith(f"{root}.") for root in self._hints.defaults_under):
            default = _default(field_)
            if default is not None:
                schema["default"] = default
        return schema


def _default(field_: shapes.Field) -> Any:
    """What the server writes into an object that leaves the field out; None for nothing."""
    value = field_.default
    if value is msgspec.NODEFAULT and field_.default_factory is not msgspec.NODEFAULT:
        value = field_.default_factory()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return {}
    return value if isinstance(value, bool | int | float | str) and value != "" else None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _given(limits: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in limits.items() if value is not None}


def _bounded(schema: JsonSchema, at_least: float | None, at_most: float | None) -> JsonSchema:
    return schema | _given({"minimum": at_least, "maximum": at_most})
