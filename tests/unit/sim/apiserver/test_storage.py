"""Storage: the past, its limits, and what watchers are told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from outlast.model.cluster import NODES
from outlast.sim.apiserver import storage
from outlast.sim.apiserver.resources import NODES as NODE_ROW
from outlast.sim.apiserver.selectors import Selection
from outlast.sim.apiserver.store import MERGE, Store


@pytest.fixture
def store() -> Store:
    """An empty store at a fixed time."""
    return Store(lambda: datetime(2026, 1, 1, tzinfo=UTC))


def make(store: Store, *names: str, **labels: str) -> None:
    """Create nodes."""
    for name in names:
        store.create(NODES, {"metadata": {"name": name, "labels": labels}})


def follow(store: Store, **options: Any) -> storage.Subscription:
    """Follow nodes."""
    selection = store.select(NODE_ROW, "", options.get("labels", ""), options.get("fields", ""))
    return store.collection(NODE_ROW).subscribe(
        selection.predicate(), selection.exact(), options.get("backlog", storage.WATCH_BACKLOG_MAX)
    )


def test_the_past_can_be_read_at_each_revision(store: Store) -> None:
    """A list at a remembered revision is what was there then."""
    make(store, "a")
    then = store.storage.version
    make(store, "b")
    store.delete(NODES, "a")
    _, keys = store.collection(NODE_ROW).at(then)
    assert keys == [("", "a")]


def test_an_event_is_encoded_once_for_all_watchers(store: Store) -> None:
    """Two watchers get the very same bytes."""
    one, two = follow(store), follow(store)
    make(store, "a")
    ((type_, first),), ((_, second),) = one.drain(), two.drain()
    assert first.line(type_) is second.line(type_)


def test_a_name_selected_watcher_is_found_by_index(store: Store) -> None:
    """A write visits only watchers of everything and of that name."""
    watchers = {name: follow(store, fields=f"metadata.name={name}") for name in ("a", "b")}
    make(store, "a", "b", "c")
    seen = {name: [c.entry.name for _, c in w.drain()] for name, w in watchers.items()}
    assert seen == {"a": ["a"], "b": ["b"]}


def test_a_slow_watcher_is_cut_off_and_not_fed_for_ever(store: Store) -> None:
    """Beyond its backlog a subscription is over."""
    watcher = follow(store, backlog=2)
    make(store, "a", "b", "c", "d")
    assert watcher.overflowed
    assert len(watcher.drain()) == 2


def test_the_past_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older changes are forgotten by count, and the collection says up to where."""
    monkeypatch.setattr(storage, "HISTORY_EVENTS_MAX", 3)
    make(store, "a", "b", "c", "d", "e")
    collection = store.collection(NODE_ROW)
    assert [c.entry.name for c in collection.history] == ["c", "d", "e"]
    assert collection.compacted == store.entry(NODES, "b").version


def test_compacting_forgets_everything(store: Store) -> None:
    """After it no older revision is served."""
    make(store, "a")
    store.storage.compact()
    collection = store.collection(NODE_ROW)
    assert (len(collection.history), collection.history_bytes) == (0, 0)
    assert collection.compacted == store.storage.version


def test_unsubscribing_leaves_nothing_behind(store: Store) -> None:
    """The index is empty again."""
    watcher = follow(store, fields="metadata.name=a")
    store.collection(NODE_ROW).unsubscribe(watcher)
    make(store, "a")
    assert watcher.drain() == []


def test_a_copy_belongs_to_the_reader(store: Store) -> None:
    """Changing what was read changes nothing that is stored."""
    make(store, "a")
    store.get(NODES, "a")["metadata"]["labels"] = {"changed": "yes"}
    assert "labels" not in store.get(NODES, "a")["metadata"]


def test_leaving_a_selection_is_a_deletion_at_the_new_revision(store: Store) -> None:
    """The event shows the object as it was, with the revision of the change."""
    make(store, "a", rack="r1")
    watcher = follow(store, labels="rack=r1")
    store.patch(NODES, "a", MERGE, {"metadata": {"labels": {"rack": "r2"}}})
    ((type_, change),) = watcher.drain()
    assert type_ == "DELETED"
    assert b'"rack":"r1"' in change.line(type_)
    assert b'"resourceVersion":"%d"' % change.version in change.line(type_)


def test_everything_is_selected_by_nothing() -> None:
    """An empty selection has the cheap predicate."""
    assert Selection().everything
    assert not Selection("space").everything
