"""Reading: lists, pages, selectors, resourceVersion."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.contract.kubernetes.conftest import Server


def create(server: Server, maps: str, *names: str, **labels: str) -> list[dict[str, Any]]:
    """Make ConfigMaps."""
    return [server.ok("POST", maps, {"metadata": {"name": n, "labels": labels}}) for n in names]


def names(body: dict[str, Any]) -> list[str]:
    """Names of a list, without what the controller-manager puts into each namespace."""
    return [i["metadata"]["name"] for i in body["items"] if i["metadata"]["name"] != "kube-root-ca.crt"]


def test_an_object_reads_back_as_it_was_created(server: Server, maps: str) -> None:
    """GET gives what POST answered."""
    (made,) = create(server, maps, "a")
    assert server.ok("GET", f"{maps}/a") == made


def test_resource_versions_rise_over_all_kinds(server: Server, maps: str, node: str) -> None:
    """A later write of any kind has a higher resourceVersion."""
    first = int(server.ok("GET", f"/api/v1/nodes/{node}")["metadata"]["resourceVersion"])
    (made,) = create(server, maps, "a")
    assert int(made["metadata"]["resourceVersion"]) > first


def test_a_list_is_sorted_and_says_its_revision(server: Server, maps: str) -> None:
    """Items come by name, and the list has a resourceVersion not older than any item."""
    create(server, maps, "b", "a", "c")
    body = server.ok("GET", maps)
    assert names(body) == ["a", "b", "c"]
    newest = max(int(i["metadata"]["resourceVersion"]) for i in body["items"])
    assert int(body["metadata"]["resourceVersion"]) >= newest


def test_pages_show_the_list_as_it_was_at_the_first_page(server: Server, maps: str) -> None:
    """Objects deleted and created between two pages do not change the rest of the list."""
    create(server, maps, "a", "b", "c", "d", label="x")
    selected = f"{maps}?labelSelector=label%3Dx&limit=2"
    first = server.ok("GET", selected)
    server.ok("DELETE", f"{maps}/c")
    create(server, maps, "bb", label="x")
    second = server.ok("GET", f"{selected}&continue={quote(first['metadata']['continue'])}")
    assert (names(first), names(second)) == (["a", "b"], ["c", "d"])
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_the_last_page_has_no_continuation(server: Server, unique: str) -> None:
    """Pages end, and together are the whole list."""
    whole = names(server.ok("GET", "/api/v1/namespaces"))
    read: list[str] = []
    token = ""
    while True:
        body = server.ok("GET", f"/api/v1/namespaces?limit=2&continue={quote(token)}")
        read += names(body)
        token = body["metadata"].get("continue", "")
        if not token:
            break
    assert read == whole


def test_a_page_tells_how_many_items_remain(server: Server, unique: str) -> None:
    """remainingItemCount is given without a selector and left out with one."""
    path = "/api/v1/namespaces?limit=1"
    total = len(server.ok("GET", "/api/v1/namespaces")["items"])
    assert server.ok("GET", path)["metadata"]["remainingItemCount"] == total - 1
    selected = server.ok("GET", f"{path}&labelSelector={quote('kubernetes.io/metadata.name')}")
    assert "remainingItemCount" not in selected["metadata"]


def test_resource_version_0_ignores_the_limit(server: Server, maps: str) -> None:
    """`limit` with resourceVersion=0 answers one whole list."""
    create(server, maps, "a", "b", "c")
    body = server.ok("GET", f"{maps}?limit=1&resourceVersion=0")
    assert names(body) == ["a", "b", "c"]
    assert "continue" not in body["metadata"]


def test_an_exact_revision_shows_the_past(server: Server, maps: str) -> None:
    """resourceVersionMatch=Exact lists the collection as it was then."""
    create(server, maps, "a")
    then = create(server, maps, "b")[0]["metadata"]["resourceVersion"]
    create(server, maps, "c")
    body = server.ok("GET", f"{maps}?resourceVersion={then}&resourceVersionMatch=Exact")
    assert names(body) == ["a", "b"]


def test_a_revision_of_the_future_is_a_timeout_to_retry(server: Server, maps: str) -> None:
    """A list not older than what is not yet there: 504, cause ResourceVersionTooLarge, retry."""
    answer = server.ask("GET", f"{maps}?resourceVersion=999999999&resourceVersionMatch=NotOlderThan")
    assert (answer.status, answer.reason) == (504, "Timeout")
    assert answer.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


SELECTORS = [
    ("a=1", ["both", "one"]),
    ("a==1,b=2", ["both"]),
    ("a!=1", ["none", "other"]),
    ("a", ["both", "one", "other"]),
    ("!a", ["none"]),
    ("a in (1,2)", ["both", "one", "other"]),
    ("a notin (1)", ["none", "other"]),
    ("a>1", ["other"]),
    ("a<2", ["both", "one"]),
    ("a=1,!b", ["one"]),
]


@pytest.mark.parametrize(("selector", "expected"), SELECTORS, ids=[s for s, _ in SELECTORS])
def test_label_selectors_choose(server: Server, maps: str, selector: str, expected: list[str]) -> None:
    """Every operator of a label selector."""
    create(server, maps, "one", a="1")
    create(server, maps, "both", a="1", b="2")
    create(server, maps, "other", a="2")
    create(server, maps, "none")
    assert names(server.ok("GET", f"{maps}?labelSelector={quote(selector)}")) == expected


@pytest.mark.parametrize("selector", ["a in", "a===b", "-a", "a in (b", "a=b c=d"])
def test_a_label_selector_that_cannot_be_read_is_refused(server: Server, maps: str, selector: str) -> None:
    """400 BadRequest, never an empty or a full list."""
    answer = server.ask("GET", f"{maps}?labelSelector={quote(selector)}")
    assert (answer.status, answer.reason) == (400, "BadRequest")


def test_field_selectors_choose_by_name_and_state(server: Server, node: str) -> None:
    """metadata.name and spec.unschedulable of Nodes, = and !=."""
    by_name = f"/api/v1/nodes?fieldSelector={quote(f'metadata.name={node},spec.unschedulable!=true')}"
    assert names(server.ok("GET", by_name)) == [node]
    server.ok(
        "PATCH",
        f"/api/v1/nodes/{node}",
        {"spec": {"unschedulable": True}},
        content_type="application/merge-patch+json",
    )
    assert names(server.ok("GET", by_name)) == []


def test_a_field_that_cannot_be_selected_is_refused(server: Server) -> None:
    """400 with the name of the field."""
    answer = server.ask("GET", f"/api/v1/nodes?fieldSelector={quote('spec.providerID=x')}")
    assert (answer.status, answer.message) == (400, "field label not supported: spec.providerID")


OPTIONS = [
    "resourceVersionMatch=Exact",
    "resourceVersion=0&resourceVersionMatch=Exact",
    "resourceVersion=5&resourceVersionMatch=Foo",
    "sendInitialEvents=true",
    "watch=1&sendInitialEvents=true",
    "watch=1&resourceVersionMatch=NotOlderThan",
]


@pytest.mark.parametrize("options", OPTIONS)
def test_options_that_contradict_each_other_are_refused(server: Server, options: str) -> None:
    """422 Invalid about ListOptions."""
    answer = server.ask("GET", f"/api/v1/nodes?{options}")
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.body["details"]["kind"] == "ListOptions"


@pytest.mark.parametrize(
    "options", ["limit=x", "resourceVersion=abc", "continue=zzz", "watch=1&timeoutSeconds=x"]
)
def test_options_that_cannot_be_read_are_refused(server: Server, options: str) -> None:
    """400 BadRequest."""
    answer = server.ask("GET", f"/api/v1/nodes?{options}")
    assert (answer.status, answer.reason) == (400, "BadRequest")


def test_what_is_not_there_is_not_found(server: Server) -> None:
    """404 with the kind and the name; for an unknown kind 404 too."""
    answer = server.ask("GET", "/api/v1/nodes/nobody")
    assert (answer.status, answer.message) == (404, 'nodes "nobody" not found')
    assert answer.body["details"] == {"name": "nobody", "kind": "nodes"}
    assert server.ask("GET", "/api/v1/foos").status == 404
    assert server.ask("GET", "/apis/foo.dev/v1/bars").status == 404


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_health_is_told(server: Server, path: str) -> None:
    """Probes answer ok."""
    answer = server.ask("GET", path)
    assert (answer.status, answer.body) == (200, "ok")


def test_discovery_names_kinds_and_subresources(server: Server) -> None:
    """Classic discovery: nodes with status, pods with eviction of policy/v1."""
    rows = {r["name"]: r for r in server.ok("GET", "/api/v1")["resources"]}
    assert rows["nodes"]["kind"] == "Node"
    assert rows["nodes"]["shortNames"] == ["no"]
    assert not rows["nodes"]["namespaced"]
    assert "nodes/status" in rows
    assert (rows["pods/eviction"]["group"], rows["pods/eviction"]["kind"]) == ("policy", "Eviction")
    groups = {g["name"] for g in server.ok("GET", "/apis")["groups"]}
    assert {"apps", "batch", "coordination.k8s.io", "policy", "apiextensions.k8s.io"} <= groups


def test_the_version_is_told(server: Server) -> None:
    """/version names the release whose behaviour is promised."""
    version = server.ok("GET", "/version")
    assert (version["major"], version["minor"]) == ("1", "37")
