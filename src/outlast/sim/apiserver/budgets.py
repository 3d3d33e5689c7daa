"""The disruption controller: brings the status of a budget level with the pods it covers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from outlast.sim.apiserver.eviction import is_ready
from outlast.sim.apiserver.resources import PDBS, PODS
from outlast.sim.apiserver.selectors import all_match, from_object
from outlast.sim.apiserver.storage import Entry
from outlast.sim.apiserver.store import Store, Writer, timestamp
from outlast.sim.apiserver.tables import parse_time

DISRUPTED_FORGET_S = 120
"""How long an accepted eviction counts against a budget when the pod does not begin to go."""
_SCALED = frozenset({("apps", "replicasets"), ("apps", "deployments"), ("apps", "statefulsets")})


def reconcile_budget(store: Store, budget: Entry) -> None:
    """Bring the status of a budget level with the pods it covers."""
    obj = budget.decode()
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    terms = from_object(spec.get("selector"))
    pods = [e.decode() for e in store.entries(PODS, budget.namespace) if all_match(terms, e.labels)]
    pods = [p for p in pods if (p.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    expected = _expected(store, spec, pods)
    desired = _desired(spec, expected)
    disrupted = _still_disrupted(store, status.get("disruptedPods") or {}, pods)
    healthy = sum(
        is_ready(p) and not p["metadata"].get("deletionTimestamp") and p["metadata"]["name"] not in disrupted
        for p in pods
    )
    wanted = {
        **status,
        "currentHealthy": healthy, "desiredHealthy": desired, "expectedPods": expected,
        "disruptionsAllowed": max(0, healthy - desired) if expected else 0,
        "observedGeneration": obj["metadata"].get("generation", 1),
        "disruptedPods": disrupted,
    }  # fmt: skip
    if not disrupted:
        del wanted["disruptedPods"]
    wanted["conditions"] = [_allowed_condition(store, status, wanted)]
    if wanted != status:
        store.update(
            PDBS, budget.name, lambda o: {**o, "status": wanted}, budget.namespace, subresource="status",
            writer=Writer(manager="kube-controller-manager"),
        )  # fmt: skip


def _expected(store: Store, spec: dict[str, Any], pods: list[dict[str, Any]]) -> int:
    """How many pods there should be: as many as match, or for shares what their controllers want."""
    if isinstance(spec.get("minAvailable"), int):
        return len(pods)
    wanted: dict[str, int] = {}
    for pod in pods:
        scale = _scale(store, pod)
        if scale is not None:
            wanted[scale[0]] = scale[1]
    return sum(wanted.values())


def _scale(store: Store, obj: dict[str, Any]) -> tuple[str, int] | None:
    """The topmost controller of an object that has replicas, and how many it wants."""
    references = obj["metadata"].get("ownerReferences") or ()
    owner = next((r["uid"] for r in references if r.get("controller")), "")
    found = store.storage.uids.get(owner)
    if found is None or found[0] not in _SCALED:
        return None
    controller = store.storage.collection(found[0]).entries[found[1]].decode()
    return _scale(store, controller) or (owner, int((controller.get("spec") or {}).get("replicas", 1)))


def _desired(spec: dict[str, Any], expected: int) -> int:
    if "minAvailable" in spec:
        return scaled(spec["minAvailable"], expected)
    return max(0, expected - scaled(spec.get("maxUnavailable", 1), expected))


def scaled(value: Any, total: int) -> int:
    """A count, or a percentage of `total` rounded up."""
    if isinstance(value, str) and value.endswith("%") and value[:-1].isdecimal():
        return -(-int(value[:-1]) * total // 100)
    return int(value) if isinstance(value, int) or str(value).isdecimal() else 0


def _still_disrupted(store: Store, disrupted: dict[str, str], pods: list[dict[str, Any]]) -> dict[str, str]:
    present = {p["metadata"]["name"]: p for p in pods}
    horizon = store.now() - timedelta(seconds=DISRUPTED_FORGET_S)
    kept = {}
    for name, when in disrupted.items():
        pod, moment = present.get(name), parse_time(when)
        if pod is not None and not pod["metadata"].get("deletionTimestamp") and moment and moment > horizon:
            kept[name] = when
    return kept


def _allowed_condition(store: Store, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    allowed = new["disruptionsAllowed"] > 0
    condition = {
        "type": "DisruptionAllowed", "status": "True" if allowed else "False",
        "reason": "SufficientPods" if allowed else "InsufficientPods", "message": "",
        "observedGeneration": new["observedGeneration"],
    }  # fmt: skip
    before = next((c for c in old.get("conditions") or () if c.get("type") == "DisruptionAllowed"), None)
    same = before is not None and before.get("status") == condition["status"]
    condition["lastTransitionTime"] = (
        before["lastTransitionTime"] if same and before is not None else timestamp(store.now())
    )
    return condition
