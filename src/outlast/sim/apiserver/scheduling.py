"""Binding pods to nodes: pods/binding, and a scheduler as small as simulated nodes need.

The scheduler honours cordons, taints, node selectors and required node affinity; it counts pods and
extended resources, not CPU or memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outlast.sim.apiserver import errors
from outlast.sim.apiserver.resources import NODES, PODS
from outlast.sim.apiserver.selectors import all_match, from_object
from outlast.sim.apiserver.storage import Entry, Key
from outlast.sim.apiserver.store import Store, Writer, timestamp

UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
DEFAULT_PODS_PER_NODE = 110
FIRST_FIT_NODES_MAX = 500
"""Up to so many nodes pods fill the fleet from the front, always in the same way; beyond it is too slow."""
DEFAULT_SCHEDULER = "default-scheduler"


def bind(store: Store, name: str, namespace: str, body: Mapping[str, Any], writer: Writer) -> None:
    """Bind a pod to a node. Refused with 404, 409 where it is bound already."""
    if (body.get("metadata") or {}).get("name") != name:
        raise errors.bad_request("name in URL does not match name in Binding object")
    node = (body.get("target") or {}).get("name", "")
    if not node:
        cause = errors.required("target.name")
        raise errors.invalid(PODS, name, [cause])
    pod = store.get(PODS, name, namespace)
    bound = (pod.get("spec") or {}).get("nodeName")
    if bound:
        raise errors.conflict(PODS, name, f'pod {name} is already assigned to node "{bound}"')
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(store.now())}

    def mutate(obj: dict[str, Any]) -> dict[str, Any]:
        obj["spec"]["nodeName"] = node
        status = obj.setdefault("status", {})
        others = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
        status["conditions"] = [*others, condition]
        return obj

    store.update(PODS, name, mutate, namespace, subresource="binding", writer=writer)


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: Mapping[str, Any]) -> bool:
    """Whether one of the tolerations stands the taint."""
    for toleration in tolerations:
        if toleration.get("effect", "") not in ("", taint.get("effect")):
            continue
        key, operator = toleration.get("key", ""), toleration.get("operator") or "Equal"
        if not key and operator == "Exists":
            return True
        if key == taint.get("key") and (
            operator == "Exists" or toleration.get("value", "") == taint.get("value", "")
        ):
            return True
    return False


def refusal(pod: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """Why the node does not take the pod by its own properties, or ""."""
    spec, node_spec = pod.get("spec") or {}, node.get("spec") or {}
    tolerations = spec.get("tolerations") or ()
    if node_spec.get("unschedulable") and not tolerates(tolerations, UNSCHEDULABLE):
        return "node(s) were unschedulable"
    for taint in node_spec.get("taints") or ():
        if taint.get("effect") != "PreferNoSchedule" and not tolerates(tolerations, taint):
            return f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value', '')}}}"
    labels = (node.get("metadata") or {}).get("labels") or {}
    if any(labels.get(k) != v for k, v in (spec.get("nodeSelector") or {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if affinity is not None and not _affine(affinity, node, labels):
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def _affine(affinity: Mapping[str, Any], node: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    names = {"metadata.name": (node.get("metadata") or {}).get("name", "")}
    for term in affinity.get("nodeSelectorTerms") or ():
        expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
        if not expressions and not fields:
            continue
        if all_match(from_object({"matchExpressions": expressions}), labels) and all_match(
            from_object({"matchExpressions": fields}), names
        ):
            return True
    return False


def requested(pod: Mapping[str, Any]) -> dict[str, int]:
    """Extended resources that the pod asks for."""
    total: dict[str, int] = {}
    for container in (pod.get("spec") or {}).get("containers") or ():
        resources = container.get("resources") or {}
        wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, amount in wanted.items():
            if "/" in name and str(amount).isdecimal():
                total[name] = total.get(name, 0) + int(amount)
    return total


def schedule(
    store: Store, name: str, namespace: str, on_node: Mapping[str, Iterable[Key]], start: int = 0
) -> int:
    """Bind one pending pod, or say on the pod why no node takes it; how many nodes were looked at.

    `on_node` are the pods of each node. The look begins at node `start` in name order, so that a full
    front of the fleet is not looked through for every pod.
    """
    pod = store.get(PODS, name, namespace)
    if (pod.get("spec") or {}).get("schedulerName", DEFAULT_SCHEDULER) != DEFAULT_SCHEDULER:
        return 0
    asks = requested(pod)
    reasons: dict[str, int] = {}
    entries = store.collection(NODES).entries
    names = _named(pod)
    candidates = [e for n in names if (e := entries.get(("", n)))] if names else _rotated(store, start)
    for looked_at, candidate in enumerate(candidates, 1):
        node = candidate.decode()
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        slots = _count(allocatable.get("pods", DEFAULT_PODS_PER_NODE), DEFAULT_PODS_PER_NODE)
        why = refusal(pod, node) or _lack(store, node, on_node.get(candidate.name, ()), asks, slots)
        if not why:
            binding = {"metadata": {"name": name}, "target": {"name": candidate.name}}
            bind(store, name, namespace, binding, Writer(manager="kube-scheduler"))
            return 0 if names else looked_at
        reasons[why] = reasons.get(why, 0) + 1
    others = len(entries) - len(candidates)
    if others:
        why = "node(s) didn't match Pod's node affinity/selector"
        reasons[why] = reasons.get(why, 0) + others
    listed = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
    _report(store, name, namespace, f"0/{len(entries)} nodes are available: {listed}.")
    return 0


def _rotated(store: Store, start: int) -> Sequence[Entry]:
    nodes = store.entries(NODES)
    begin = start % len(nodes) if len(nodes) > FIRST_FIT_NODES_MAX else 0
    return [*nodes[begin:], *nodes[:begin]]


def _named(pod: Mapping[str, Any]) -> list[str]:
    """The only nodes that a pod's affinity lets it run on, where it names them."""
    affinity = (((pod.get("spec") or {}).get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    names: list[str] = []
    for term in affinity.get("nodeSelectorTerms") or ():
        fields = [
            f for f in term.get("matchFields") or ()
            if f.get("key") == "metadata.name" and f.get("operator") == "In"
        ]  # fmt: skip
        if not fields:
            return []
        names.extend(fields[0].get("values") or ())
    return names


def _lack(
    store: Store, node: Mapping[str, Any], held: Iterable[Key], asks: Mapping[str, int], slots: int
) -> str:
    pods = store.collection(PODS).entries
    here = [e for k in held if (e := pods.get(k)) and e.fields["status.phase"] not in ("Succeeded", "Failed")]
    if len(here) >= slots:
        return "Too many pods"
    if not asks:
        return ""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    used = [requested(e.decode()) for e in here]
    for resource, amount in asks.items():
        taken = sum(u.get(resource, 0) for u in used)
        if taken + amount > _count(allocatable.get(resource, 0), 0):
            return f"Insufficient {resource}"
    return ""


def _count(value: Any, default: int) -> int:
    text = str(value)
    return int(text) if text.isdecimal() else default


def _report(store: Store, name: str, namespace: str, message: str) -> None:
    condition = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        "lastTransitionTime": timestamp(store.now()),
    }  # fmt: skip

    def mutate(pod: dict[str, Any]) -> dict[str, Any]:
        status = pod.setdefault("status", {})
        conditions = status.get("conditions") or []
        before = next((c for c in conditions if c.get("type") == "PodScheduled"), None)
        if before is not None and before.get("message") == message:
            return pod
        status["conditions"] = [*(c for c in conditions if c is not before), condition]
        return pod

    writer = Writer(manager="kube-scheduler")
    store.update(PODS, name, mutate, namespace, subresource="status", writer=writer)
