"""Writing: create, replace, preconditions, generations, status, dry runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.kubernetes.conftest import Server
from tests.controlplane.access import JSON_PATCH, MERGE, STRATEGIC


def version(obj: dict[str, Any]) -> int:
    """The resourceVersion."""
    return int(obj["metadata"]["resourceVersion"])


def test_the_server_gives_identity(server: Server, maps: str) -> None:
    """uid, creationTimestamp and resourceVersion come from the server, whatever the client says."""
    lies = {"name": "a", "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7}
    meta = server.ok("POST", maps, {"metadata": lies})["metadata"]
    assert meta["uid"] != "mine"
    assert meta["creationTimestamp"] > "2020"
    assert "deletionTimestamp" not in meta


def test_a_name_is_made_from_a_prefix(server: Server, maps: str) -> None:
    """generateName appends five characters."""
    meta = server.ok("POST", maps, {"metadata": {"generateName": "run-"}})["metadata"]
    assert meta["name"].startswith("run-")
    assert len(meta["name"]) == len("run-") + 5


def test_a_name_is_taken_once(server: Server, maps: str) -> None:
    """The second create is 409 AlreadyExists."""
    server.ok("POST", maps, {"metadata": {"name": "a"}})
    answer = server.ask("POST", maps, {"metadata": {"name": "a"}})
    assert (answer.status, answer.reason) == (409, "AlreadyExists")
    assert answer.message == 'configmaps "a" already exists'


BAD = [
    ({}, "metadata.name", "FieldValueRequired"),
    ({"name": "Bad_Name"}, "metadata.name", "FieldValueInvalid"),
    ({"name": "a", "labels": {"a/b/c": "x"}}, "metadata.labels", "FieldValueInvalid"),
    ({"name": "a", "labels": {"a": "not a value"}}, "metadata.labels", "FieldValueInvalid"),
    ({"name": "a", "annotations": {"a b": "x"}}, "metadata.annotations", "FieldValueInvalid"),
]


@pytest.mark.parametrize(("meta", "where", "reason"), BAD)
def test_bad_metadata_is_refused_by_field(
    server: Server, maps: str, meta: dict[str, Any], where: str, reason: str
) -> None:
    """422 Invalid; the cause names the field."""
    answer = server.ask("POST", maps, {"metadata": meta})
    assert (answer.status, answer.reason) == (422, "Invalid")
    (cause,) = answer.body["details"]["causes"]
    assert (cause["field"], cause["reason"]) == (where, reason)


@pytest.mark.parametrize(
    "body",
    [
        "not an object",
        {"metadata": {"name": "a", "labels": {"a": 1}}},
        {"kind": "Pod", "metadata": {"name": "a"}},
    ],
    ids=["string", "number as label", "other kind"],
)
def test_what_is_not_such_an_object_is_a_bad_request(server: Server, maps: str, body: Any) -> None:
    """400, and nothing is stored."""
    answer = server.ask("POST", maps, body)
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert server.ask("GET", f"{maps}/a").status == 404


def test_a_namespace_in_the_body_must_be_that_of_the_path(server: Server, maps: str) -> None:
    """400."""
    answer = server.ask("POST", maps, {"metadata": {"name": "a", "namespace": "elsewhere"}})
    assert (answer.status, answer.reason) == (400, "BadRequest")


def test_a_replace_with_an_old_version_is_a_conflict(server: Server, maps: str) -> None:
    """409 Conflict: the object has been modified."""
    old = server.ok("POST", maps, {"metadata": {"name": "a"}})
    server.ok("PUT", f"{maps}/a", {**old, "data": {"k": "1"}})
    answer = server.ask("PUT", f"{maps}/a", {**old, "data": {"k": "2"}})
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert "the object has been modified" in answer.message


def test_a_replace_of_another_uid_is_a_conflict(server: Server, maps: str) -> None:
    """409, so a recreated object is never overwritten."""
    server.ok("POST", maps, {"metadata": {"name": "a"}})
    answer = server.ask("PUT", f"{maps}/a", {"metadata": {"name": "a", "uid": "other"}})
    assert (answer.status, answer.reason) == (409, "Conflict")


@pytest.mark.parametrize("name", ["", "b"])
def test_a_replace_must_name_the_object(server: Server, maps: str, name: str) -> None:
    """400 where the body has no name or another one."""
    server.ok("POST", maps, {"metadata": {"name": "a"}})
    answer = server.ask("PUT", f"{maps}/a", {"metadata": {"name": name} if name else {}})
    assert (answer.status, answer.reason) == (400, "BadRequest")


def test_a_lease_is_replaced_only_with_its_version(server: Server, space: str) -> None:
    """422 on metadata.resourceVersion: leader election cannot overwrite blindly."""
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases"
    server.ok("POST", leases, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
    answer = server.ask("PUT", f"{leases}/l", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "b"}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.body["details"]["causes"][0]["field"] == "metadata.resourceVersion"


def test_a_patch_with_an_old_version_is_a_conflict(server: Server, node: str) -> None:
    """resourceVersion in a patch is a precondition."""
    answer = server.ask(
        "PATCH", f"/api/v1/nodes/{node}", {"metadata": {"resourceVersion": "1"}}, content_type=MERGE
    )
    assert (answer.status, answer.reason) == (409, "Conflict")


@pytest.mark.parametrize("path", ["", "/status"])
def test_a_node_patch_with_another_uid_is_invalid(server: Server, node: str, path: str) -> None:
    """422 "field is immutable": the node was replaced."""
    answer = server.ask(
        "PATCH", f"/api/v1/nodes/{node}{path}", {"metadata": {"uid": "other"}}, content_type=STRATEGIC
    )
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.body["details"]["causes"][0]["field"] == "metadata.uid"


def test_a_patch_cannot_rename(server: Server, maps: str) -> None:
    """400."""
    server.ok("POST", maps, {"metadata": {"name": "a"}})
    answer = server.ask("PATCH", f"{maps}/a", {"metadata": {"name": "b"}}, content_type=MERGE)
    assert answer.status == 400


def test_a_node_status_write_reaches_metadata_but_not_spec(server: Server, node: str) -> None:
    """Labels through nodes/status are taken; a change of spec is dropped without a word."""
    body = {"metadata": {"labels": {"via": "status"}}, "spec": {"unschedulable": True}}
    after = server.ok("PATCH", f"/api/v1/nodes/{node}/status", body, content_type=MERGE)
    assert after["metadata"]["labels"]["via"] == "status"
    assert "unschedulable" not in after["spec"]


def test_a_main_write_does_not_reach_status(server: Server, node: str) -> None:
    """Conditions in a write to the node itself are dropped."""
    before = server.ok("GET", f"/api/v1/nodes/{node}")["status"]["conditions"]
    body = {"status": {"conditions": []}, "metadata": {"labels": {"l": "1"}}}
    after = server.ok("PATCH", f"/api/v1/nodes/{node}", body, content_type=MERGE)
    assert after["status"]["conditions"] == before


def test_unschedulable_false_is_absent(server: Server, node: str) -> None:
    """An uncordon leaves nothing behind."""
    for value in (True, False):
        body = {"spec": {"unschedulable": value}}
        after = server.ok("PATCH", f"/api/v1/nodes/{node}", body, content_type=MERGE)
    assert "unschedulable" not in after["spec"]


def test_a_taint_twice_is_invalid(server: Server, node: str) -> None:
    """(key, effect) is unique: 422, so appending is idempotent."""
    taint = {"key": "t", "effect": "NoSchedule"}
    answer = server.ask(
        "PATCH",
        f"/api/v1/nodes/{node}",
        {"spec": {"taints": [taint, {**taint, "value": "x"}]}},
        content_type=MERGE,
    )
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.body["details"]["causes"][0]["reason"] == "FieldValueDuplicate"


def test_a_taint_of_an_unknown_effect_is_invalid(server: Server, node: str) -> None:
    """422 naming the supported values."""
    body = {"spec": {"taints": [{"key": "t", "effect": "Maybe"}]}}
    answer = server.ask("PATCH", f"/api/v1/nodes/{node}", body, content_type=MERGE)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.body["details"]["causes"][0]["field"] == "metadata.taints[0].effect"


def test_a_field_of_the_wrong_type_is_a_bad_request(server: Server, node: str) -> None:
    """400 naming the field; the node stays as it was."""
    answer = server.ask(
        "PUT", f"/api/v1/nodes/{node}", {"metadata": {"name": node}, "spec": {"unschedulable": "yes"}}
    )
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert "unschedulable" in answer.message


def test_an_unknown_field_of_a_node_is_warned_of_and_dropped(server: Server, node: str) -> None:
    """200 with a Warning header; Strict refuses."""
    body = {"spec": {"unschedulabel": True}}
    path = f"/api/v1/nodes/{node}"
    answer = server.ask("PATCH", path, body, content_type=MERGE)
    assert answer.warnings == ('299 - "unknown field \\"spec.unschedulabel\\""',)
    assert "unschedulabel" not in answer.body["spec"]
    strict = server.ask("PATCH", f"{path}?fieldValidation=Strict", body, content_type=MERGE)
    assert strict.status in (400, 422)


def test_a_pod_keeps_its_spec(server: Server, space: str, node: str) -> None:
    """nodeName cannot change; an image can."""
    pods = f"/api/v1/namespaces/{space}/pods"
    containers = [{"name": "c", "image": "i:1"}]
    server.ok("POST", pods, {"metadata": {"name": "p"}, "spec": {"containers": containers, "nodeName": node}})
    answer = server.ask("PATCH", f"{pods}/p", {"spec": {"nodeName": "other"}}, content_type=MERGE)
    assert (answer.status, answer.reason) == (422, "Invalid")
    image = {"spec": {"containers": [{"name": "c", "image": "i:2"}]}}
    after = server.ok("PATCH", f"{pods}/p", image, content_type=STRATEGIC)
    assert after["spec"]["containers"][0]["image"] == "i:2"


def test_a_pod_gets_its_defaults(server: Server, space: str, node: str) -> None:
    """Pending, restartPolicy, grace, and tolerations of unready nodes for five minutes."""
    body = {
        "metadata": {"name": "p"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i:1"}]},
    }
    pod = server.ok("POST", f"/api/v1/namespaces/{space}/pods", body)
    assert pod["status"]["phase"] == "Pending"
    assert (pod["spec"]["restartPolicy"], pod["spec"]["terminationGracePeriodSeconds"]) == ("Always", 30)
    assert {(t["key"], t["tolerationSeconds"]) for t in pod["spec"]["tolerations"]} == {
        ("node.kubernetes.io/not-ready", 300),
        ("node.kubernetes.io/unreachable", 300),
    }


def test_generation_counts_changes_of_spec_only(server: Server, space: str) -> None:
    """Of a budget: 1 at first, not moved by labels or status, moved by spec."""
    path = f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}
    made = server.ok("POST", path, {"metadata": {"name": "b"}, "spec": spec})
    labelled = server.ok("PATCH", f"{path}/b", {"metadata": {"labels": {"l": "1"}}}, content_type=MERGE)
    changed = server.ok("PATCH", f"{path}/b", {"spec": {"minAvailable": 2}}, content_type=MERGE)
    assert [o["metadata"]["generation"] for o in (made, labelled, changed)] == [1, 1, 2]


def test_a_dry_run_stores_nothing(server: Server, maps: str) -> None:
    """dryRun=All answers as the write would, for create, patch and delete."""
    made = server.ok("POST", f"{maps}?dryRun=All", {"metadata": {"name": "a"}})
    assert made["metadata"]["name"] == "a"
    assert server.ask("GET", f"{maps}/a").status == 404
    server.ok("POST", maps, {"metadata": {"name": "a"}})
    server.ok("PATCH", f"{maps}/a?dryRun=All", {"data": {"k": "v"}}, content_type=MERGE)
    server.ok("DELETE", f"{maps}/a?dryRun=All")
    assert "data" not in server.ok("GET", f"{maps}/a")


def test_a_body_above_three_mebibytes_is_refused(server: Server, maps: str) -> None:
    """413 before anything is read into an object."""
    answer = server.ask("POST", maps, {"metadata": {"name": "a"}, "data": {"k": "x" * (3 * 2**20 + 1)}})
    assert answer.status == 413


def test_the_cordon_patch_holds_only_once(server: Server, node: str) -> None:
    """Tests of uid and of an absent cordon guard one JSON Patch; the second try is a bare 422."""
    path = f"/api/v1/nodes/{node}"
    uid = server.ok("GET", path)["metadata"]["uid"]
    cordon = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/spec/unschedulable", "value": None},
        {"op": "add", "path": "/metadata/annotations/outlast.dev~1cordon", "value": "{}"},
        {"op": "add", "path": "/spec/unschedulable", "value": True},
    ]
    assert server.ok("PATCH", path, cordon, content_type=JSON_PATCH)["spec"]["unschedulable"] is True
    answer = server.ask("PATCH", path, cordon, content_type=JSON_PATCH)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.message == "the server rejected our request due to an error in our request"
    assert answer.body["details"] == {}
