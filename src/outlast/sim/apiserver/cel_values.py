"""Values and operations of CEL: equality, fields, optionals, arithmetic, functions and list macros.

A wrong type or a missing key is a `CelError`, never a Python error; `cel` turns text into these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


class CelError(Exception):
    """A rule that cannot be evaluated on a value."""


class Optional:
    """A CEL optional: a value, or none."""

    __slots__ = ("present", "value")

    def __init__(self, value: Any = None, *, present: bool = True) -> None:
        self.value = value
        self.present = present

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Optional) and self.present == other.present and same(self.value, other.value)

    __hash__ = None  # type: ignore[assignment]


NONE = Optional(present=False)
Scope = dict[str, Any]
Node = Callable[[Scope], Any]


def same(left: Any, right: Any) -> bool:
    """CEL equality: numbers by value, everything else by type and content."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(v, right[k]) for k, v in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def boolean(value: Any) -> bool:
    """The value, which must be a boolean."""
    if not isinstance(value, bool):
        raise CelError("no such overload")
    return value


def either(left: Node, right: Node, stop: bool) -> Node:
    """`||` and `&&`: either side may decide, and an error only counts when it does not."""

    def run(scope: Scope) -> bool:
        try:
            if boolean(left(scope)) is stop:
                return stop
        except CelError:
            if boolean(right(scope)) is stop:
                return stop
            raise
        return boolean(right(scope))

    return run


def field(value: Any, name: str) -> Any:
    """A field of a map."""
    if isinstance(value, dict):
        if name in value:
            return value[name]
        raise CelError(f"no such key: {name}")
    raise CelError(f"no such overload: field {name}")


def element(value: Any, index: Any) -> Any:
    """An item of a list, or the value of a key."""
    if isinstance(value, dict):
        if isinstance(index, str) and index in value:
            return value[index]
        raise CelError(f"no such key: {index}")
    if isinstance(value, list) and isinstance(index, int) and not isinstance(index, bool):
        if 0 <= index < len(value):
            return value[index]
        raise CelError(f"index out of bounds: {index}")
    raise CelError("no such overload")


def maybe(value: Any, get: Callable[[Any], Any]) -> Optional:
    """What `get` finds, or none where it finds nothing."""
    if isinstance(value, Optional):
        if not value.present:
            return NONE
        value = value.value
    try:
        return Optional(get(value))
    except CelError:
        return NONE


def compare(operator: str, left: Any, right: Any) -> bool:
    """Order of numbers or of strings."""
    numbers = _is_number(left) and _is_number(right)
    if not numbers and not (isinstance(left, str) and isinstance(right, str)):
        raise CelError("no such overload")
    match operator:
        case "<":
            return bool(left < right)
        case "<=":
            return bool(left <= right)
        case ">":
            return bool(left > right)
    return bool(left >= right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def arithmetic(operator: str, left: Any, right: Any) -> Any:
    """`+ - * / %`; `+` also joins strings and lists."""
    if operator == "+" and type(left) is type(right) and isinstance(left, str | list):
        return left + right
    if not (_is_number(left) and _is_number(right)):
        raise CelError("no such overload")
    try:
        match operator:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "/":
                whole = isinstance(left, int) and isinstance(right, int)
                return int(left / right) if whole else left / right
        return left - right * int(left / right)
    except ZeroDivisionError as error:
        raise CelError("division by zero") from error


def contained(item: Any, container: Any) -> bool:
    """`in`: a member of a list, a key of a map."""
    if isinstance(container, dict):
        return isinstance(item, str) and item in container
    if isinstance(container, list):
        return any(same(item, member) for member in container)
    raise CelError("no such overload")


def _size(value: Any) -> int:
    if isinstance(value, str | list | dict):
        return len(value)
    raise CelError("no such overload: size")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise CelError("no such overload: string")


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise CelError(f"cannot convert to int: {value!r}") from error


FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "size": _size,
    "string": _text,
    "int": _whole,
    "double": lambda v: float(_whole(v)) if isinstance(v, int) else float(v),
    "dyn": lambda v: v,
}


def method(name: str, target: Any, arguments: Sequence[Any]) -> Any:
    """A function called on a value."""
    if name == "orValue" and isinstance(target, Optional):
        return target.value if target.present else arguments[0]
    if name == "hasValue" and isinstance(target, Optional):
        return target.present
    if name == "value" and isinstance(target, Optional):
        if not target.present:
            raise CelError("optional.none() dereference")
        return target.value
    if name == "size":
        return _size(target)
    if isinstance(target, str) and all(isinstance(a, str) for a in arguments):
        match name, arguments:
            case "startsWith", [prefix]:
                return target.startswith(prefix)
            case "endsWith", [suffix]:
                return target.endswith(suffix)
            case "contains", [part]:
                return part in target
            case "matches", [pattern]:
                return re.search(pattern, target) is not None
            case "lowerAscii", []:
                return target.lower()
            case "split", [separator]:
                return target.split(separator)
    raise CelError(f"no such overload: {name}")


METHODS = frozenset(
    {"orValue", "hasValue", "value", "size", "startsWith", "endsWith", "contains", "matches", "lowerAscii",
     "split"}
)  # fmt: skip
MACROS = frozenset({"all", "exists", "exists_one", "filter", "map"})


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, list | dict):
        return list(value)
    raise CelError("no such overload: not a list or map")


def _quantified(members: Iterable[Any], holds: Callable[[Any], bool], stop: bool) -> bool:
    """`all` and `exists`: an error counts only when no member decides."""
    failed: CelError | None = None
    for member in members:
        try:
            if holds(member) is stop:
                return stop
        except CelError as error:
            failed = error
    if failed is not None:
        raise failed
    return not stop


def macro(name: str, target: Node, variable: str, body: Node, transform: Node | None) -> Node:
    """`all`, `exists`, `exists_one`, `filter` or `map` over a list, or over the keys of a map."""

    def run(scope: Scope) -> Any:
        members = _members(target(scope))

        def at(member: Any, node: Node = body) -> Any:
            return node({**scope, variable: member})

        match name:
            case "all":
                return _quantified(members, lambda m: boolean(at(m)), stop=False)
            case "exists":
                return _quantified(members, lambda m: boolean(at(m)), stop=True)
            case "exists_one":
                return sum(boolean(at(m)) for m in members) == 1
            case "filter":
                return [m for m in members if boolean(at(m))]
        if transform is None:
            return [at(m) for m in members]
        return [at(m, transform) for m in members if boolean(at(m))]

    return run
