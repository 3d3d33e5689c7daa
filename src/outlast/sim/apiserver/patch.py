"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7396) as a kube-apiserver applies them.

Both work on a copy that the caller owns. A failed `test`, or an operation on a path that is not
there, is answered 422 without a cause; `test` against null holds for an absent field.
"""

from __future__ import annotations

from typing import Any

from outlast.sim.apiserver.errors import ApiError, bad_request, unprocessable

OPERATIONS_MAX = 10_000
"""Operations in one JSON Patch, as a kube-apiserver limits them."""
_ABSENT = object()


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: objects merge, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merge_patch(target.get(key), value)
    return target


def json_patch(target: dict[str, Any], operations: Any) -> dict[str, Any]:
    """RFC 6902. Refused with 400 where the patch cannot be read, 422 where it cannot be applied."""
    if not isinstance(operations, list) or not all(isinstance(o, dict) for o in operations):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        )
    if len(operations) > OPERATIONS_MAX:
        raise ApiError(
            413, "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {len(operations)}",
        )  # fmt: skip
    document: Any = target
    for operation in operations:
        try:
            document = _apply(document, operation)
        except (LookupError, TypeError, ValueError) as error:
            raise unprocessable() from error
    if not isinstance(document, dict):
        raise unprocessable()
    return document


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    path = _pointer(operation.get("path"))
    match operation.get("op"):
        case "add":
            return _add(document, path, operation.get("value"))
        case "remove":
            return _remove(document, path)[0]
        case "replace":
            return _put(document, path, operation.get("value"))
        case "move":
            document, value = _remove(document, _pointer(operation.get("from")))
            return _add(document, path, value)
        case "copy":
            value = _read(document, _pointer(operation.get("from")))
            if value is _ABSENT:
                raise LookupError("copy of a path that is not there")
            return _add(document, path, _copied(value))
        case "test":
            found = _read(document, path)
            wanted = operation.get("value")
            if found is _ABSENT:
                found = None
            if not _same(found, wanted):
                raise ValueError("test failed")
            return document
    raise ValueError(f"unexpected kind of operation: {operation.get('op')}")


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_copied(v) for v in value]
    return value


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(v, right[k]) for k, v in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def _pointer(path: Any) -> list[str]:
    if path == "":
        return []
    if not isinstance(path, str) or not path.startswith("/"):
        raise ValueError("not a JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in path[1:].split("/")]


def _index(step: str, size: int, *, adding: bool = False) -> int:
    if adding and step == "-":
        return size
    index = int(step)
    if index < 0 or index > (size if adding else size - 1):
        raise LookupError("index out of bounds")
    return index


def _read(document: Any, path: list[str]) -> Any:
    for position, step in enumerate(path):
        if isinstance(document, dict):
            if step not in document and position == len(path) - 1:
                return _ABSENT
            document = document[step]
        elif isinstance(document, list):
            document = document[_index(step, len(document))]
        else:
            raise LookupError("the parent is neither an object nor a list")
    return document


def _parent(document: Any, path: list[str]) -> Any:
    parent = _read(document, path[:-1])
    if not isinstance(parent, dict | list):
        raise LookupError("parent is not there")
    return parent


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _parent(document, path)
    if isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        parent.insert(_index(path[-1], len(parent), adding=True), value)
    return document


def _put(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _parent(document, path)
    if isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        parent[_index(path[-1], len(parent))] = value
    return document


def _remove(document: Any, path: list[str]) -> tuple[Any, Any]:
    if not path:
        raise LookupError("the root cannot be removed")
    parent = _parent(document, path)
    if isinstance(parent, dict):
        return document, parent.pop(path[-1])
    return document, parent.pop(_index(path[-1], len(parent)))
