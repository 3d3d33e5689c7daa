"""The part of JSONPath that printer columns use: fields, indexes, slices and equality filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

_STEP = re.compile(
    r"""\.(?P<field>[A-Za-z_$][\w$-]*(?:\\\.[\w$-]+)*) | \[['"](?P<quoted>[^'"]+)['"]\]
      | \[(?P<index>-?\d+|\*)\] | \[(?P<start>-?\d*):(?P<stop>-?\d*)\]
      | \[\?\(\s*@\.(?P<key>[\w.$-]+)\s*(?P<op>==|!=)\s*(?P<value>"[^"]*"|'[^']*'|[\w.-]+)\s*\)\]""",
    re.VERBOSE,
)
Step = Callable[[Any], Iterable[Any]]


def compile_path(path: str) -> Callable[[Any], list[Any]]:
    """A function from an object to what the path finds. ValueError where the path is not understood."""
    steps: list[Step] = []
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise ValueError(f"JSONPath {path!r} is not understood at {path[at:]!r}")
        steps.append(_step(match))
        at = match.end()

    def find(obj: Any) -> list[Any]:
        found = [obj]
        for step in steps:
            found = [result for value in found for result in step(value)]
        return found

    return find


def _step(match: re.Match[str]) -> Step:
    name = match["field"] or match["quoted"]
    if name is not None:
        name = name.replace("\\.", ".")
        return lambda v: (v[name],) if isinstance(v, dict) and v.get(name) is not None else ()
    if match["index"] == "*":
        return lambda v: v if isinstance(v, list) else tuple(v.values()) if isinstance(v, dict) else ()
    if match["index"] is not None:
        index = int(match["index"])
        return lambda v: (v[index],) if isinstance(v, list) and -len(v) <= index < len(v) else ()
    if match["key"] is not None:
        return _filter(match)
    bounds = slice(*(int(b) if b else None for b in (match["start"], match["stop"])))
    return lambda v: v[bounds] if isinstance(v, list) else ()


def _filter(match: re.Match[str]) -> Step:
    keys, wanted, equal = match["key"].split("."), match["value"].strip("\"'"), match["op"] == "=="

    def step(value: Any) -> Iterable[Any]:
        if not isinstance(value, list):
            return ()
        return [item for item in value if (_text(item, keys) == wanted) is equal]

    return step


def _text(item: Any, keys: list[str]) -> str | None:
    for key in keys:
        item = item.get(key) if isinstance(item, dict) else None
    if isinstance(item, bool):
        return "true" if item else "false"
    return None if item is None else str(item)
