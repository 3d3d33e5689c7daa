"""Strategic merge patch: a merge patch that knows which lists are keyed.

Directives inside the patch (`$patch`, `$retainKeys`, `$setElementOrder/x`, `$deleteFromPrimitiveList/x`)
say what a plain merge cannot.
"""

from __future__ import annotations

from typing import Any

from outlast.sim.apiserver.errors import ApiError, bad_request
from outlast.sim.apiserver.shapes import PLAIN, Shape

_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"


def strategic_merge(target: dict[str, Any], patch: Any, shape: Shape) -> dict[str, Any]:
    """Merge `patch` into `target`, which the caller owns. Refused with 400 where it makes no sense."""
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: the patch is not an object")
    return _merge_map(target, patch, shape)


def _merge_map(target: dict[str, Any], patch: dict[str, Any], shape: Shape) -> dict[str, Any]:
    match patch.get("$patch"):
        case None | "merge":
            pass
        case "replace":
            return {k: v for k, v in patch.items() if k != "$patch"}
        case "delete":
            return {}
        case other:
            raise bad_request(f"Unknown patch type found: {other}")
    _retain(target, patch, shape)
    for name, value in patch.items():
        if name.startswith(_DELETE):
            field = name[len(_DELETE) :]
            if isinstance(target.get(field), list) and isinstance(value, list):
                target[field] = [v for v in target[field] if v not in value]
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            target.pop(name, None)
            continue
        child = shape.child(name)
        current = target.get(name)
        if isinstance(value, dict):
            target[name] = _merge_map(current if isinstance(current, dict) else {}, value, child)
        elif isinstance(value, list):
            known = current if isinstance(current, list) else []
            target[name] = _merge_list(known, value, child, patch.get(_ORDER + name))
        else:
            target[name] = value
    for name, order in patch.items():
        field = name[len(_ORDER) :]
        if name.startswith(_ORDER) and field not in patch and isinstance(target.get(field), list):
            target[field] = _ordered(target[field], order, shape.child(field))
    return target


def _retain(target: dict[str, Any], patch: dict[str, Any], shape: Shape) -> None:
    retained = patch.get("$retainKeys")
    if retained is None:
        return
    if not isinstance(retained, list):
        raise bad_request("$retainKeys is not a list")
    if any(k not in retained for k in patch if not k.startswith("$")):
        raise bad_request("$retainKeys list doesn't contain all the keys present in the patch")
    for name in [k for k in target if k not in retained]:
        del target[name]


def _merge_list(current: list[Any], patch: list[Any], shape: Shape, order: Any) -> list[Any]:
    if shape.merge_set:
        merged = [*current, *(v for v in patch if v not in current)]
    elif shape.merge_key:
        merged = _merge_keyed(current, patch, shape)
    else:
        return patch
    return _ordered(merged, order, shape) if isinstance(order, list) else merged


def _merge_keyed(current: list[Any], patch: list[Any], shape: Shape) -> list[Any]:
    key, item = shape.merge_key, shape.item or PLAIN
    if any(isinstance(p, dict) and p.get("$patch") == "replace" for p in patch):
        return [p for p in patch if not (isinstance(p, dict) and "$patch" in p)]
    merged = list(current)
    for part in patch:
        if not isinstance(part, dict):
            raise bad_request(f"list item of a keyed list is not an object: {part!r}")
        if key not in part:
            raise ApiError(500, "", f"map: {_shown(part)} does not contain declared merge key: {key}")
        matches = [i for i, m in enumerate(merged) if isinstance(m, dict) and m.get(key) == part[key]]
        if part.get("$patch") == "delete":
            merged = [m for i, m in enumerate(merged) if i not in matches]
        elif matches:
            merged[matches[0]] = _merge_map(merged[matches[0]], part, item)
        else:
            merged.append(_merge_map({}, part, item))
    return merged


def _shown(part: dict[str, Any]) -> str:
    return "map[" + " ".join(f"{k}:{v}" for k, v in sorted(part.items())) + "]"


def _ordered(items: list[Any], order: Any, shape: Shape) -> list[Any]:
    """Items named by `order` first to last; the others keep their place relative to what precedes them."""
    if not isinstance(order, list):
        raise bad_request("$setElementOrder is not a list")
    key = shape.merge_key

    def identity(item: Any) -> Any:
        return item.get(key) if isinstance(item, dict) else item

    rank = {identity(o): i for i, o in enumerate(order)}
    named = iter(sorted((i for i in items if identity(i) in rank), key=lambda i: rank[identity(i)]))
    return [next(named) if identity(item) in rank else item for item in items]
