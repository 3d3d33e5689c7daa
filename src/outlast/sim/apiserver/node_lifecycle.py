"""NoSchedule taints that follow a node's cordon and conditions, as the node lifecycle controller sets them.

Only the taints of this table are touched; taints of others stay. NoExecute eviction and the silence of
a kubelet are not modelled: a simulated kubelet reports its own conditions.
"""

from __future__ import annotations

from typing import Any

import msgspec

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


class _Taint(msgspec.Struct):
    key: str
    effect: str = ""


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Spec(msgspec.Struct):
    unschedulable: bool = False
    taints: list[_Taint] = []


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class _Meta(msgspec.Struct):
    annotations: dict[str, str] = {}


class _Node(msgspec.Struct):
    """The fields that decide; a whole node is many times larger."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Amounts(msgspec.Struct):
    allocatable: msgspec.Raw = msgspec.Raw(b"")


class _Placement(msgspec.Struct):
    """What the scheduler looks at beside labels."""

    spec: msgspec.Raw = msgspec.Raw(b"")
    status: _Amounts = msgspec.field(default_factory=_Amounts)


_placement = msgspec.json.Decoder(_Placement).decode
_look = msgspec.json.Decoder(_Node).decode


def wanted_keys(node: _Node) -> set[str]:
    """Keys of the NoSchedule taints that the node's state asks for."""
    names = {_BY_CONDITION.get((c.type, c.status), "") for c in node.status.conditions} - {""}
    if node.spec.unschedulable:
        names.add("unschedulable")
    return {_PREFIX + name for name in names}


def reconcile(store: Store, name: str) -> None:
    """Bring the taints of a node level with its state."""
    node = _look(store.entry(NODES, name).raw)
    present = {t.key for t in node.spec.taints if t.effect == "NoSchedule" and t.key in _OURS}
    wanted = wanted_keys(node)
    if present == wanted and TTL_ANNOTATION in node.metadata.annotations:
        return
    now = timestamp(store.now())

    def mutate(obj: dict[str, Any]) -> dict[str, Any]:
        spec = obj.setdefault("spec", {})
        kept = [
            t for t in spec.get("taints") or ()
            if t.get("effect") != "NoSchedule" or t["key"] not in _OURS or t["key"] in wanted
        ]  # fmt: skip
        added = [{"key": k, "effect": "NoSchedule", "timeAdded": now} for k in sorted(wanted - present)]
        obj["metadata"].setdefault("annotations", {}).setdefault(TTL_ANNOTATION, "0")
        spec["taints"] = [*kept, *added]
        if not spec["taints"]:
            del spec["taints"]
        return obj

    store.update(NODES, name, mutate, writer=Writer(manager="kube-controller-manager"))


def changes_scheduling(change: Change) -> bool:
    """Whether pods that found no node may find one now, or the other way round."""
    if change.previous is None or change.type == "DELETED" or change.previous.labels != change.entry.labels:
        return True
    old, new = _placement(change.previous.raw), _placement(change.entry.raw)
    same = bytes(old.spec) == bytes(new.spec) and bytes(old.status.allocatable) == bytes(
        new.status.allocatable
    )
    return not same
