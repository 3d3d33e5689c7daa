"""NoSchedule taints that follow a node's cordon and conditions, as the node lifecycle controller sets them.

Only the taints of this table are touched; taints of others stay. NoExecute eviction and the silence of
a kubelet are not modelled: a simulated kubelet reports its own conditions.
"""

from __future__ import annotations

from typing import Any

from outlast.sim.apiserver.resources import NODES
from outlast.sim.apiserver.storage import Change
from outlast.sim.apiserver.store import Store, Writer, timestamp

_PREFIX = "node.kubernetes.io/"
TTL_ANNOTATION = "node.alpha.kubernetes.io/ttl"
"""Set on every node by the controller-manager, so a node always has an annotations map."""
_BY_CONDITION = {
    ("Ready", "False"): "not-ready",
    ("Ready", "Unknown"): "unreachable",
    ("MemoryPressure", "True"): "memory-pressure",
    ("DiskPressure", "True"): "disk-pressure",
    ("PIDPressure", "True"): "pid-pressure",
    ("NetworkUnavailable", "True"): "network-unavailable",
}
_OURS = frozenset(_PREFIX + name for name in (*_BY_CONDITION.values(), "unschedulable"))


def wanted_keys(node: dict[str, Any]) -> set[str]:
    """Keys of the NoSchedule taints that the node's state asks for."""
    keys = set()
    if (node.get("spec") or {}).get("unschedulable"):
        keys.add(_PREFIX + "unschedulable")
    conditions = (node.get("status") or {}).get("conditions") or ()
    for condition in conditions:
        name = _BY_CONDITION.get((condition.get("type", ""), condition.get("status", "")))
        if name:
            keys.add(_PREFIX + name)
    return keys


def reconcile(store: Store, name: str) -> None:
    """Bring the taints of a node level with its state."""
    node = store.get(NODES, name)
    taints = (node.get("spec") or {}).get("taints") or []
    present = {t["key"] for t in taints if t.get("effect") == "NoSchedule" and t["key"] in _OURS}
    wanted = wanted_keys(node)
    annotated = TTL_ANNOTATION in (node["metadata"].get("annotations") or {})
    if present == wanted and annotated:
        return
    now = timestamp(store.now())

    def mutate(obj: dict[str, Any]) -> dict[str, Any]:
        kept = [
            t
            for t in taints
            if t.get("effect") != "NoSchedule" or t["key"] not in _OURS or t["key"] in wanted
        ]
        added = [{"key": k, "effect": "NoSchedule", "timeAdded": now} for k in sorted(wanted - present)]
        obj["metadata"].setdefault("annotations", {}).setdefault(TTL_ANNOTATION, "0")
        spec = obj.setdefault("spec", {})
        spec["taints"] = [*kept, *added]
        if not spec["taints"]:
            del spec["taints"]
        return obj

    store.update(NODES, name, mutate, writer=Writer(manager="kube-controller-manager"))


def changes_scheduling(change: Change) -> bool:
    """Whether pods that found no node may find this one now."""
    if change.previous is None or change.type == "DELETED":
        return False
    old, new = change.previous.decode(), change.entry.decode()
    if old.get("spec") != new.get("spec") or change.previous.labels != change.entry.labels:
        return True
    return bool((old.get("status") or {}).get("allocatable") != (new.get("status") or {}).get("allocatable"))
