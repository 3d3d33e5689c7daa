"""pods/eviction: delete a pod if its disruption budget allows it now.

A refusal is 429 with cause DisruptionBudget; two budgets over one pod are a 500 that stays until a
human changes them. An accepted eviction is counted in the budget at once and marked on the pod.
"""

from __future__ import annotations

from typing import Any

from outlast.sim.apiserver import errors
from outlast.sim.apiserver.deletion import check_deletion
from outlast.sim.apiserver.errors import ApiError
from outlast.sim.apiserver.resources import PDBS, PODS
from outlast.sim.apiserver.selectors import all_match, from_object
from outlast.sim.apiserver.storage import Entry
from outlast.sim.apiserver.store import Deletion, Store, Writer, timestamp

DISRUPTED_PODS_MAX = 2000
"""Evictions that a budget waits to see; more are refused, as a kube-apiserver does."""

_TWO_BUDGETS = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
)


def covering_budgets(store: Store, pod: Entry) -> list[Entry]:
    """The budgets whose selector takes the pod."""
    found = []
    for entry in store.entries(PDBS, pod.namespace):
        terms = from_object((entry.decode().get("spec") or {}).get("selector"))
        if all_match(terms, pod.labels):
            found.append(entry)
    return found


def evict(store: Store, name: str, namespace: str, body: dict[str, Any], writer: Writer) -> None:
    """Accept or refuse an eviction. Refused with 404, 409, 429, 500."""
    options = body.get("deleteOptions") or {}
    preconditions = options.get("preconditions") or {}
    given_name = (body.get("metadata") or {}).get("name")
    if given_name and given_name != name:
        raise errors.bad_request("name in URL does not match name in Eviction object")
    deletion = Deletion(
        uid=preconditions.get("uid") or "",
        version=preconditions.get("resourceVersion") or "",
        grace_s=options.get("gracePeriodSeconds"),
    )
    if options.get("dryRun") == ["All"]:
        writer = Writer(manager=writer.manager, dry_run=True)
    pod = store.entry(PODS, name, namespace)
    obj = pod.decode()
    if not _needs_no_budget(obj):
        budgets = covering_budgets(store, pod)
        if len(budgets) > 1:
            raise ApiError(500, "", _TWO_BUDGETS)
        if budgets and _must_ask(obj, budgets[0].decode()):
            _spend(store, budgets[0], name, writer)
    check_deletion(PODS, pod, deletion)
    if not writer.dry_run and not obj["metadata"].get("deletionTimestamp"):
        _mark(store, name, namespace)
    store.delete(PODS, name, namespace, Deletion(deletion.uid, "", deletion.grace_s), writer)


def _needs_no_budget(pod: dict[str, Any]) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return phase in ("Succeeded", "Failed", "Pending") or bool(pod["metadata"].get("deletionTimestamp"))


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether the Ready condition is True."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _must_ask(pod: dict[str, Any], budget: dict[str, Any]) -> bool:
    """An unready pod is free where the budget is met anyway, or always by policy."""
    if is_ready(pod):
        return True
    if (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return False
    status = budget.get("status") or {}
    met = (
        status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0)
        and status.get("desiredHealthy", 0) > 0
    )
    return not met


def _refused(message: str, cause: str, retry_after_s: int = 0) -> ApiError:
    details: dict[str, Any] = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    if retry_after_s:
        details["retryAfterSeconds"] = retry_after_s
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s else None
    return ApiError(429, "TooManyRequests", message, details=details, headers=headers)


def _spend(store: Store, budget: Entry, pod_name: str, writer: Writer) -> None:
    obj = budget.decode()
    status = obj.get("status") or {}
    if status.get("observedGeneration", 0) < obj["metadata"].get("generation", 0):
        message = "Cannot evict pod as it would violate the pod's disruption budget."
        raise _refused(
            message, f"The disruption budget {budget.name} is still being processed by the server.", 10
        )
    disrupted = dict(status.get("disruptedPods") or {})
    if len(disrupted) > DISRUPTED_PODS_MAX:
        raise ApiError(
            403, "Forbidden", "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        )
    if status.get("disruptionsAllowed", 0) <= 0:
        desired, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        cause = (
            f"The disruption budget {budget.name} needs {desired} healthy pods and has {healthy} currently"
        )
        raise _refused("Cannot evict pod as it would violate the pod's disruption budget.", cause)
    if writer.dry_run:
        return
    disrupted[pod_name] = timestamp(store.now())
    spent = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1, "disruptedPods": disrupted}
    store.update(
        PDBS, budget.name, lambda o: {**o, "status": spent}, budget.namespace, subresource="status",
        writer=Writer(manager="kube-apiserver"),
    )  # fmt: skip


def _mark(store: Store, name: str, namespace: str) -> None:
    condition = {
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastTransitionTime": timestamp(store.now()),
    }  # fmt: skip

    def mutate(pod: dict[str, Any]) -> dict[str, Any]:
        status = pod.setdefault("status", {})
        others = [c for c in status.get("conditions") or () if c.get("type") != "DisruptionTarget"]
        status["conditions"] = [*others, condition]
        return pod

    store.update(PODS, name, mutate, namespace, subresource="status", writer=Writer(manager="kube-apiserver"))
