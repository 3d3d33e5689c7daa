"""Value rules of a schema node as functions: sizes, bounds, enums, patterns, formats."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sized
from datetime import datetime
from typing import Any

import msgspec

from outlast.sim.apiserver.errors import Cause, invalid_value, unsupported_value

_DURATION = re.compile(
    r"^([+-]?(\d+(\.\d*)?(ns|us|µs|ms|s|m|h|d|w))+|0|P(\d+D)?(T(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?)$"
)
_UUID = re.compile(r"^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$")


def _is_date_time(text: str) -> bool:
    if not re.match(r"^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$", text):
        return False
    try:
        datetime.fromisoformat(text.upper())
    except ValueError:
        return False
    return True


_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": _is_date_time,
    "duration": lambda t: bool(_DURATION.match(t)),
    "uuid": lambda t: bool(_UUID.match(t)),
}
_INTEGER_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def size_checks(schema: Mapping[str, Any]) -> list[Callable[[Any, str], Cause | None]]:
    """Checks of lengths and counts."""
    checks: list[Callable[[Any, str], Cause | None]] = []

    def bound(keyword: str, kind: type[Sized], over: bool, phrase: str, reason: str) -> None:
        limit = schema.get(keyword)
        if limit is None:
            return

        def check(value: Any, path: str) -> Cause | None:
            if not isinstance(value, kind) or (len(value) <= limit if over else len(value) >= limit):
                return None
            if reason == "FieldValueTooLong":
                return Cause(reason, f"Too long: may not be more than {limit} bytes", path)
            if reason == "FieldValueTooMany":
                return Cause(reason, f"Too many: {len(value)}: must have at most {limit} items", path)
            return invalid_value(path, value, f"{path} in body should {phrase.format(limit)}")

        checks.append(check)

    bound("maxLength", str, True, "", "FieldValueTooLong")
    bound("minLength", str, False, "be at least {} chars long", "")
    bound("maxItems", list, True, "", "FieldValueTooMany")
    bound("minItems", list, False, "have at least {} items", "")
    bound("maxProperties", dict, True, "", "FieldValueTooMany")
    bound("minProperties", dict, False, "have at least {} properties", "")
    return checks


def value_checks(schema: Mapping[str, Any]) -> list[Callable[[Any, str], Cause | None]]:
    """Checks of enums, patterns, bounds and formats."""
    checks: list[Callable[[Any, str], Cause | None]] = []
    if (choices := schema.get("enum")) is not None:
        checks.append(lambda v, p: None if v in choices else unsupported_value(p, v, choices))
    if (pattern := schema.get("pattern")) is not None:
        compiled = re.compile(pattern)

        def matches(value: Any, path: str) -> Cause | None:
            if not isinstance(value, str) or compiled.search(value):
                return None
            return invalid_value(path, value, f"{path} in body should match '{pattern}'")

        checks.append(matches)
    minimum, maximum = schema.get("minimum"), schema.get("maximum")
    if minimum is not None:
        strict = bool(schema.get("exclusiveMinimum"))
        word = "greater than" if strict else "greater than or equal to"
        checks.append(
            lambda v, p: invalid_value(p, v, f"{p} in body should be {word} {minimum}")
            if _is_number(v) and (v <= minimum if strict else v < minimum) else None
        )  # fmt: skip
    if maximum is not None:
        strict_max = bool(schema.get("exclusiveMaximum"))
        word_max = "less than" if strict_max else "less than or equal to"
        checks.append(
            lambda v, p: invalid_value(p, v, f"{p} in body should be {word_max} {maximum}")
            if _is_number(v) and (v >= maximum if strict_max else v > maximum) else None
        )  # fmt: skip
    checks.extend(_format_checks(schema))
    return checks


def _format_checks(schema: Mapping[str, Any]) -> list[Callable[[Any, str], Cause | None]]:
    name = schema.get("format", "")
    if name in _FORMATS:
        accepts = _FORMATS[name]

        def well_formed(value: Any, path: str) -> Cause | None:
            if not isinstance(value, str) or accepts(value):
                return None
            shown = _shown(value)
            message = f"Invalid value: {shown}: {path} in body must be of type {name}: {shown}"
            return Cause("FieldValueTypeInvalid", message, path)

        return [well_formed]
    if name in _INTEGER_RANGES:
        low, high = _INTEGER_RANGES[name]

        def in_range(value: Any, path: str) -> Cause | None:
            if not isinstance(value, int) or low <= value <= high:
                return None
            message = f'Invalid value: "": Checked value must be of type integer with format {name} in {path}'
            return Cause("FieldValueInvalid", message, "<nil>")

        return [in_range]
    return []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()
