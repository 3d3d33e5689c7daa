"""managedFields: who last wrote which field.

A plain write takes the fields that it changes and leaves the others alone, so writing what is
already there takes nothing. Paths are the segments of `fieldsV1`: `f:name`, `k:{...}`, `v:...`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from outlast.sim.apiserver.shapes import PLAIN, Shape

UPDATE_MANAGERS_MAX = 10
"""Managers of plain writes kept apart; the oldest beyond it are folded into one, as Kubernetes does."""
ANCIENT = "ancient-changes"

Path = tuple[str, ...]
Trie = dict[str, Any]
_IGNORED_META = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "selfLink",
     "managedFields", "deletionTimestamp", "deletionGracePeriodSeconds"}
)  # fmt: skip
_DOTTED = frozenset(
    {"labels", "annotations", "matchLabels", "nodeSelector", "capacity", "allocatable", "data"}
)
_encode = msgspec.json.Encoder(order="sorted").encode


def top_level(obj: dict[str, Any]) -> dict[str, Any]:
    """The object without the fields that nobody owns."""
    owned = {k: v for k, v in obj.items() if k not in ("apiVersion", "kind")}
    meta = owned.get("metadata")
    if isinstance(meta, dict):
        owned["metadata"] = {k: v for k, v in meta.items() if k not in _IGNORED_META}
    return owned


def item_segment(shape: Shape, item: Any) -> str:
    """How a list item with owners of its own is named."""
    if shape.owned_by and isinstance(item, dict):
        keys = {k: item[k] for k in shape.owned_by if k in item}
        return "k:" + _encode(keys).decode()
    return "v:" + _encode(item).decode()


def leaves(value: Any, shape: Shape, path: Path = (), name: str = "") -> Iterator[Path]:
    """All owned paths of a value."""
    if isinstance(value, dict) and value and not shape.atomic:
        if path and (shape.member or name in _DOTTED):
            yield path
        for key, child in value.items():
            yield from leaves(child, shape.child(key), (*path, "f:" + key), key)
    elif isinstance(value, list) and value and (shape.owned_by or shape.owned_set):
        if name != "containers":
            # Present in every pod, even an empty one, so nobody owns the list itself.
            yield path
        for item in value:
            segment = (*path, item_segment(shape, item))
            yield segment
            if isinstance(item, dict):
                yield from leaves(item, shape.item or PLAIN, segment)
    elif len(path) > 1 or (path and value != {}):
        yield path


def changed(
    old: Any, new: Any, shape: Shape, path: Path = (), name: str = ""
) -> tuple[list[Path], list[Path]]:
    """Paths that a write set (added or changed), and paths that it removed."""
    written: list[Path] = []
    removed: list[Path] = []
    _compare(old, new, shape, path, name, written, removed)
    return written, removed


def _compare(
    old: Any, new: Any, shape: Shape, path: Path, name: str, written: list[Path], removed: list[Path]
) -> None:
    if old == new and type(old) is type(new):
        return
    if isinstance(old, dict) and isinstance(new, dict) and not shape.atomic:
        for key in old.keys() | new.keys():
            segment = (*path, "f:" + key)
            if key not in new:
                removed.extend(leaves(old[key], shape.child(key), segment, key))
            elif key not in old:
                written.extend(leaves(new[key], shape.child(key), segment, key))
            else:
                _compare(old[key], new[key], shape.child(key), segment, key, written, removed)
    elif isinstance(old, list) and isinstance(new, list) and (shape.owned_by or shape.owned_set):
        before = {item_segment(shape, i): i for i in old}
        after = {item_segment(shape, i): i for i in new}
        for segment_name, item in before.items():
            segment = (*path, segment_name)
            if segment_name not in after:
                removed.append(segment)
                if isinstance(item, dict):
                    removed.extend(leaves(item, shape.item or PLAIN, segment))
            else:
                _compare(item, after[segment_name], shape.item or PLAIN, segment, "", written, removed)
        for segment_name, item in after.items():
            if segment_name not in before:
                segment = (*path, segment_name)
                written.append(segment)
                if isinstance(item, dict):
                    written.extend(leaves(item, shape.item or PLAIN, segment))
    else:
        removed.extend(set(leaves(old, shape, path, name)) - set(leaves(new, shape, path, name)))
        written.extend(leaves(new, shape, path, name))


def trie_add(trie: Trie, path: Path) -> None:
    """Own a path."""
    for position, segment in enumerate(path):
        nested = trie.get(segment)
        if nested is None:
            nested = trie[segment] = {}
        elif position == len(path) - 1:
            if nested:
                nested["."] = {}
            return
        elif not nested:
            # An item or map that is owned itself keeps its own mark beside those of its members.
            nested["."] = {}
        trie = nested


def trie_remove(trie: Trie, path: Path) -> bool:
    """Give a path up; True where it was owned."""
    nested = trie.get(path[0])
    if nested is None:
        return False
    if len(path) > 1:
        found = trie_remove(nested, path[1:])
    elif "." in nested:
        del nested["."]
        found = True
    else:
        found = not nested
    if found and not nested:
        del trie[path[0]]
    elif found and nested.keys() == {"."}:
        trie[path[0]] = {}
    return found


def trie_paths(trie: Trie, prefix: Path = ()) -> Iterator[Path]:
    """All owned paths."""
    for segment, nested in trie.items():
        if segment == ".":
            yield prefix
        elif nested:
            yield from trie_paths(nested, (*prefix, segment))
        else:
            yield (*prefix, segment)


def _find(
    entries: list[dict[str, Any]], manager: str, operation: str, api_version: str, sub: str
) -> dict[str, Any] | None:
    for entry in entries:
        if (
            entry.get("manager") == manager
            and entry.get("operation") == operation
            and entry.get("apiVersion") == api_version
            and entry.get("subresource", "") == sub
        ):
            return entry
    return None


def new_entry(manager: str, operation: str, api_version: str, sub: str, now: str) -> dict[str, Any]:
    """An empty entry of managedFields."""
    entry: dict[str, Any] = {
        "manager": manager, "operation": operation, "apiVersion": api_version, "time": now,
        "fieldsType": "FieldsV1", "fieldsV1": {},
    }  # fmt: skip
    if sub:
        entry["subresource"] = sub
    return entry


def track_update(
    old: dict[str, Any],
    new: dict[str, Any],
    shape: Shape,
    *,
    manager: str,
    api_version: str,
    subresource: str,
    now: str,
) -> list[dict[str, Any]]:
    """managedFields after a plain write from `old` to `new`; those of `old` where nothing changed."""
    entries: list[dict[str, Any]] = list((old.get("metadata") or {}).get("managedFields") or ())
    if not entries and old.get("metadata", {}).get("uid"):
        # As in the reference: what nobody owned at birth is not tracked before the first apply.
        return entries
    written, removed = changed(top_level(old), top_level(new), shape)
    if not written and not removed:
        return entries
    own = _find(entries, manager, "Update", api_version, subresource)
    for entry in entries:
        if entry is not own:
            lost = [trie_remove(entry["fieldsV1"], p) for p in (*written, *removed)]
            del lost
    for path in removed:
        if own is not None:
            trie_remove(own["fieldsV1"], path)
    if written:
        if own is None:
            own = new_entry(manager, "Update", api_version, subresource, now)
            entries.append(own)
        for path in written:
            trie_add(own["fieldsV1"], path)
        own["time"] = now
    return fold_ancient([e for e in entries if e["fieldsV1"]])


def fold_ancient(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fold the oldest plain-write entries into one when there are too many."""
    updates = sorted((e for e in entries if e["operation"] == "Update"), key=lambda e: str(e.get("time", "")))
    surplus = len(updates) - UPDATE_MANAGERS_MAX
    if surplus <= 0:
        return entries
    oldest = updates[: surplus + 1]
    folded = new_entry(ANCIENT, "Update", oldest[-1]["apiVersion"], "", oldest[-1]["time"])
    for entry in oldest:
        for path in trie_paths(entry["fieldsV1"]):
            trie_add(folded["fieldsV1"], path)
    return [folded, *(e for e in entries if not any(e is o for o in oldest))]
