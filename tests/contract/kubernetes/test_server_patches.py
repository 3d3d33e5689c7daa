"""The patch types: JSON, merge, strategic merge."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.kubernetes.conftest import Server
from tests.controlplane.access import JSON_PATCH, MERGE, STRATEGIC


@pytest.fixture
def mapped(server: Server, maps: str) -> str:
    """The path of a ConfigMap with data and an annotation."""
    meta = {"name": "m", "annotations": {"a": "1"}}
    server.ok("POST", maps, {"metadata": meta, "data": {"x": "1", "y": "2"}})
    return f"{maps}/m"


APPLIES: list[tuple[list[dict[str, Any]], dict[str, str]]] = [
    ([{"op": "add", "path": "/data/z", "value": "3"}], {"x": "1", "y": "2", "z": "3"}),
    ([{"op": "remove", "path": "/data/x"}], {"y": "2"}),
    ([{"op": "replace", "path": "/data/x", "value": "9"}], {"x": "9", "y": "2"}),
    ([{"op": "replace", "path": "/data/new", "value": "9"}], {"new": "9", "x": "1", "y": "2"}),
    ([{"op": "move", "from": "/data/x", "path": "/data/z"}], {"y": "2", "z": "1"}),
    ([{"op": "copy", "from": "/data/x", "path": "/data/z"}], {"x": "1", "y": "2", "z": "1"}),
    ([{"op": "test", "path": "/data/x", "value": "1"}], {"x": "1", "y": "2"}),
    ([{"op": "test", "path": "/data/nope", "value": None}], {"x": "1", "y": "2"}),
]


@pytest.mark.parametrize(
    ("operations", "data"), APPLIES, ids=[str(o[0]["op"]) + str(i) for i, (o, _) in enumerate(APPLIES)]
)
def test_json_patch_operations(
    server: Server, mapped: str, operations: list[dict[str, Any]], data: dict[str, str]
) -> None:
    """Each operation of RFC 6902; `replace` also sets what is absent, `test` null holds for it."""
    assert server.ok("PATCH", mapped, operations, content_type=JSON_PATCH)["data"] == data


FAILS: list[dict[str, Any]] = [
    {"op": "test", "path": "/data/x", "value": "2"},
    {"op": "test", "path": "/nothing/here", "value": None},
    {"op": "remove", "path": "/data/nope"},
    {"op": "add", "path": "/metadata/labels/a", "value": "no map to add to"},
    {"op": "move", "from": "/data/nope", "path": "/data/z"},
    {"op": "zap", "path": "/data/x"},
]


@pytest.mark.parametrize("operation", FAILS, ids=[f"{o['op']} {o['path']}" for o in FAILS])
def test_a_json_patch_that_cannot_be_applied_changes_nothing(
    server: Server, mapped: str, operation: dict[str, Any]
) -> None:
    """422 Invalid without causes, and the operations before it are undone."""
    first = {"op": "add", "path": "/data/before", "value": "1"}
    answer = server.ask("PATCH", mapped, [first, operation], content_type=JSON_PATCH)
    assert (answer.status, answer.reason, answer.body["details"]) == (422, "Invalid", {})
    assert server.ok("GET", mapped)["data"] == {"x": "1", "y": "2"}


def test_a_merge_patch_merges_and_removes(server: Server, mapped: str) -> None:
    """null removes a field, objects merge."""
    after = server.ok("PATCH", mapped, {"data": {"x": None, "z": "3"}}, content_type=MERGE)
    assert after["data"] == {"y": "2", "z": "3"}


def test_a_patch_of_another_type_is_unsupported(server: Server, mapped: str) -> None:
    """415."""
    answer = server.ask("PATCH", mapped, {}, content_type="application/json")
    assert (answer.status, answer.reason) == (415, "UnsupportedMediaType")


def conditions(node: dict[str, Any]) -> dict[str, str]:
    """Status by type."""
    return {c["type"]: c["status"] for c in node["status"]["conditions"]}


def test_strategic_merge_updates_one_condition(server: Server, node: str) -> None:
    """Conditions merge by type; the others stay."""
    path = f"/api/v1/nodes/{node}/status"
    for status in ("True", "False"):
        body = {"status": {"conditions": [{"type": "GPUReady", "status": status}]}}
        after = server.ok("PATCH", path, body, content_type=STRATEGIC)
    assert conditions(after) == {"Ready": "True", "GPUReady": "False"}


def test_strategic_merge_deletes_one_condition(server: Server, node: str) -> None:
    """`$patch: delete` removes by key, and is fine where there is nothing."""
    path = f"/api/v1/nodes/{node}/status"
    server.ok(
        "PATCH", path, {"status": {"conditions": [{"type": "G", "status": "True"}]}}, content_type=STRATEGIC
    )
    gone = {"status": {"conditions": [{"$patch": "delete", "type": "G"}]}}
    for _ in range(2):
        assert conditions(server.ok("PATCH", path, gone, content_type=STRATEGIC)) == {"Ready": "True"}


def test_strategic_merge_replaces_a_list_on_demand(server: Server, node: str) -> None:
    """`$patch: replace` in a keyed list makes the patch the list."""
    body = {"status": {"conditions": [{"type": "Only", "status": "True"}, {"$patch": "replace"}]}}
    after = server.ok("PATCH", f"/api/v1/nodes/{node}/status", body, content_type=STRATEGIC)
    assert conditions(after) == {"Only": "True"}


def test_strategic_merge_orders_a_list(server: Server, node: str) -> None:
    """`$setElementOrder` sorts the merged list."""
    order = [{"type": "First"}, {"type": "Ready"}]
    body = {
        "status": {
            "$setElementOrder/conditions": order,
            "conditions": [{"type": "First", "status": "True"}],
        }
    }
    after = server.ok("PATCH", f"/api/v1/nodes/{node}/status", body, content_type=STRATEGIC)
    assert [c["type"] for c in after["status"]["conditions"]] == ["First", "Ready"]


def test_strategic_merge_replaces_taints_as_a_whole(server: Server, node: str) -> None:
    """Taints have no merge key: a patch with one taint leaves one."""
    path = f"/api/v1/nodes/{node}"
    for key in ("one", "two"):
        body = {"spec": {"taints": [{"key": key, "effect": "PreferNoSchedule"}]}}
        after = server.ok("PATCH", path, body, content_type=STRATEGIC)
    assert [t["key"] for t in after["spec"]["taints"]] == ["two"]


def test_strategic_merge_unites_finalizers(server: Server, mapped: str) -> None:
    """A list of plain values with a merge strategy is a union; it can be subtracted from."""
    for name in ("a.dev/1", "a.dev/2"):
        after = server.ok("PATCH", mapped, {"metadata": {"finalizers": [name]}}, content_type=STRATEGIC)
    assert sorted(after["metadata"]["finalizers"]) == ["a.dev/1", "a.dev/2"]
    less = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.dev/1"]}}
    after = server.ok("PATCH", mapped, less, content_type=STRATEGIC)
    assert after["metadata"]["finalizers"] == ["a.dev/2"]
    server.ok("PATCH", mapped, {"metadata": {"finalizers": None}}, content_type=MERGE)


def test_strategic_merge_needs_the_key(server: Server, node: str) -> None:
    """An item without its merge key is an error, and nothing is written."""
    body = {"status": {"conditions": [{"status": "True"}]}}
    answer = server.ask("PATCH", f"/api/v1/nodes/{node}/status", body, content_type=STRATEGIC)
    assert answer.status == 500
    assert "does not contain declared merge key: type" in answer.message
    assert conditions(server.ok("GET", f"/api/v1/nodes/{node}")) == {"Ready": "True"}
