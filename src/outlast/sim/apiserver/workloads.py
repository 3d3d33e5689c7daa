"""ReplicaSet, Deployment and DaemonSet controllers: enough pods, with an owner, and a status.

A ReplicaSet adopts pods that its selector finds, replaces those that end or terminate, and deletes
surplus ones. A Deployment owns one ReplicaSet per template and moves over at once (no rolling pace).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from outlast.sim.apiserver.eviction import is_ready
from outlast.sim.apiserver.resources import DAEMONSETS, DEPLOYMENTS, NODES, PODS, REPLICASETS, Resource
from outlast.sim.apiserver.scheduling import refusal
from outlast.sim.apiserver.selectors import all_match, from_object
from outlast.sim.apiserver.storage import Entry
from outlast.sim.apiserver.store import Deletion, Store, Writer

_WRITER = Writer(manager="kube-controller-manager")
POD_HASH = "pod-template-hash"
REPLICAS_MAX = 5000
"""Pods that one object may ask for here."""
_EVERYWHERE = tuple(
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect}
    for name, effect in (
        ("not-ready", "NoExecute"), ("unreachable", "NoExecute"), ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"), ("pid-pressure", "NoSchedule"), ("unschedulable", "NoSchedule"),
    )
)  # fmt: skip
Obj = dict[str, Any]


def _reference(resource: Resource, entry: Entry) -> Obj:
    return {
        "apiVersion": resource.api_version, "kind": resource.kind, "name": entry.name, "uid": entry.uid,
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def _controlled(store: Store, kind: Resource, uid: str) -> list[Obj]:
    entries = store.collection(kind).entries
    keys = sorted(key for found, key in store.storage.dependents.get(uid, ()) if found == kind.key)
    return [entries[key].decode() for key in keys]


def _alive(pods: Sequence[Obj]) -> list[Obj]:
    return [
        p for p in pods
        if (p.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        and not p["metadata"].get("deletionTimestamp")
    ]  # fmt: skip


def _pod(template: Obj, prefix: str, owner: Obj) -> Obj:
    described = template.get("metadata") or {}
    meta = {
        "generateName": prefix, "labels": dict(described.get("labels") or {}),
        "annotations": dict(described.get("annotations") or {}), "ownerReferences": [owner],
    }  # fmt: skip
    return {"metadata": meta, "spec": msgspec.json.decode(msgspec.json.encode(template.get("spec") or {}))}


def _delete(store: Store, pod: Obj) -> None:
    meta = pod["metadata"]
    store.delete(PODS, meta["name"], meta["namespace"], Deletion(uid=meta["uid"]), _WRITER)


def _set_status(store: Store, kind: Resource, entry: Entry, obj: Obj, status: Obj) -> None:
    wanted = {k: v for k, v in status.items() if v} | {"observedGeneration": obj["metadata"]["generation"]}
    required = {"replicas": status.get("replicas", 0)} if kind is REPLICASETS else {}
    wanted |= required
    if wanted != obj.get("status"):
        store.update(
            kind, entry.name, lambda o: {**o, "status": wanted}, entry.namespace, subresource="status",
            writer=_WRITER,
        )  # fmt: skip


def reconcile_replica_set(store: Store, entry: Entry) -> None:
    """Adopt, create or delete pods until there are as many as asked for."""
    obj = entry.decode()
    if obj["metadata"].get("deletionTimestamp"):
        return
    spec = obj.get("spec") or {}
    _adopt(store, entry, spec)
    pods = _alive(_controlled(store, PODS, entry.uid))
    wanted = min(int(spec.get("replicas", 1)), REPLICAS_MAX)
    owner = _reference(REPLICASETS, entry)
    for _ in range(wanted - len(pods)):
        body = _pod(spec.get("template") or {}, f"{entry.name}-", owner)
        pods.append(store.create(PODS, body, entry.namespace, _WRITER).decode())
    for pod in sorted(pods, key=is_ready)[: max(len(pods) - wanted, 0)]:
        _delete(store, pod)
        pods.remove(pod)
    ready = sum(map(is_ready, pods))
    counts = {"replicas": len(pods), "fullyLabeledReplicas": len(pods), "readyReplicas": ready}
    _set_status(store, REPLICASETS, entry, obj, {**counts, "availableReplicas": ready})


def _adopt(store: Store, entry: Entry, spec: Obj) -> None:
    terms = from_object(spec.get("selector"))
    reference = _reference(REPLICASETS, entry)
    for pod in store.entries(PODS, entry.namespace):
        if not pod.owners and all_match(terms, pod.labels) and _alive([pod.decode()]):

            def mutate(obj: Obj) -> Obj:
                obj["metadata"]["ownerReferences"] = [reference]
                return obj

            store.update(PODS, pod.name, mutate, pod.namespace, writer=_WRITER)


def reconcile_deployment(store: Store, entry: Entry) -> None:
    """One ReplicaSet for the template, none of the older ones."""
    obj = entry.decode()
    if obj["metadata"].get("deletionTimestamp"):
        return
    spec = obj.get("spec") or {}
    template = spec.get("template") or {}
    digest = hashlib.sha256(msgspec.json.encode(template, order="sorted")).hexdigest()[:10]
    replicas = int(spec.get("replicas", 1))
    owned = _controlled(store, REPLICASETS, entry.uid)
    current = next((r for r in owned if r["metadata"]["labels"].get(POD_HASH) == digest), None)
    for replica_set in owned:
        _scale(store, replica_set, replicas if replica_set is current else 0)
    if current is None:
        current = _create_replica_set(store, entry, spec, digest)
    counts = current.get("status") or {}
    names = ("replicas", "readyReplicas", "availableReplicas")
    status = {name: counts.get(name, 0) for name in names} | {"updatedReplicas": counts.get("replicas", 0)}
    status["unavailableReplicas"] = max(replicas - counts.get("availableReplicas", 0), 0)
    _set_status(store, DEPLOYMENTS, entry, obj, status)


def _scale(store: Store, replica_set: Obj, replicas: int) -> None:
    if replica_set["spec"].get("replicas") == replicas:
        return

    def mutate(obj: Obj) -> Obj:
        obj["spec"]["replicas"] = replicas
        return obj

    meta = replica_set["metadata"]
    store.update(REPLICASETS, meta["name"], mutate, meta["namespace"], writer=_WRITER)


def _create_replica_set(store: Store, entry: Entry, spec: Obj, digest: str) -> Obj:
    template = msgspec.json.decode(msgspec.json.encode(spec.get("template") or {}))
    labels = {**((template.get("metadata") or {}).get("labels") or {}), POD_HASH: digest}
    template.setdefault("metadata", {})["labels"] = labels
    selector = msgspec.json.decode(msgspec.json.encode(spec.get("selector") or {}))
    selector.setdefault("matchLabels", {})[POD_HASH] = digest
    body = {
        "metadata": {
            "name": f"{entry.name}-{digest}", "labels": labels,
            "ownerReferences": [_reference(DEPLOYMENTS, entry)],
        },
        "spec": {"replicas": int(spec.get("replicas", 1)), "selector": selector, "template": template},
    }  # fmt: skip
    return store.create(REPLICASETS, body, entry.namespace, _WRITER).decode()


def reconcile_daemon_set(store: Store, entry: Entry) -> None:
    """One pod on each node that the template fits, cordoned nodes included."""
    obj = entry.decode()
    if obj["metadata"].get("deletionTimestamp"):
        return
    template = (obj.get("spec") or {}).get("template") or {}
    pods = _alive(_controlled(store, PODS, entry.uid))
    by_node = {_wanted_node(p): p for p in pods}
    owner = _reference(DAEMONSETS, entry)
    fitting = 0
    for node_entry in store.entries(NODES):
        body = _pod(template, f"{entry.name}-", owner)
        spec = body["spec"]
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *_EVERYWHERE]
        fits = not refusal(body, node_entry.decode())
        fitting += fits
        if fits and node_entry.name not in by_node:
            term = {"key": "metadata.name", "operator": "In", "values": [node_entry.name]}
            required = {"nodeSelectorTerms": [{"matchFields": [term]}]}
            spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
            pods.append(store.create(PODS, body, entry.namespace, _WRITER).decode())
    ready = sum(map(is_ready, pods))
    status = {
        "desiredNumberScheduled": fitting, "currentNumberScheduled": len(pods), "numberReady": ready,
        "numberAvailable": ready, "updatedNumberScheduled": len(pods), "numberMisscheduled": 0,
    }  # fmt: skip
    required_counts = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "numberMisscheduled",
    )
    wanted = {k: v for k, v in status.items() if v or k in required_counts}
    wanted["observedGeneration"] = obj["metadata"]["generation"]
    if wanted != obj.get("status"):
        store.update(
            DAEMONSETS, entry.name, lambda o: {**o, "status": wanted}, entry.namespace, subresource="status",
            writer=_WRITER,
        )  # fmt: skip


def _wanted_node(pod: Obj) -> str:
    spec = pod.get("spec") or {}
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in affinity.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""
