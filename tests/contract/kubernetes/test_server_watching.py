"""Watching: from now, from a revision, bookmarks, selections, the end of memory."""

from __future__ import annotations

from urllib.parse import quote

from tests.contract.kubernetes.conftest import Server

MERGE = "application/merge-patch+json"


def make(server: Server, maps: str, name: str, **labels: str) -> str:
    """Create a ConfigMap; its resourceVersion."""
    made = server.ok("POST", maps, {"metadata": {"name": name, "labels": labels}})
    return str(made["metadata"]["resourceVersion"])


def test_a_watch_without_a_revision_begins_with_what_is_there(server: Server, maps: str) -> None:
    """ADDED for each object, then changes."""
    make(server, maps, "a", w="1")
    with server.watch(f"{maps}?watch=1&labelSelector=w") as watching:
        assert watching.events(1) == [("ADDED", "a")]
        make(server, maps, "b", w="1")
        server.ok("PATCH", f"{maps}/a", {"data": {"k": "v"}}, content_type=MERGE)
        server.ok("DELETE", f"{maps}/b")
        assert watching.events(3) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]


def test_a_watch_from_a_revision_replays_what_came_after_it(server: Server, maps: str) -> None:
    """Nothing is missed between a list and its watch."""
    start = make(server, maps, "a")
    make(server, maps, "b")
    server.ok("DELETE", f"{maps}/a")
    with server.watch(f"{maps}?watch=1&resourceVersion={start}") as watching:
        assert watching.events(2) == [("ADDED", "b"), ("DELETED", "a")]


def test_a_deleted_object_is_told_at_the_revision_of_its_deletion(server: Server, maps: str) -> None:
    """The DELETED event carries the last state, and a newer resourceVersion than it had."""
    start = make(server, maps, "a", kept="yes")
    server.ok("DELETE", f"{maps}/a")
    with server.watch(f"{maps}?watch=1&resourceVersion={start}") as watching:
        event = watching.line()
    assert event is not None
    assert event["type"] == "DELETED"
    assert event["object"]["metadata"]["labels"] == {"kept": "yes"}
    assert int(event["object"]["metadata"]["resourceVersion"]) > int(start)


def test_moving_into_and_out_of_a_selection_is_added_and_deleted(server: Server, maps: str) -> None:
    """A selected watch never shows an object that it does not select."""
    start = make(server, maps, "a")
    with server.watch(f"{maps}?watch=1&resourceVersion={start}&labelSelector=in%3Dyes") as watching:
        for value in ("yes", "no"):
            server.ok("PATCH", f"{maps}/a", {"metadata": {"labels": {"in": value}}}, content_type=MERGE)
        added, deleted = watching.line(), watching.line()
    assert added is not None
    assert deleted is not None
    assert (added["type"], deleted["type"]) == ("ADDED", "DELETED")
    assert deleted["object"]["metadata"]["labels"] == {"in": "yes"}
    assert int(deleted["object"]["metadata"]["resourceVersion"]) > int(
        added["object"]["metadata"]["resourceVersion"]
    )


def test_a_field_selected_watch_sees_one_node(server: Server, node: str) -> None:
    """metadata.name selects; writes to others are not told."""
    selector = quote(f"metadata.name={node}")
    start = server.ok("GET", f"/api/v1/nodes?fieldSelector={selector}")["metadata"]["resourceVersion"]
    server.ok("POST", "/api/v1/nodes", {"metadata": {"name": f"{node}-other"}})
    label = {"metadata": {"labels": {"seen": "yes"}}}
    with server.watch(f"/api/v1/nodes?watch=1&resourceVersion={start}&fieldSelector={selector}") as watching:
        server.ok("PATCH", f"/api/v1/nodes/{node}", label, content_type=MERGE)
        assert watching.events(1) == [("MODIFIED", node)]
    server.ok("DELETE", f"/api/v1/nodes/{node}-other")


def test_a_streaming_list_ends_with_a_marked_bookmark(server: Server, maps: str) -> None:
    """sendInitialEvents: ADDED for all, the annotated bookmark, then the watch on the same connection."""
    make(server, maps, "a", s="1")
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    with server.watch(f"{maps}?{query}&labelSelector=s") as watching:
        assert watching.events(1) == [("ADDED", "a")]
        bookmark = watching.line()
        assert bookmark is not None
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert int(bookmark["object"]["metadata"]["resourceVersion"]) > 0
        make(server, maps, "b", s="1")
        assert watching.events(1) == [("ADDED", "b")]


def test_a_streaming_list_of_nothing_ends_too(server: Server, maps: str) -> None:
    """An empty collection is one bookmark."""
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    with server.watch(f"{maps}?{query}&labelSelector=nobody") as watching:
        bookmark = watching.line()
    assert bookmark is not None
    assert bookmark["type"] == "BOOKMARK"


def test_a_watch_ends_when_its_time_is_over(server: Server, maps: str) -> None:
    """timeoutSeconds ends the stream cleanly."""
    with server.watch(
        f"{maps}?watch=1&resourceVersion={make(server, maps, 'a')}&timeoutSeconds=1"
    ) as watching:
        assert watching.line() is None


def test_a_forgotten_revision_is_told_in_the_stream(embedded: Server, unique: str) -> None:
    """HTTP 200, then one ERROR event with a Status of code 410, reason Expired.

    A real server forgets by age and load, which a test cannot bring about; its answer is on record.
    """
    server, maps = embedded, f"/api/v1/namespaces/{unique}/configmaps"
    make(server, maps, "a")
    server.compact()
    with server.watch(f"{maps}?watch=1&resourceVersion=1") as watching:
        event = watching.line()
        assert watching.status == 200
        assert event is not None
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == (
            "ERROR",
            410,
            "Expired",
        )


def test_a_watch_from_the_future_is_silent(server: Server, maps: str) -> None:
    """A plain watch from a revision that is not reached says nothing, and ends with its time."""
    with server.watch(f"{maps}?watch=1&resourceVersion=999999999&timeoutSeconds=1") as watching:
        assert watching.status == 200
        make(server, maps, "a")
        assert watching.line() is None


def test_a_streaming_list_from_the_future_is_an_error(server: Server, maps: str) -> None:
    """After a few seconds an ERROR event: Too large resource version."""
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    with server.watch(f"{maps}?{query}&resourceVersion=999999999") as watching:
        event = watching.line()
    assert event is not None
    assert event["type"] == "ERROR"
    assert "Too large resource version" in event["object"]["message"]


def test_a_write_that_changes_nothing_is_not_told(server: Server, maps: str) -> None:
    """No event and no new resourceVersion."""
    start = make(server, maps, "a", l="1")
    same = server.ok("PATCH", f"{maps}/a", {"metadata": {"labels": {"l": "1"}}}, content_type=MERGE)
    assert same["metadata"]["resourceVersion"] == start
    with server.watch(f"{maps}?watch=1&resourceVersion={start}") as watching:
        make(server, maps, "b")
        assert watching.events(1) == [("ADDED", "b")]
