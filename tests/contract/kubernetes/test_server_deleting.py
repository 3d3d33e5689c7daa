"""Deleting: preconditions, finalizers, owners, graceful deletion of pods."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.kubernetes.conftest import Server, until
from tests.controlplane.access import MERGE, STRATEGIC


@pytest.mark.parametrize("precondition", [{"uid": "other"}, {"resourceVersion": "1"}])
def test_a_delete_with_a_precondition_that_fails_is_a_conflict(
    server: Server, maps: str, precondition: dict[str, str]
) -> None:
    """409 Conflict, and the object stays."""
    server.ok("POST", maps, {"metadata": {"name": "a"}})
    answer = server.ask("DELETE", f"{maps}/a", {"preconditions": precondition})
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert "does not match" in answer.message
    server.ok("GET", f"{maps}/a")


def test_a_delete_answers_with_what_is_gone(server: Server, maps: str) -> None:
    """Status Success with name, kind and uid."""
    made = server.ok("POST", maps, {"metadata": {"name": "a"}})
    answer = server.ok("DELETE", f"{maps}/a")
    assert answer["status"] == "Success"
    assert answer["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}


def test_a_finalizer_holds_an_object(server: Server, maps: str) -> None:
    """DELETE sets deletionTimestamp; the object goes with its last finalizer; none may be added."""
    server.ok("POST", maps, {"metadata": {"name": "a", "finalizers": ["a.dev/hold"]}})
    held = server.ok("DELETE", f"{maps}/a")
    assert held["metadata"]["deletionTimestamp"]
    more = {"metadata": {"finalizers": ["a.dev/hold", "a.dev/new"]}}
    answer = server.ask("PATCH", f"{maps}/a", more, content_type=MERGE)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.body["details"]["causes"][0]["field"] == "metadata.finalizers"
    server.ok("PATCH", f"{maps}/a", {"metadata": {"finalizers": None}}, content_type=MERGE)
    assert server.ask("GET", f"{maps}/a").status == 404


def test_deletecollection_deletes_what_is_selected(server: Server, maps: str) -> None:
    """Objects outside of the selection stay."""
    for name in ("a", "b"):
        server.ok("POST", maps, {"metadata": {"name": name, "labels": {"n": name}}})
    server.ok("DELETE", f"{maps}?labelSelector=n%3Da")
    assert server.ask("GET", f"{maps}/a").status == 404
    server.ok("GET", f"{maps}/b")


def owned(server: Server, maps: str, **reference: Any) -> dict[str, Any]:
    """An owner `o` and its dependent `d`; the owner."""
    owner: dict[str, Any] = server.ok("POST", maps, {"metadata": {"name": "o"}})
    link = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "o",
        "uid": owner["metadata"]["uid"],
        **reference,
    }
    server.ok("POST", maps, {"metadata": {"name": "d", "ownerReferences": [link]}})
    return owner


def gone(server: Server, path: str) -> bool:
    """Whether nothing is there."""
    return bool(server.ask("GET", path).status == 404)


def test_dependents_go_after_their_owner(server: Server, maps: str) -> None:
    """Background deletion: the owner at once, dependents soon after."""
    owned(server, maps)
    server.ok("DELETE", f"{maps}/o", {"propagationPolicy": "Background"})
    assert gone(server, f"{maps}/o")
    until("the dependent is collected", lambda: gone(server, f"{maps}/d"))


def test_foreground_deletion_waits_for_blocking_dependents(server: Server, maps: str) -> None:
    """The owner stays with a finalizer until the dependent that blocks it is gone."""
    owned(server, maps, blockOwnerDeletion=True)
    server.ok("PATCH", f"{maps}/d", {"metadata": {"finalizers": ["a.dev/hold"]}}, content_type=MERGE)
    held = server.ok("DELETE", f"{maps}/o", {"propagationPolicy": "Foreground"})
    assert held["metadata"]["finalizers"] == ["foregroundDeletion"]
    until(
        "the dependent is being deleted",
        lambda: "deletionTimestamp" in server.ok("GET", f"{maps}/d")["metadata"],
    )
    server.ok("GET", f"{maps}/o")
    server.ok("PATCH", f"{maps}/d", {"metadata": {"finalizers": None}}, content_type=MERGE)
    until("the owner is gone", lambda: gone(server, f"{maps}/o"))


def test_orphans_lose_the_reference_and_stay(server: Server, maps: str) -> None:
    """propagationPolicy Orphan."""
    owned(server, maps)
    server.ok("DELETE", f"{maps}/o", {"propagationPolicy": "Orphan"})
    until("the owner is gone", lambda: gone(server, f"{maps}/o"))
    assert "ownerReferences" not in server.ok("GET", f"{maps}/d")["metadata"]


def test_an_object_of_an_owner_that_never_was_is_collected(server: Server, maps: str) -> None:
    """A reference to an unknown uid is as good as one to a deleted owner."""
    link = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "never",
        "uid": "00000000-0000-0000-0000-000000000000",
    }
    server.ok("POST", maps, {"metadata": {"name": "d", "ownerReferences": [link]}})
    until("the object is collected", lambda: gone(server, f"{maps}/d"))


@pytest.fixture
def pod(server: Server, space: str, node: str) -> str:
    """The path of a running pod on a node without a kubelet."""
    pods = f"/api/v1/namespaces/{space}/pods"
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "i:1"}]}
    server.ok("POST", pods, {"metadata": {"name": "p"}, "spec": spec})
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    server.ok("PATCH", f"{pods}/p/status", running, content_type=STRATEGIC)
    return f"{pods}/p"


def test_a_bound_pod_waits_for_its_kubelet(server: Server, pod: str) -> None:
    """DELETE sets a deadline of its own grace; grace 0 confirms."""
    meta = server.ok("DELETE", pod)["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 30
    assert server.ok("GET", pod)["metadata"]["deletionTimestamp"] == meta["deletionTimestamp"]
    server.ok("DELETE", f"{pod}?gracePeriodSeconds=0")
    assert gone(server, pod)


def test_a_grace_can_only_be_made_shorter(server: Server, pod: str) -> None:
    """A longer one is ignored, a shorter one is taken."""
    graces = [
        server.ok("DELETE", f"{pod}?gracePeriodSeconds={grace}")["metadata"]["deletionGracePeriodSeconds"]
        for grace in (10, 60, 5)
    ]
    assert graces == [10, 10, 5]


def test_a_pod_that_no_node_has_is_gone_at_once(server: Server, space: str) -> None:
    """Nobody would confirm."""
    pods = f"/api/v1/namespaces/{space}/pods"
    spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "i:1"}]}
    server.ok("POST", pods, {"metadata": {"name": "p"}, "spec": spec})
    assert server.ok("DELETE", f"{pods}/p")["kind"] == "Pod"
    assert gone(server, f"{pods}/p")


def test_a_finished_pod_is_gone_at_once(server: Server, pod: str) -> None:
    """There is nothing left to stop."""
    server.ok("PATCH", f"{pod}/status", {"status": {"phase": "Succeeded"}}, content_type=STRATEGIC)
    server.ok("DELETE", pod)
    assert gone(server, pod)


def test_a_namespace_takes_its_objects_with_it(server: Server, space: str, maps: str) -> None:
    """Deleting a namespace deletes what is in it, then itself."""
    server.ok("POST", maps, {"metadata": {"name": "a"}})
    answer = server.ok("DELETE", f"/api/v1/namespaces/{space}")
    assert answer["status"]["phase"] == "Terminating"
    until("the namespace is gone", lambda: gone(server, f"/api/v1/namespaces/{space}"))
    assert gone(server, f"{maps}/a")
