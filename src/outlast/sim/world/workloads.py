"""Plays the controllers of ReplicaSets and DaemonSets: as many pods as are asked for, where they belong.

Jobs, budgets and the scheduler are the API server's own small controllers.
"""

from __future__ import annotations

from typing import Final

from outlast.model.names import SYSTEM_NAMESPACE
from outlast.sim.apiserver import Store, Writer
from outlast.sim.apiserver.resources import (
    DAEMONSETS,
    JOBS,
    NAMESPACES,
    NODES,
    PDBS,
    PODS,
    Resource,
)
from outlast.sim.apiserver.storage import Change, Entry
from outlast.sim.world import objects
from outlast.sim.world.agenda import Agenda
from outlast.sim.world.scenario import Shape

SETTLE_S: Final = 1.0
"""Changes are answered this much later, together."""
_WRITER: Final = Writer(manager="kube-controller-manager")


class Workloads:
    """The users' work, kept alive."""

    def __init__(self, store: Store, agenda: Agenda, shape: Shape) -> None:
        self._store = store
        self._agenda = agenda
        self._shape = shape
        self._replica_sets = _found(store, "ReplicaSet")
        self._due = False
        store.storage.observe(self._on_change)

    def create(self) -> None:
        """Everything that runs, before the nodes are there."""
        for namespace in (SYSTEM_NAMESPACE, objects.TRAINING, objects.INFERENCE):
            self._store.create(NAMESPACES, {"metadata": {"name": namespace}}, writer=_WRITER)
        for name, machines in self._shape.gangs:
            job = objects.gang(name, machines, self._shape.gpus)
            self._store.create(JOBS, job, objects.TRAINING, _WRITER)
        self._store.create(self._replica_sets, objects.replica_set(self._shape), objects.INFERENCE, _WRITER)
        self._store.create(PDBS, objects.disruption_budget(self._shape), objects.INFERENCE, _WRITER)
        for namespace, name in objects.DAEMONS:
            self._store.create(DAEMONSETS, objects.daemon_set(name), namespace, _WRITER)

    def _on_change(self, kind: tuple[str, str], change: Change) -> None:
        pod_left = kind == PODS.key and change.type == "DELETED"
        pod_leaves = kind == PODS.key and b'"deletionTimestamp"' in change.entry.raw
        node_moved = kind == NODES.key and change.type != "MODIFIED"
        if (pod_left or pod_leaves or node_moved or kind == DAEMONSETS.key) and not self._due:
            self._due = True
            self._agenda.after(SETTLE_S, self._level)

    def _level(self) -> None:
        self._due = False
        for owner in self._store.list(self._replica_sets):
            self._level_replicas(owner)
        names = {entry.name for entry in self._store.entries(NODES)}
        for owner in self._store.list(DAEMONSETS):
            self._level_daemons(owner, names)

    def _level_replicas(self, owner: dict[str, object]) -> None:
        meta, spec = owner["metadata"], owner["spec"]
        assert isinstance(meta, dict)
        assert isinstance(spec, dict)
        alive = [p for p in self._pods_of(meta["uid"]) if b'"deletionTimestamp"' not in p.raw]
        for _ in range(int(spec["replicas"]) - len(alive)):
            pod = objects.owned_pod(owner, "ReplicaSet")
            self._store.create(PODS, pod, meta["namespace"], _WRITER)

    def _level_daemons(self, owner: dict[str, object], names: set[str]) -> None:
        meta = owner["metadata"]
        assert isinstance(meta, dict)
        covered = set()
        for entry in self._pods_of(meta["uid"]):
            fields = entry.decode()["spec"]["affinity"]["nodeAffinity"]
            terms = fields["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            covered.add(terms[0]["matchFields"][0]["values"][0])
        for name in sorted(names - covered):
            pod = objects.owned_pod(owner, "DaemonSet", node_name=name)
            self._store.create(PODS, pod, meta["namespace"], _WRITER)

    def _pods_of(self, uid: str) -> list[Entry]:
        collection = self._store.storage.collection(PODS.key).entries
        keys = sorted(key for kind, key in self._store.storage.dependents.get(uid, ()) if kind == PODS.key)
        return [collection[key] for key in keys]


def _found(store: Store, kind: str) -> Resource:
    resource = store.catalogue.by_kind("apps/v1", kind)
    assert resource is not None
    return resource
