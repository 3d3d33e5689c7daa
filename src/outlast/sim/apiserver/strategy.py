"""What differs between kinds when an object is created or changed.

Defaults that a kube-apiserver fills in, what a main write and a status write may touch, and the few
rules of built-in kinds that clients run into. Custom kinds bring their own schema (`crd`).
"""

from __future__ import annotations

import re
from typing import Any

from outlast.sim.apiserver.errors import (
    Cause,
    forbidden_field,
    invalid_value,
    required,
    unsupported_value,
)
from outlast.sim.apiserver.resources import Resource
from outlast.sim.apiserver.selectors import label_key_problem, label_value_problem

DEFAULT_GRACE_S = 30
DEFAULT_TOLERATION_S = 300
NAME_MAX = 253
ANNOTATIONS_BYTES_MAX = 256 * 1024
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_NAME_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NODE_INFO = (
    "machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion",
    "kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture",
)  # fmt: skip
_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


def prepare_create(resource: Resource, obj: dict[str, Any]) -> None:
    """Drop what a creator may not set and fill in defaults, in place."""
    if resource.status and resource.kind != "Node":
        obj.pop("status", None)
    if resource.generation:
        obj["metadata"]["generation"] = 1
    if resource.custom is not None:
        return
    match resource.kind:
        case "Pod":
            _default_pod(obj)
        case "Node":
            obj.setdefault("spec", {})
            status = obj.setdefault("status", {})
            status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
            status["nodeInfo"] = {**dict.fromkeys(_NODE_INFO, ""), **(status.get("nodeInfo") or {})}
        case "CustomResourceDefinition":
            spec = obj.setdefault("spec", {})
            spec.setdefault("conversion", {"strategy": "None"})
            names = spec.setdefault("names", {})
            if names.get("kind"):
                names.setdefault("listKind", names["kind"] + "List")
                names.setdefault("singular", names["kind"].lower())
        case "Namespace":
            obj.setdefault("spec", {})["finalizers"] = ["kubernetes"]
            obj["status"] = {"phase": "Active"}
            obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
        case "Job":
            _default_job(obj)
        case "PodDisruptionBudget":
            obj["status"] = {
                "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0,
            }  # fmt: skip
        case "Deployment" | "ReplicaSet" | "StatefulSet":
            obj.setdefault("spec", {}).setdefault("replicas", 1)
            obj["status"] = {}
        case "DaemonSet":
            obj["status"] = {
                "currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0,
                "numberReady": 0,
            }  # fmt: skip


def admit_create(resource: Resource, obj: dict[str, Any]) -> None:
    """What admission adds, in place; the creator does not own it."""
    if resource.custom is not None:
        return
    if resource.kind == "Node":
        _taint_until_ready(obj)
    elif resource.kind == "Pod":
        _admit_pod(obj)


def _taint_until_ready(node: dict[str, Any]) -> None:
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    taints = node["spec"].setdefault("taints", [])
    if not any(t.get("key") == taint["key"] and t.get("effect") == taint["effect"] for t in taints):
        taints.append(taint)


def default_pod_spec(spec: dict[str, Any]) -> None:
    """Defaults of a pod template."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        container.setdefault("resources", {})
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault(
            "imagePullPolicy", "Always" if container.get("image", "").endswith(":latest") or ":" not in
            container.get("image", "") else "IfNotPresent",
        )  # fmt: skip


def _default_pod(pod: dict[str, Any]) -> None:
    spec = pod.setdefault("spec", {})
    default_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    requested = [c.get("resources") or {} for c in spec.get("containers", ())]
    plain = not any(r.get("requests") or r.get("limits") for r in requested)
    pod["status"] = {"phase": "Pending", "qosClass": "BestEffort" if plain else "Burstable"}


def _admit_pod(pod: dict[str, Any]) -> None:
    spec = pod["spec"]
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", _PRIORITIES.get(spec.get("priorityClassName", ""), 0))
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(_tolerates_no_execute(t, key) for t in tolerations):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute",
                 "tolerationSeconds": DEFAULT_TOLERATION_S}
            )  # fmt: skip


def _tolerates_no_execute(toleration: dict[str, Any], key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")


def _default_job(job: dict[str, Any]) -> None:
    spec = job.setdefault("spec", {})
    replacement = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    for field, value in (
        ("parallelism", 1), ("completions", 1), ("backoffLimit", 6), ("completionMode", "NonIndexed"),
        ("suspend", False), ("manualSelector", False), ("podReplacementPolicy", replacement),
    ):  # fmt: skip
        spec.setdefault(field, value)
    template = spec.setdefault("template", {})
    default_pod_spec(template.setdefault("spec", {}))
    identity = {
        "batch.kubernetes.io/controller-uid": job["metadata"]["uid"],
        "controller-uid": job["metadata"]["uid"],
        "batch.kubernetes.io/job-name": job["metadata"]["name"],
        "job-name": job["metadata"]["name"],
    }
    template.setdefault("metadata", {}).setdefault("labels", {}).update(identity)
    job["metadata"]["labels"] = {**(job["metadata"].get("labels") or {}), **identity}
    job["status"] = {}
    spec.setdefault(
        "selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": job["metadata"]["uid"]}}
    )


def prepare_update(
    resource: Resource, old: dict[str, Any], new: dict[str, Any], subresource: str
) -> dict[str, Any]:
    """The object to store: a status write changes status only, a main write everything but status."""
    if subresource == "status":
        if resource.status_keeps_meta:
            kept = {k: v for k, v in old.items() if k != "status"}
            kept["metadata"] = dict(old["metadata"])
        else:
            kept = {k: v for k, v in old.items() if k not in ("status", "metadata")}
            kept["metadata"] = new["metadata"]
            if resource.graceful:
                _keep(kept["metadata"], old["metadata"], "ownerReferences")
        if "status" in new and new["status"] is not None:
            kept["status"] = new["status"]
        elif resource.custom is None and "status" in old:
            kept["status"] = {}
        return kept
    if subresource == "binding":
        return new
    if resource.status:
        _keep(new, old, "status")
    if resource.custom is None and resource.kind == "Node":
        spec = new.get("spec") or {}
        if spec.get("unschedulable") is False:
            del spec["unschedulable"]
        if not spec.get("taints", True):
            del spec["taints"]
    return new


def _keep(new: dict[str, Any], old: dict[str, Any], field: str) -> None:
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)


def asks_differently(resource: Resource, old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether a write changed what the user asks for, which is what a generation counts."""
    if resource.custom is None:
        return bool(old.get("spec") != new.get("spec"))
    aside = {"metadata", "apiVersion", "kind"} | ({"status"} if resource.status else set())
    return {k: v for k, v in old.items() if k not in aside} != {
        k: v for k, v in new.items() if k not in aside
    }


def validate_meta(meta: dict[str, Any], old: dict[str, Any]) -> list[Cause]:
    """Rules that hold for the metadata of every kind; what is as it was before is not looked at again."""
    causes: list[Cause] = []
    for field, value_problem in (("labels", label_value_problem), ("annotations", None)):
        values = meta.get(field)
        if values is None or values == old.get(field):
            continue
        for key, value in values.items():
            if problem := label_key_problem(key if field == "labels" else key.lower()):
                causes.append(invalid_value(f"metadata.{field}", key, problem))
            if value_problem is not None and (problem := value_problem(value)):
                causes.append(invalid_value(f"metadata.{field}", value, problem))
    size = sum(len(k) + len(v) for k, v in (meta.get("annotations") or {}).items())
    if size > ANNOTATIONS_BYTES_MAX:
        causes.append(
            Cause("FieldValueTooLong", f"Too long: may not be more than {ANNOTATIONS_BYTES_MAX} bytes",
                  "metadata.annotations")
        )  # fmt: skip
    causes.extend(_reference_problems(meta))
    return causes


def _reference_problems(meta: dict[str, Any]) -> list[Cause]:
    causes: list[Cause] = []
    controllers = 0
    for index, reference in enumerate(meta.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not reference.get(field):
                path = f"metadata.ownerReferences[{index}].{field}"
                causes.append(invalid_value(path, "", "must not be empty"))
        controllers += bool(reference.get("controller"))
    if controllers > 1:
        why = "Only one reference can have Controller set to true"
        causes.append(invalid_value("metadata.ownerReferences", meta["ownerReferences"], why))
    return causes


def name_problem(resource: Resource, name: str) -> str:
    """What is wrong with an object name, or ""."""
    if resource.group == "rbac.authorization.k8s.io":
        return (
            ""
            if name not in (".", "..") and "/" not in name and "%" not in name
            else "may not contain '/' or '%'"
        )
    if len(name) > NAME_MAX:
        return f"must be no more than {NAME_MAX} characters"
    return "" if _SUBDOMAIN.match(name) else _NAME_RULE


def validate(resource: Resource, obj: dict[str, Any], old: dict[str, Any] | None) -> list[Cause]:
    """Rules of built-in kinds; custom kinds are validated by their schema."""
    match resource.kind:
        case "Node":
            return _validate_node(obj)
        case "Pod":
            return _validate_pod(obj, old)
        case "Job":
            return _validate_job(obj, old)
        case "PodDisruptionBudget":
            spec = obj.get("spec") or {}
            if "minAvailable" in spec and "maxUnavailable" in spec:
                shown = {k: spec[k] for k in ("minAvailable", "maxUnavailable")}
                return [invalid_value("spec", shown, "minAvailable and maxUnavailable cannot be both set")]
    return []


def _validate_node(node: dict[str, Any]) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate((node.get("spec") or {}).get("taints") or ()):
        # The reference names this field by a path that it does not have.
        path = f"metadata.taints[{index}]"
        key, effect = taint.get("key", ""), taint.get("effect", "")
        if problem := label_key_problem(key):
            causes.append(invalid_value(f"{path}.key", key, problem))
        if not effect:
            causes.append(required(f"{path}.effect"))
        elif effect not in _EFFECTS:
            causes.append(unsupported_value(f"{path}.effect", effect, _EFFECTS))
        if (key, effect) in seen:
            shown = f'"{taint}"'
            causes.append(Cause("FieldValueDuplicate", f"Duplicate value: {shown}", path))
        seen.add((key, effect))
    return causes


_POD_MUTABLE = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates")
_POD_FORBIDDEN = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
    "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
    "previously negative)"
)


def _validate_pod(pod: dict[str, Any], old: dict[str, Any] | None) -> list[Cause]:
    spec = pod.get("spec") or {}
    causes: list[Cause] = []
    if not spec.get("containers"):
        causes.append(required("spec.containers"))
    for index, container in enumerate(spec.get("containers") or ()):
        missing = (f for f in ("name", "image") if not container.get(f))
        causes.extend(required(f"spec.containers[{index}].{field}") for field in missing)
    if old is not None and _pod_core(spec) != _pod_core(old.get("spec") or {}):
        causes.append(forbidden_field("spec", _POD_FORBIDDEN))
    return causes


def _pod_core(spec: dict[str, Any]) -> dict[str, Any]:
    core = {k: v for k, v in spec.items() if k not in _POD_MUTABLE}
    for field in ("containers", "initContainers"):
        if field in core:
            core[field] = [{k: v for k, v in c.items() if k != "image"} for c in core[field]]
    return core


def _validate_job(job: dict[str, Any], old: dict[str, Any] | None) -> list[Cause]:
    spec = job.get("spec") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    causes: list[Cause] = []
    if not template.get("containers"):
        causes.append(required("spec.template.spec.containers"))
    if template.get("restartPolicy") not in ("Never", "OnFailure"):
        causes.append(
            Cause("FieldValueRequired", 'Required value: valid values: "OnFailure", "Never"',
                  "spec.template.spec.restartPolicy")
        )  # fmt: skip
    if old is not None and spec.get("template") != (old.get("spec") or {}).get("template"):
        causes.append(invalid_value("spec.template", spec.get("template"), "field is immutable"))
    return causes
