"""managedFields and server-side apply: who owns which field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.kubernetes.conftest import Server
from tests.controlplane.access import APPLY, MERGE, STRATEGIC


def owners(obj: dict[str, Any], *path: str) -> set[str]:
    """Managers of a field."""
    found = set()
    for entry in obj["metadata"]["managedFields"]:
        fields = entry["fieldsV1"]
        for step in path:
            fields = fields.get(step) if fields is not None else None
        if fields is not None:
            found.add(entry["manager"])
    return found


CORDON = ("f:spec", "f:unschedulable")


def cordon(server: Server, node: str, manager: str, value: bool | None = True) -> dict[str, Any]:
    """Write spec.unschedulable as a manager."""
    path = f"/api/v1/nodes/{node}?fieldManager={manager}"
    body: dict[str, Any] = server.ok("PATCH", path, {"spec": {"unschedulable": value}}, content_type=MERGE)
    return body


def test_a_writer_owns_what_it_sets(server: Server, node: str) -> None:
    """f:spec.f:unschedulable belongs to the manager of the write."""
    assert owners(cordon(server, node, "outlast-controller"), *CORDON) == {"outlast-controller"}


def test_writing_what_is_there_takes_nothing(server: Server, node: str) -> None:
    """A no-op write by another manager leaves the owner."""
    cordon(server, node, "outlast-controller")
    assert owners(cordon(server, node, "kubectl-cordon"), *CORDON) == {"outlast-controller"}


def test_a_change_by_another_takes_the_field(server: Server, node: str) -> None:
    """After uncordon and cordon by a human the field is theirs; our no-op does not take it back."""
    cordon(server, node, "outlast-controller")
    assert owners(cordon(server, node, "kubectl-uncordon", None), *CORDON) == set()
    assert owners(cordon(server, node, "kubectl-cordon"), *CORDON) == {"kubectl-cordon"}
    assert owners(cordon(server, node, "outlast-controller"), *CORDON) == {"kubectl-cordon"}


def test_what_nobody_owned_at_birth_is_not_tracked(server: Server, unique: str) -> None:
    """A node created with a name and a status only has no managedFields, whoever writes later."""
    server.ok("POST", "/api/v1/nodes", {"metadata": {"name": unique}})
    assert "managedFields" not in cordon(server, unique, "outlast-controller")["metadata"]
    server.ok("DELETE", f"/api/v1/nodes/{unique}")


def test_each_annotation_has_its_owner(server: Server, node: str) -> None:
    """Map entries are owned one by one."""
    path = f"/api/v1/nodes/{node}"
    for manager in ("one", "two"):
        body = {"metadata": {"annotations": {manager: "x"}}}
        after = server.ok("PATCH", f"{path}?fieldManager={manager}", body, content_type=MERGE)
    assert owners(after, "f:metadata", "f:annotations", "f:one") == {"one"}
    assert owners(after, "f:metadata", "f:annotations", "f:two") == {"two"}


def test_each_condition_has_its_owner(server: Server, node: str) -> None:
    """Items of keyed lists are owned one by one, and a status write is marked as one."""
    body = {"status": {"conditions": [{"type": "GPUReady", "status": "True"}]}}
    path = f"/api/v1/nodes/{node}/status?fieldManager=outlast-agent"
    after = server.ok("PATCH", path, body, content_type=STRATEGIC)
    key = 'k:{"type":"GPUReady"}'
    assert owners(after, "f:status", "f:conditions", key, "f:status") == {"outlast-agent"}
    (entry,) = [e for e in after["metadata"]["managedFields"] if e["manager"] == "outlast-agent"]
    assert (entry["operation"], entry["subresource"]) == ("Update", "status")


def test_the_user_agent_names_a_writer_without_a_name(server: Server, maps: str) -> None:
    """Without fieldManager and User-Agent the manager is `unknown`."""
    made = server.ok("POST", maps, {"metadata": {"name": "a"}, "data": {"k": "v"}})
    assert owners(made, "f:data", "f:k") == {"unknown"}


def apply(server: Server, path: str, data: dict[str, str], manager: str, *, force: bool = False) -> Any:
    """Apply a ConfigMap."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}
    query = f"?fieldManager={manager}" + ("&force=true" if force else "")
    return server.ask("PATCH", f"{path}/a{query}", body, content_type=APPLY)


def test_apply_creates(server: Server, maps: str) -> None:
    """201 for a new object, 200 afterwards; the manager owns by Apply."""
    first, second = (apply(server, maps, {"k": "v"}, "one") for _ in range(2))
    assert (first.status, second.status) == (201, 200)
    (entry,) = second.body["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("one", "Apply")
    assert second.body["metadata"]["resourceVersion"] == first.body["metadata"]["resourceVersion"]


def test_applying_another_value_to_a_field_of_another_is_a_conflict(server: Server, maps: str) -> None:
    """409 with one FieldManagerConflict per field; force takes it."""
    apply(server, maps, {"k": "v"}, "one")
    answer = apply(server, maps, {"k": "w"}, "two")
    assert (answer.status, answer.reason) == (409, "Conflict")
    (cause,) = answer.body["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldManagerConflict", ".data.k")
    assert 'conflict with "one"' in cause["message"]
    forced = apply(server, maps, {"k": "w"}, "two", force=True)
    assert owners(forced.body, "f:data", "f:k") == {"two"}


def test_applying_the_same_value_shares_the_field(server: Server, maps: str) -> None:
    """Two appliers of one value both own it."""
    apply(server, maps, {"k": "v"}, "one")
    assert owners(apply(server, maps, {"k": "v"}, "two").body, "f:data", "f:k") == {"one", "two"}


def test_what_is_no_longer_applied_is_removed(server: Server, maps: str) -> None:
    """A field that only this manager owned goes; one that others own stays."""
    apply(server, maps, {"mine": "1", "shared": "2"}, "one")
    apply(server, maps, {"shared": "2"}, "two")
    assert apply(server, maps, {}, "one").body["data"] == {"shared": "2"}


def test_apply_needs_a_manager(server: Server, maps: str) -> None:
    """422 about fieldManager."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    answer = server.ask("PATCH", f"{maps}/a", body, content_type=APPLY)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.body["details"]["causes"][0]["field"] == "fieldManager"


@pytest.mark.parametrize("write", ["update", "patch"])
def test_a_plain_write_takes_a_field_from_an_applier(server: Server, maps: str, write: str) -> None:
    """No conflict for plain writes: ownership moves."""
    applied = apply(server, maps, {"k": "v"}, "one").body
    if write == "update":
        after = server.ok("PUT", f"{maps}/a?fieldManager=two", {**applied, "data": {"k": "w"}})
    else:
        after = server.ok("PATCH", f"{maps}/a?fieldManager=two", {"data": {"k": "w"}}, content_type=MERGE)
    assert owners(after, "f:data", "f:k") == {"two"}
