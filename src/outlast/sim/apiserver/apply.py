"""Server-side apply: merge a configuration and take the fields it names.

A field that another manager owns with another value is a conflict unless forced; a field that this
manager applied before and no longer names is removed when nobody else owns it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from outlast.sim.apiserver.errors import ApiError, bad_request
from outlast.sim.apiserver.ownership import (
    Path,
    changed,
    item_segment,
    leaves,
    new_entry,
    top_level,
    trie_add,
    trie_paths,
    trie_remove,
)
from outlast.sim.apiserver.shapes import PLAIN, Shape

if TYPE_CHECKING:
    from outlast.sim.apiserver.resources import Resource
    from outlast.sim.apiserver.store import Writer

BEFORE_FIRST_APPLY = "before-first-apply"
"""Owner of what an untracked object held when it was first applied to."""


def apply_config(
    resource: Resource,
    old: dict[str, Any],
    config: dict[str, Any],
    *,
    writer: Writer,
    subresource: str,
    now: str,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The merged object and its managedFields. Refused with 409 on conflicts, 400 on malformed lists."""
    shape = resource.shape
    wanted = _in_scope(resource, config, subresource)
    merged = {**old, **{k: v for k, v in config.items() if k in ("apiVersion", "kind")}}
    merged = _merge(merged, wanted, shape)
    named = set(leaves(wanted, shape))
    managed: list[dict[str, Any]] = msgspec.json.decode(
        msgspec.json.encode((old.get("metadata") or {}).get("managedFields") or [])
    )
    if not managed and old.get("metadata", {}).get("uid"):
        before_apply = new_entry(BEFORE_FIRST_APPLY, "Update", resource.api_version, "", now)
        for path in leaves(top_level(old), shape):
            trie_add(before_apply["fieldsV1"], path)
        managed.append(before_apply)
    own = next((e for e in managed if _is(e, writer.manager, subresource)), None)
    others = [e for e in managed if e is not own]
    written, _ = changed(top_level(old), top_level(merged), shape)
    conflicts = [
        (e, p) for e in others for p in trie_paths(e["fieldsV1"]) if p in named and p in set(written)
    ]
    if conflicts and not writer.force:
        raise _conflict(conflicts)
    for entry, path in conflicts:
        trie_remove(entry["fieldsV1"], path)
    held = {p for e in others for p in trie_paths(e["fieldsV1"])}
    before = set(trie_paths(own["fieldsV1"])) if own is not None else set()
    for path in sorted(before - named, key=len, reverse=True):
        if path not in held and not any(h[: len(path)] == path for h in held):
            _remove(merged, path, shape)
    if own is None:
        own = new_entry(writer.manager, "Apply", resource.api_version, subresource, now)
    if before != named:
        own["fieldsV1"] = {}
        own["time"] = now
        for path in sorted(named):
            trie_add(own["fieldsV1"], path)
    elif written:
        own["time"] = now
    return merged, [e for e in (own, *others) if e["fieldsV1"]]


def _is(entry: dict[str, Any], manager: str, subresource: str) -> bool:
    return (
        entry.get("manager") == manager
        and entry.get("operation") == "Apply"
        and entry.get("subresource", "") == subresource
    )


def _in_scope(resource: Resource, config: dict[str, Any], subresource: str) -> dict[str, Any]:
    scope = top_level(config)
    if subresource == "status":
        return {k: v for k, v in scope.items() if k == "status"}
    if resource.status:
        scope.pop("status", None)
    if not scope.get("metadata", True):
        del scope["metadata"]
    return scope


def _merge(live: Any, config: Any, shape: Shape) -> Any:
    if isinstance(config, dict) and isinstance(live, dict) and not shape.atomic:
        merged = dict(live)
        for key, value in config.items():
            if value is not None:
                merged[key] = _merge(live[key], value, shape.child(key)) if key in live else value
        return merged
    if isinstance(config, list) and isinstance(live, list) and (shape.owned_by or shape.owned_set):
        names = [item_segment(shape, item) for item in config]
        if len(set(names)) != len(names):
            raise bad_request("failed to create typed patch object: duplicate entries for key")
        given = dict(zip(names, config, strict=True))
        merged_items = []
        for item in live:
            name = item_segment(shape, item)
            merged_items.append(_merge(item, given.pop(name), shape.item or PLAIN) if name in given else item)
        return [*merged_items, *given.values()]
    return config


def _remove(obj: Any, path: Path, shape: Shape) -> None:
    """Remove what a path names, and maps that become empty by it."""
    segment, rest = path[0], path[1:]
    if segment.startswith("f:"):
        name = segment[2:]
        if not isinstance(obj, dict) or name not in obj:
            return
        if rest:
            _remove(obj[name], rest, shape.child(name))
            if obj[name] in ({}, []):
                del obj[name]
        else:
            del obj[name]
        return
    if not isinstance(obj, list):
        return
    for item in obj:
        if item_segment(shape, item) == segment:
            if rest:
                _remove(item, rest, shape.item or PLAIN)
            else:
                obj.remove(item)
            return


def _conflict(conflicts: list[tuple[dict[str, Any], Path]]) -> ApiError:
    causes = []
    for entry, path in conflicts:
        sub = f' with subresource "{entry["subresource"]}"' if entry.get("subresource") else ""
        message = f'conflict with "{entry["manager"]}"{sub} using {entry["apiVersion"]}'
        causes.append({"reason": "FieldManagerConflict", "message": message, "field": _shown(path)})
    count = f"{len(causes)} conflict" + ("s" if len(causes) > 1 else "")
    text = "\n".join(f"- {c['field']}" for c in causes) if len(causes) > 1 else causes[0]["field"]
    separator = ":\n" if len(causes) > 1 else ": "
    message = f"Apply failed with {count}: {causes[0]['message']}{separator}{text}"
    return ApiError(409, "Conflict", message, details={"causes": causes})


def _shown(path: Path) -> str:
    text = ""
    for segment in path:
        if segment.startswith("f:"):
            text += "." + segment[2:]
        elif segment.startswith("k:"):
            keys = msgspec.json.decode(segment[2:])
            text += "[" + ",".join(f'{k}="{v}"' for k, v in keys.items()) + "]"
        else:
            text += f"[={segment[2:]}]"
    return text
