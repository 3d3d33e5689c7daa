"""A Job controller: pods with an owner, counts, completion and failure.

Enough for repair Jobs and simple workloads: parallelism, completions, backoffLimit, suspend, Indexed
completion indexes, podFailurePolicy. As in Kubernetes each pod is held by a tracking finalizer until
its end is counted; with a podFailurePolicy a pod that is removed while it says Running is never replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlast.sim.apiserver.resources import JOBS, PODS
from outlast.sim.apiserver.storage import Entry
from outlast.sim.apiserver.store import Deletion, Store, Writer, timestamp

_WRITER = Writer(manager="kube-controller-manager")
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
TRACKING = "batch.kubernetes.io/job-tracking"
Obj = dict[str, Any]


def reconcile(store: Store, entry: Entry) -> None:
    """Bring the pods and the status of a Job one step nearer to what it asks for."""
    job = entry.decode()
    pods = _own_pods(store, entry)
    if job["metadata"].get("deletionTimestamp") or _ended(job):
        for pod in pods:
            release(store, pod)
        return
    spec, old = job.get("spec") or {}, job.get("status") or {}
    waits = spec.get("podReplacementPolicy") == "Failed"
    ended = [
        p for p in pods
        if TRACKING in p["metadata"].get("finalizers", ())
        and (_finished(p) or (_terminating(p) and not waits))
    ]  # fmt: skip
    active = [p for p in pods if not _finished(p) and not _terminating(p)]
    terminating = [p for p in pods if not _finished(p) and _terminating(p)]
    verdicts = [_policy(spec, p) for p in ended if _phase(p) != "Succeeded"]
    succeeded = int(old.get("succeeded", 0)) + sum(_phase(p) == "Succeeded" for p in ended)
    failed = int(old.get("failed", 0)) + sum(v != "Ignore" for v in verdicts)
    now = timestamp(store.now())
    done = set(_indexes(old)) | {_index(p) for p in ended if _phase(p) == "Succeeded"}
    status: Obj = {"startTime": old.get("startTime", now)}
    conditions = _end(spec, verdicts, succeeded, failed, now)
    if conditions:
        status["conditions"] = conditions
        if conditions[-1]["type"] == "Complete":
            status["completionTime"] = now
        _delete_pods(store, active)
        active = []
    elif spec.get("suspend"):
        _delete_pods(store, active)
        status = {"conditions": [_condition("Suspended", "JobSuspended", "Job suspended", now)]}
        active = []
    else:
        active += _start(store, job, succeeded, done, active, terminating)
    counts = {"active": len(active), "succeeded": succeeded, "failed": failed}
    status |= {k: v for k, v in counts.items() if v}
    status |= {"ready": sum(_ready(p) for p in active), "terminating": len(terminating)}
    if spec.get("completionMode") == "Indexed" and done - {-1}:
        status["completedIndexes"] = ",".join(str(i) for i in sorted(done - {-1}))
    _write(store, entry, old, status)
    for pod in ended:
        release(store, pod)


def _end(spec: Obj, verdicts: Sequence[str], succeeded: int, failed: int, now: str) -> list[Obj]:
    """The conditions of a Job that is over, or none."""
    if "FailJob" in verdicts:
        reason, message = "PodFailurePolicy", "a pod matched a FailJob rule"
        return [_condition(t, reason, message, now) for t in ("FailureTarget", "Failed")]
    if failed > int(spec.get("backoffLimit", 6)):
        reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        return [_condition(t, reason, message, now) for t in ("FailureTarget", "Failed")]
    if succeeded >= int(spec.get("completions") or 1):
        reason, message = "CompletionsReached", "Reached expected number of succeeded pods"
        return [_condition(t, reason, message, now) for t in ("SuccessCriteriaMet", "Complete")]
    return []


def release(store: Store, pod: Obj) -> None:
    """Take the tracking finalizer off a pod whose end is counted or no longer matters."""
    meta = pod["metadata"]
    if TRACKING not in meta.get("finalizers", ()):
        return

    def mutate(obj: Obj) -> Obj:
        obj["metadata"]["finalizers"] = [f for f in obj["metadata"].get("finalizers", ()) if f != TRACKING]
        return obj

    store.update(PODS, meta["name"], mutate, meta["namespace"], writer=_WRITER)


def release_orphan(store: Store, entry: Entry) -> None:
    """Take the tracking finalizer off a pod whose Job is gone."""
    if not any(owner in store.storage.uids for owner in entry.owners):
        release(store, entry.decode())


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


def _ended(job: Obj) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def _own_pods(store: Store, job: Entry) -> list[Obj]:
    entries = store.storage.collection(PODS.key).entries
    keys = sorted(k for kind, k in store.storage.dependents.get(job.uid, ()) if kind == PODS.key)
    return [entries[key].decode() for key in keys]


def _phase(pod: Obj) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _finished(pod: Obj) -> bool:
    return _phase(pod) in ("Succeeded", "Failed")


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
    store: Store, job: Obj, succeeded: int, done: set[int], active: Sequence[Obj], terminating: Sequence[Obj]
) -> list[Obj]:
    """Create the pods that are missing; a terminating pod keeps its place until its end is counted."""
    spec = job["spec"]
    held = [p for p in terminating if TRACKING in p["metadata"].get("finalizers", ())]
    running = [*active, *held]
    wanted = int(spec.get("completions") or 1) - succeeded
    missing = min(int(spec.get("parallelism", 1)), wanted) - len(running)
    taken = done | {_index(p) for p in running}
    free = [i for i in range(int(spec.get("completions") or 1)) if i not in taken]
    started = []
    for number in range(max(missing, 0)):
        index = free[number] if spec.get("completionMode") == "Indexed" and number < len(free) else None
        started.append(_create_pod(store, job, index))
    return started


def _index(pod: Obj) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(INDEX_ANNOTATION, "-1")
    return int(text) if text.lstrip("-").isdecimal() else -1


def _indexes(status: Obj) -> list[int]:
    return [int(part) for part in str(status.get("completedIndexes", "")).split(",") if part.isdecimal()]


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
            "generateName": name, "labels": labels, "annotations": annotations, "ownerReferences": [owner],
            "finalizers": [TRACKING],
        },
        "spec": dict(template["spec"]),
    }  # fmt: skip
    return store.create(PODS, pod, meta["namespace"], _WRITER).decode()
