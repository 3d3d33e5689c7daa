"""The few controllers that make the API alive: garbage, budgets, Jobs, taints, scheduling.

Each change marks work; one task does it level-triggered, so a burst of changes costs one look. What
fails because the world moved on is looked at again on the next change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from outlast.sim.apiserver import budgets, garbage, jobs, node_lifecycle, scheduling, workloads
from outlast.sim.apiserver.errors import ApiError
from outlast.sim.apiserver.resources import (
    DAEMONSETS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PDBS,
    PODS,
    REPLICASETS,
)
from outlast.sim.apiserver.storage import Change, Entry
from outlast.sim.apiserver.store import Store

_log = logging.getLogger(__name__)
BATCH_MAX = 200
"""Pieces of work done before other tasks get their turn."""
Work = tuple[str, tuple[str, str], tuple[str, str], str]

_WORKLOADS: dict[tuple[str, str], Callable[[Store, Entry], None]] = {
    REPLICASETS.key: workloads.reconcile_replica_set,
    DEPLOYMENTS.key: workloads.reconcile_deployment,
    DAEMONSETS.key: workloads.reconcile_daemon_set,
}
_CONTROLLED = {JOBS.key: "job", **dict.fromkeys(_WORKLOADS, "workload")}


class Controllers:
    """Observes a store and keeps derived state level."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._work: dict[Work, None] = {}
        self._unbound: dict[tuple[str, str], None] = {}
        self._next_node = 0
        self._on_node: dict[str, set[tuple[str, str]]] = {}
        self._wake = asyncio.Event()
        store.storage.observe(self._mark)
        self._do: dict[str, Callable[[tuple[str, str], tuple[str, str], str], None]] = {
            "owner-gone": self._owner_gone,
            "owned": self._owned,
            "held": self._held,
            "budget": self._budget,
            "job": self._job,
            "node": self._node,
            "pod": self._pod,
            "namespace": self._namespace,
            "workload": self._workload,
        }

    async def run(self) -> None:
        """Work for ever; ends by cancellation only."""
        while True:
            while not self._work:
                self._wake.clear()
                await self._wake.wait()
            self.settle(BATCH_MAX)
            await asyncio.sleep(0)  # noqa: TID251 - yields the loop, waits for nothing

    def settle(self, limit: int = 100_000) -> None:
        """Do the work that waits, and the work it makes; for callers without a running server."""
        while self._work and limit:
            limit -= 1
            work = next(iter(self._work))
            del self._work[work]
            action, kind, key, uid = work
            try:
                self._do[action](kind, key, uid)
            except ApiError as error:
                # 404 and 409: gone or changed meanwhile, and that change has marked its own work.
                if error.code not in (404, 409):
                    _log.warning("%s of %s %s failed: %s", action, kind[1], "/".join(key), error.message)
            except Exception:
                # One odd object must not stop the care of all others.
                _log.exception("%s of %s %s failed", action, kind[1], "/".join(key))

    def _add(self, action: str, kind: tuple[str, str], key: tuple[str, str], uid: str = "") -> None:
        self._work[(action, kind, key, uid)] = None
        self._wake.set()

    def _mark(self, kind: tuple[str, str], change: Change) -> None:
        entry = change.entry
        if change.type == "DELETED":
            if entry.uid in self._store.storage.dependents:
                self._add("owner-gone", kind, entry.key, entry.uid)
        elif change.type == "ADDED" and entry.owners:
            self._add("owned", kind, entry.key)
        if change.type == "MODIFIED" and b'"deletionTimestamp"' in entry.raw:
            self._add("held", kind, entry.key)
        for owner in entry.owners:
            if (found := self._store.storage.uids.get(owner)) is not None:
                self._add(_CONTROLLED.get(found[0], "held"), *found)
        if kind == PODS.key:
            self._pod_changed(change)
        elif kind == PDBS.key and change.type != "DELETED":
            self._add("budget", kind, entry.key)
        elif kind in _CONTROLLED and change.type != "DELETED":
            self._add(_CONTROLLED[kind], kind, entry.key)
        elif kind == NODES.key:
            self._node_changed(change)
        if b'"deletionTimestamp"' in entry.raw or change.type == "DELETED":
            namespace = entry.name if kind == NAMESPACES.key else entry.namespace
            if namespace:
                self._add("namespace", NAMESPACES.key, ("", namespace))

    def _pod_changed(self, change: Change) -> None:
        entry = change.entry
        for budget in self._store.storage.collection(PDBS.key).keys:
            if budget[0] == entry.namespace:
                self._add("budget", PDBS.key, budget)
        if change.type != "DELETED" and not entry.fields.get("spec.nodeName"):
            self._unbound[entry.key] = None
            self._add("pod", PODS.key, entry.key)
            return
        self._unbound.pop(entry.key, None)
        self._place(entry, gone=change.type == "DELETED")
        if change.type == "DELETED" or entry.fields.get("status.phase") in ("Succeeded", "Failed"):
            self._retry_pending()

    def _place(self, entry: Entry, *, gone: bool) -> None:
        node = entry.fields.get("spec.nodeName", "")
        if not gone:
            self._on_node.setdefault(node, set()).add(entry.key)
        elif node in self._on_node:
            self._on_node[node].discard(entry.key)
            if not self._on_node[node]:
                del self._on_node[node]

    def _node_changed(self, change: Change) -> None:
        if change.type != "DELETED":
            self._add("node", NODES.key, change.entry.key)
        waiting = bool(self._unbound)
        daemons = self._store.storage.collection(DAEMONSETS.key).keys
        if (waiting or daemons) and node_lifecycle.changes_scheduling(change):
            self._retry_pending()
            for key in daemons:
                self._add("workload", DAEMONSETS.key, key)

    def _retry_pending(self) -> None:
        for key in self._unbound:
            self._add("pod", PODS.key, key)

    def _owner_gone(self, _kind: tuple[str, str], _key: tuple[str, str], uid: str) -> None:
        for kind, key in sorted(self._store.storage.dependents.get(uid, ())):
            self._add("owned", kind, key)
        for kind, key in sorted(self._store.storage.dependents.get(uid, ())):
            self._add("owned", kind, key)
        garbage.owner_gone(self._store, uid)

    def _owned(self, kind: tuple[str, str], key: tuple[str, str], _uid: str) -> None:
        resource = self._store.catalogue.stored(kind)
        entry = self._store.storage.collection(kind).entries.get(key)
        if resource is not None and entry is not None:
            garbage.check_owners(self._store, resource, entry)
            if kind == PODS.key and (entry := self._store.storage.collection(kind).entries.get(key)):
                jobs.release_orphan(self._store, entry)
            if kind == PODS.key and (entry := self._store.storage.collection(kind).entries.get(key)):
                jobs.release_orphan(self._store, entry)

    def _held(self, kind: tuple[str, str], key: tuple[str, str], _uid: str) -> None:
        resource = self._store.catalogue.stored(kind)
        entry = self._store.storage.collection(kind).entries.get(key)
        if resource is not None and entry is not None:
            garbage.hold_owner(self._store, resource, entry)

    def _budget(self, _kind: tuple[str, str], key: tuple[str, str], _uid: str) -> None:
        budgets.reconcile_budget(self._store, self._store.entry(PDBS, key[1], key[0]))

    def _job(self, kind: tuple[str, str], key: tuple[str, str], uid: str) -> None:
        jobs.reconcile(self._store, self._store.entry(JOBS, key[1], key[0]))
        self._held(kind, key, uid)

    def _workload(self, kind: tuple[str, str], key: tuple[str, str], uid: str) -> None:
        resource = self._store.catalogue.stored(kind)
        if resource is not None:
            _WORKLOADS[kind](self._store, self._store.entry(resource, key[1], key[0]))
            self._held(kind, key, uid)

    def _node(self, _kind: tuple[str, str], key: tuple[str, str], _uid: str) -> None:
        node_lifecycle.reconcile(self._store, key[1])

    def _pod(self, _kind: tuple[str, str], key: tuple[str, str], _uid: str) -> None:
        entry = self._store.entry(PODS, key[1], key[0])
        if not entry.fields.get("spec.nodeName") and b'"deletionTimestamp"' not in entry.raw:
            self._next_node += scheduling.schedule(
                self._store, entry.name, entry.namespace, self._on_node, self._next_node
            )

    def _namespace(self, _kind: tuple[str, str], key: tuple[str, str], _uid: str) -> None:
        garbage.empty_namespace(self._store, key[1])
