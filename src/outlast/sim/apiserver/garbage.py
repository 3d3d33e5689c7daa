"""Owner garbage collection and namespace removal.

Dependents of an owner that is gone are deleted; foreground and orphan deletion hold the owner by a
finalizer until its dependents are dealt with.
"""

from __future__ import annotations

from typing import Any

from outlast.sim.apiserver.errors import ApiError
from outlast.sim.apiserver.resources import NAMESPACES, Resource
from outlast.sim.apiserver.storage import Entry
from outlast.sim.apiserver.store import Deletion, Store, Writer

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_WRITER = Writer(manager="kube-controller-manager")


def _dependents(store: Store, uid: str) -> list[tuple[Resource, Entry]]:
    found = []
    for kind, key in sorted(store.storage.dependents.get(uid, ())):
        resource = store.catalogue.stored(kind)
        entry = store.storage.collection(kind).entries.get(key)
        if resource is not None and entry is not None:
            found.append((resource, entry))
    return found


def owner_gone(store: Store, uid: str) -> None:
    """Delete the dependents that have no other owner left; drop the reference from the others."""
    for resource, entry in _dependents(store, uid):
        if any(owner in store.storage.uids for owner in entry.owners):
            _drop_reference(store, resource, entry, uid)
        else:
            _delete(store, resource, entry, "Background")


def check_owners(store: Store, resource: Resource, entry: Entry) -> None:
    """Delete an object whose owners have never been or are no more."""
    if entry.owners and not any(owner in store.storage.uids for owner in entry.owners):
        _delete(store, resource, entry, "Background")


def hold_owner(store: Store, resource: Resource, entry: Entry) -> None:
    """Move a foreground or orphan deletion on."""
    meta = entry.decode()["metadata"]
    if not meta.get("deletionTimestamp"):
        return
    finalizers = meta.get("finalizers") or ()
    if ORPHAN in finalizers:
        for dependent_resource, dependent in _dependents(store, entry.uid):
            _drop_reference(store, dependent_resource, dependent, entry.uid)
        _drop_finalizer(store, resource, entry, ORPHAN)
    elif FOREGROUND in finalizers:
        blocking = False
        for dependent_resource, dependent in _dependents(store, entry.uid):
            obj = dependent.decode()
            if not obj["metadata"].get("deletionTimestamp"):
                _delete(store, dependent_resource, dependent, "Foreground")
            blocking |= _blocks(obj, entry.uid) and _exists(store, dependent_resource, dependent)
        if not blocking:
            _drop_finalizer(store, resource, entry, FOREGROUND)


def _blocks(obj: dict[str, Any], owner: str) -> bool:
    references = obj["metadata"].get("ownerReferences") or ()
    return any(r["uid"] == owner and r.get("blockOwnerDeletion") for r in references)


def _exists(store: Store, resource: Resource, entry: Entry) -> bool:
    found = store.collection(resource).entries.get(entry.key)
    return found is not None and found.uid == entry.uid


def _delete(store: Store, resource: Resource, entry: Entry, propagation: str) -> None:
    if _exists(store, resource, entry):
        has_below = bool(store.storage.dependents.get(entry.uid))
        options = Deletion(uid=entry.uid, propagation=propagation if has_below else "Background")
        store.delete(resource, entry.name, entry.namespace, options, _WRITER)


def _drop_reference(store: Store, resource: Resource, entry: Entry, uid: str) -> None:
    def mutate(obj: dict[str, Any]) -> dict[str, Any]:
        references = obj["metadata"].get("ownerReferences") or ()
        obj["metadata"]["ownerReferences"] = [r for r in references if r["uid"] != uid]
        return obj

    store.update(resource, entry.name, mutate, entry.namespace, writer=_WRITER)


def _drop_finalizer(store: Store, resource: Resource, entry: Entry, finalizer: str) -> None:
    def mutate(obj: dict[str, Any]) -> dict[str, Any]:
        obj["metadata"]["finalizers"] = [f for f in obj["metadata"].get("finalizers") or () if f != finalizer]
        return obj

    store.update(resource, entry.name, mutate, entry.namespace, writer=_WRITER)


def empty_namespace(store: Store, namespace: str) -> None:
    """Delete what a terminating namespace holds; the namespace itself once nothing is left."""
    entry = store.collection(NAMESPACES).entries.get(("", namespace))
    if entry is None or not entry.decode()["metadata"].get("deletionTimestamp"):
        return
    left = 0
    for resource in store.catalogue.rows():
        if not resource.namespaced:
            continue
        for found in store.entries(resource, namespace):
            try:
                store.delete(resource, found.name, namespace, Deletion(propagation="Background"), _WRITER)
            except ApiError as error:
                if error.code != 404:
                    raise
        left += len(store.entries(resource, namespace))
    if not left:

        def finalize(obj: dict[str, Any]) -> dict[str, Any]:
            obj["spec"].pop("finalizers", None)
            return obj

        store.update(NAMESPACES, namespace, finalize, writer=_WRITER)
        store.delete(NAMESPACES, namespace, writer=_WRITER)
