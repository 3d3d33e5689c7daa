"""Structural schemas of custom kinds: prune, default, validate, with the causes Kubernetes gives.

A schema is compiled once per definition into a tree; validation walks object and tree together and
collects every broken rule up to a limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.sim.apiserver.errors import Cause, required
from outlast.sim.apiserver.rules import Rule, compile_rules
from outlast.sim.apiserver.schema_checks import size_checks, value_checks

CAUSES_MAX = 100
"""Causes reported at most for one object."""

_BLOCKING = frozenset(
    {"FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany",
     "FieldValueTypeInvalid"}
)  # fmt: skip
_NOT_CHECKED = (
    "Invalid value: null: some validation rules were not checked because the object was invalid; correct the "
    "existing errors to complete validation"
)
ABSENT: Any = object()
"""There was no value before."""
_META_FIELDS = ("apiVersion", "kind", "metadata")
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "integer": (int,),
    "number": (int, float),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """One node of a compiled schema."""

    type: str = ""
    int_or_string: bool = False
    nullable: bool = False
    properties: Mapping[str, Schema] = field(default_factory=dict)
    additional: Schema | None = None
    items: Schema | None = None
    required: tuple[str, ...] = ()
    checks: tuple[Callable[[Any, str], Cause | None], ...] = ()
    default_value: Any = None
    has_default: bool = False
    preserve_unknown: bool = False
    embedded: bool = False
    list_type: str = ""
    list_keys: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    root: bool = False

    def prune(self, obj: Any, path: str = "") -> list[str]:
        """Remove fields that the schema does not know, in place; their paths."""
        removed: list[str] = []
        if isinstance(obj, dict) and (self.properties or self.additional or self.type == "object"):
            for name in list(obj):
                where = f"{path}.{name}" if path else name
                if (self.root or self.embedded) and name in _META_FIELDS:
                    continue
                child = self.properties.get(name, self.additional)
                if child is not None:
                    removed.extend(child.prune(obj[name], where))
                elif not self.preserve_unknown:
                    del obj[name]
                    removed.append(where)
        elif isinstance(obj, list) and self.items is not None:
            for index, item in enumerate(obj):
                removed.extend(self.items.prune(item, f"{path}[{index}]"))
        return removed

    def default(self, obj: Any) -> None:
        """Fill in defaults and drop nulls that a field may not hold, in place."""
        if isinstance(obj, dict):
            for name, child in self.properties.items():
                if name in obj and obj[name] is None and not child.nullable:
                    del obj[name]
                if name not in obj and child.has_default:
                    obj[name] = _copied(child.default_value)
                if name in obj and not (self.root and name in _META_FIELDS):
                    child.default(obj[name])
            if self.additional is not None:
                for name, value in obj.items():
                    if name not in self.properties:
                        self.additional.default(value)
        elif isinstance(obj, list) and self.items is not None:
            for item in obj:
                self.items.default(item)

    def validate(self, obj: dict[str, Any], old: dict[str, Any] | None) -> list[Cause]:
        """Every broken rule of the object, up to a limit; CEL rules run where the structure holds."""
        causes: list[Cause] = []
        before = ABSENT if old is None else old
        self.check_structure(obj, before, "", causes)
        if any(cause.reason in _BLOCKING for cause in causes):
            if self.has_rules():
                causes.append(Cause("FieldValueInvalid", _NOT_CHECKED, "<nil>"))
        else:
            self.check_rules(obj, before, "", causes)
        return causes[:CAUSES_MAX]

    def has_rules(self) -> bool:
        """Whether a rule stands at or below this node."""
        below = (*self.properties.values(), self.additional, self.items)
        return bool(self.rules) or any(child.has_rules() for child in below if child is not None)

    def check_structure(self, value: Any, old: Any, path: str, causes: list[Cause]) -> None:
        """Add what breaks types and value rules at and below a value.

        A value that is as it was before may go on breaking a value rule that came later.
        """
        if len(causes) >= CAUSES_MAX:
            return
        if value is None and self.nullable:
            return
        if problem := self._type_problem(value, path):
            causes.append(problem)
            return
        if old is ABSENT or value != old:
            causes.extend(c for check in self.checks if (c := check(value, path or "<nil>")))
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            missing = (name for name in self.required if name not in value)
            causes.extend(required(f"{path}.{name}" if path else name) for name in missing)
            for name, child_value in value.items():
                if (self.root or self.embedded) and name in _META_FIELDS:
                    continue
                child = self.properties.get(name, self.additional)
                if child is not None:
                    where = f"{path}.{name}" if path else name
                    child.check_structure(child_value, before.get(name, ABSENT), where, causes)
        elif isinstance(value, list):
            self._list(value, old, path, causes)

    def _list(self, value: list[Any], old: Any, path: str, causes: list[Cause]) -> None:
        seen: list[Any] = []
        correlated = self._correlated(old)
        for index, item in enumerate(value):
            where = f"{path}[{index}]"
            if self.items is not None:
                before = correlated.get(_map_key(item, self.list_keys), ABSENT)
                self.items.check_structure(item, before, where, causes)
            if self.list_type in ("map", "set"):
                identity = (
                    {k: item.get(k) for k in self.list_keys}
                    if self.list_keys and isinstance(item, dict)
                    else item
                )
                if identity in seen:
                    shown = _shown(identity)
                    causes.append(Cause("FieldValueDuplicate", f"Duplicate value: {shown}", where))
                seen.append(identity)

    def _type_problem(self, value: Any, path: str) -> Cause | None:
        if self.int_or_string:
            if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
                return None
            return _type_cause(path, value, "integer,string")
        if not self.type:
            return None
        fits = isinstance(value, _TYPES[self.type])
        if isinstance(value, bool) and self.type != "boolean":
            fits = False
        if self.type == "integer" and isinstance(value, float) and value.is_integer():
            fits = False
        if fits and self.type == "integer" and not -(2**63) <= value < 2**63:
            return _type_cause(path, float(value), self.type)
        return None if fits else _type_cause(path, value, self.type)

    def check_rules(self, value: Any, old: Any, path: str, causes: list[Cause]) -> None:
        """Add what breaks CEL rules at and below a value."""
        if len(causes) >= CAUSES_MAX:
            return
        updated = old is not ABSENT
        for rule in self.rules:
            if updated and not rule.transition and value == old:
                continue
            problem = rule.check(value, old, path, updated=updated)
            causes.extend([problem] if problem is not None else ())
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for name, child_value in value.items():
                child = self.properties.get(name, self.additional)
                if child is not None and not (self.root and name in _META_FIELDS):
                    where = f"{path}.{name}" if path else name
                    child.check_rules(child_value, before.get(name, ABSENT), where, causes)
        elif isinstance(value, list) and self.items is not None:
            correlated = self._correlated(old)
            for index, item in enumerate(value):
                key = _map_key(item, self.list_keys)
                self.items.check_rules(item, correlated.get(key, ABSENT), f"{path}[{index}]", causes)

    def _correlated(self, old: Any) -> dict[Any, Any]:
        """Items of the old list by key; only keyed lists tell which item an item was before."""
        if self.list_type != "map" or not isinstance(old, list):
            return {}
        return {_map_key(item, self.list_keys): item for item in old}


def _map_key(item: Any, keys: tuple[str, ...]) -> Any:
    return tuple(item.get(k) for k in keys) if keys and isinstance(item, dict) else None


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    return [_copied(v) for v in value] if isinstance(value, list) else value


def _shown(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _type_cause(path: str, value: Any, wanted: str) -> Cause:
    names = {
        dict: "object",
        list: "array",
        str: "string",
        bool: "boolean",
        int: "integer",
        float: "number",
        type(None): "null",
    }
    shown = f'"{names[type(value)]}"'
    message = f"Invalid value: {shown}: {path or '<nil>'} in body must be of type {wanted}: {shown}"
    return Cause("FieldValueTypeInvalid", message, path or "<nil>")


def _combination_checks(schema: Mapping[str, Any]) -> list[Callable[[Any, str], Cause | None]]:
    checks: list[Callable[[Any, str], Cause | None]] = []
    phrases = {
        "anyOf": ("at least one schema (anyOf)", lambda fits, _: fits >= 1),
        "oneOf": ("one and only one schema (oneOf)", lambda fits, _: fits == 1),
        "allOf": ("all the schemas (allOf)", lambda fits, total: fits == total),
    }
    for keyword, (phrase, accepts) in phrases.items():
        branches = tuple(compile_schema(b, root=False) for b in schema.get(keyword) or ())
        if branches:
            checks.append(_combined(branches, f"must validate {phrase}", accepts))
    if isinstance(schema.get("not"), dict):
        negated = (compile_schema(schema["not"], root=False),)
        checks.append(_combined(negated, "must not validate the schema (not)", lambda fits, _: fits == 0))
    return checks


def _combined(
    branches: tuple[Schema, ...], phrase: str, accepts: Callable[[int, int], bool]
) -> Callable[[Any, str], Cause | None]:
    def fits(branch: Schema, value: Any) -> bool:
        problems: list[Cause] = []
        branch.check_structure(value, ABSENT, "", problems)
        return not problems

    def check(value: Any, path: str) -> Cause | None:
        count = sum(fits(b, value) for b in branches)
        if accepts(count, len(branches)):
            return None
        return Cause("FieldValueInvalid", f'Invalid value: "": "{path}" {phrase}', "<nil>")

    return check


def compile_schema(raw: Mapping[str, Any], *, root: bool = True) -> Schema:
    """A schema tree. ValueError where a pattern or rule cannot be used."""
    for keyword in ("$ref", "uniqueItems"):
        if raw.get(keyword):
            raise ValueError(f"{keyword} is not allowed in a structural schema")
    try:
        checks = (*size_checks(raw), *value_checks(raw), *_combination_checks(raw))
    except re.error as error:
        raise ValueError(f"pattern {raw.get('pattern')!r}: {error}") from error
    additional, items = raw.get("additionalProperties"), raw.get("items")
    preserve = bool(raw.get("x-kubernetes-preserve-unknown-fields")) or additional is True
    return Schema(
        type=raw.get("type", ""),
        int_or_string=bool(raw.get("x-kubernetes-int-or-string")),
        nullable=bool(raw.get("nullable")),
        properties={k: compile_schema(v, root=False) for k, v in (raw.get("properties") or {}).items()},
        additional=compile_schema(additional, root=False) if isinstance(additional, dict) else None,
        items=compile_schema(items, root=False) if isinstance(items, dict) else None,
        required=tuple(raw.get("required") or ()),
        checks=checks,
        default_value=raw.get("default"),
        has_default="default" in raw,
        preserve_unknown=preserve,
        embedded=bool(raw.get("x-kubernetes-embedded-resource")),
        list_type=raw.get("x-kubernetes-list-type", ""),
        list_keys=tuple(raw.get("x-kubernetes-list-map-keys") or ()),
        rules=compile_rules(raw),
        root=root,
    )
