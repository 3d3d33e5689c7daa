"""A Job controller: pods with an owner, counts, completion and failure.

Enough for repair Jobs and simple workloads: parallelism, completions, backoffLimit, suspend, Indexed
completion indexes, and podFailurePolicy rules on pod conditions and exit codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlast.sim.apiserver.resources import JOBS, PODS
from outlast.sim.apiserver.storage import Entry
from outlast.sim.apiserver.store import Deletion, Store, Writer, timestamp

_WRITER = Writer(manager="embedded-job-controller")
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
Obj = dict[str, Any]


def reconcile(store: Store, entry: Entry) -> None:
    """Bring the pods and the status of a Job one step nearer to what it asks for."""
    job = entry.decode()
    if job["metadata"].get("deletionTimestamp") or _ended(job):
        return
    spec, old = job.get("spec") or {}, job.get("status") or {}
    pods = _own_pods(store, entry)
    succeeded = [p for p in pods if _phase(p) == "Succeeded"]
    failed = [p for p in pods if _phase(p) == "Failed"]
    active = [p for p in pods if _phase(p) not in ("Succeeded", "Failed") and not _terminating(p)]
    terminating = [p for p in pods if _phase(p) not in ("Succeeded", "Failed") and _terminating(p)]
    verdicts = [_policy(spec, p) for p in failed]
    counted = sum(v != "Ignore" for v in verdicts)
    wanted = int(spec.get("completions") or 1)
    now = timestamp(store.now())
    status: Obj = {"startTime": old.get("startTime", now), "ready": sum(_ready(p) for p in active)}
    if spec.get("suspend"):
        _delete_pods(store, active)
        status = {"conditions": [_condition("Suspended", "JobSuspended", "Job suspended", now)]}
        active = []
    elif "FailJob" in verdicts:
        status["conditions"] = _failed("PodFailurePolicy", "a pod matched a FailJob rule", now)
    elif counted > int(spec.get("backoffLimit", 6)):
        status["conditions"] = _failed(
            "BackoffLimitExceeded", "Job has reached the specified backoff limit", now
        )
    elif len(succeeded) >= wanted:
        status["completionTime"] = now
        message = "Reached expected number of succeeded pods"
        status["conditions"] = [
            _condition("SuccessCriteriaMet", "CompletionsReached", message, now),
            _condition("Complete", "CompletionsReached", message, now),
        ]
    else:
        active += _start(store, job, succeeded, active, terminating)
    if any(c["type"] == "Failed" for c in status.get("conditions", ())):
        _delete_pods(store, active)
        active = []
    counts = {
        "active": len(active),
        "succeeded": len(succeeded),
        "failed": counted,
        "terminating": len(terminating),
    }
    status |= {k: v for k, v in counts.items() if v}
    _write(store, entry, old, status)


def _write(store: Store, entry: Entry, old: Obj, status: Obj) -> None:
    status.setdefault("uncountedTerminatedPods", {})
    for condition in status.get("conditions", ()):
        before = next((c for c in old.get("conditions") or () if c["type"] == condition["type"]), None)
        if before is not None:
            condition |= {k: before[k] for k in ("lastProbeTime", "lastTransitionTime") if k in before}
    if status != old:
        store.update(
            JOBS, entry.name, lambda o: {**o, "status": status}, entry.namespace, subresource="status",
            writer=_WRITER,
        )  # fmt: skip


def _condition(type_: str, reason: str, message: str, now: str) -> Obj:
    return {
        "type": type_, "status": "True", "reason": reason, "message": message, "lastProbeTime": now,
        "lastTransitionTime": now,
    }  # fmt: skip


def _failed(reason: str, message: str, now: str) -> list[Obj]:
    return [_condition("FailureTarget", reason, message, now), _condition("Failed", reason, message, now)]


def _ended(job: Obj) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def _own_pods(store: Store, job: Entry) -> list[Obj]:
    entries = store.storage.collection(PODS.key).entries
    keys = sorted(k for kind, k in store.storage.dependents.get(job.uid, ()) if kind == PODS.key)
    return [entries[key].decode() for key in keys]


def _phase(pod: Obj) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _terminating(pod: Obj) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _delete_pods(store: Store, pods: Sequence[Obj]) -> None:
    for pod in pods:
        meta = pod["metadata"]
        store.delete(PODS, meta["name"], meta["namespace"], Deletion(uid=meta["uid"]), _WRITER)


def _policy(spec: Obj, pod: Obj) -> str:
    """What podFailurePolicy says of a failed pod: Ignore, FailJob or Count."""
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        if _rule_matches(rule, pod.get("status") or {}):
            return str(rule.get("action", "Count"))
    return "Count"


def _rule_matches(rule: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    held = {(c.get("type"), c.get("status")) for c in status.get("conditions") or ()}
    if any((p.get("type"), p.get("status") or "True") in held for p in rule.get("onPodConditions") or ()):
        return True
    codes = rule.get("onExitCodes")
    if not codes:
        return False
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended is None or codes.get("containerName") not in (None, container.get("name")):
            continue
        code = ended.get("exitCode", 0)
        inside = code in (codes.get("values") or ())
        if code != 0 and inside is (codes.get("operator", "In") == "In"):
            return True
    return False


def _start(
    store: Store, job: Obj, succeeded: Sequence[Obj], active: Sequence[Obj], terminating: Sequence[Obj]
) -> list[Obj]:
    spec = job["spec"]
    running = [*active, *terminating] if spec.get("podReplacementPolicy") == "Failed" else list(active)
    wanted = int(spec.get("completions") or 1) - len(succeeded)
    missing = min(int(spec.get("parallelism", 1)), wanted) - len(running)
    taken = {_index(p) for p in (*succeeded, *running)}
    free = [i for i in range(int(spec.get("completions") or 1)) if i not in taken]
    started = []
    for number in range(max(missing, 0)):
        index = free[number] if spec.get("completionMode") == "Indexed" and number < len(free) else None
        started.append(_create_pod(store, job, index))
    return started


def _index(pod: Obj) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(INDEX_ANNOTATION, "-1")
    return int(text) if text.lstrip("-").isdecimal() else -1


def _create_pod(store: Store, job: Obj, index: int | None) -> Obj:
    meta, template = job["metadata"], job["spec"]["template"]
    described = template.get("metadata") or {}
    labels, annotations = dict(described.get("labels") or {}), dict(described.get("annotations") or {})
    name = f"{meta['name']}-"
    if index is not None:
        labels[INDEX_ANNOTATION] = annotations[INDEX_ANNOTATION] = str(index)
        name += f"{index}-"
    owner = {
        "apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True,
        "blockOwnerDeletion": True,
    }  # fmt: skip
    pod = {
        "metadata": {
            "generateName": name,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "spec": dict(template["spec"]),
    }
    return store.create(PODS, pod, meta["namespace"], _WRITER).decode()
