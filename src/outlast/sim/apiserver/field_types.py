"""Field types of built-in kinds: wrong types are refused, unknown fields are dropped and told.

The reference decodes into typed structs; here a table per kind says as much as clients get wrong.
A level that ends in OPEN is not listed completely: its unknown fields are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OPEN = "..."
_STRINGS = {"*": "string"}
_REFERENCE = {
    "apiVersion": "string", "kind": "string", "name": "string", "uid": "string", "controller": "bool",
    "blockOwnerDeletion": "bool",
}  # fmt: skip
_META = {
    "name": "string", "generateName": "string", "namespace": "string", "selfLink": "string", "uid": "string",
    "resourceVersion": "string", "generation": "int64", "creationTimestamp": "string",
    "deletionTimestamp": "string", "deletionGracePeriodSeconds": "int64", "labels": _STRINGS,
    "annotations": _STRINGS, "ownerReferences": [_REFERENCE], "finalizers": ["string"],
    "managedFields": "any",
}  # fmt: skip
_SELECTOR = {
    "matchLabels": _STRINGS,
    "matchExpressions": [{"key": "string", "operator": "string", "values": ["string"]}],
}
_CONDITION = {
    "type": "string", "status": "string", "reason": "string", "message": "string",
    "lastHeartbeatTime": "string", "lastTransitionTime": "string", "lastProbeTime": "string",
    "lastUpdateTime": "string", "observedGeneration": "int64",
}  # fmt: skip
_STATUS = {"conditions": [_CONDITION], OPEN: "any"}
_CONTAINER = {
    "name": "string", "image": "string", "command": ["string"], "args": ["string"], "workingDir": "string",
    "env": [{"name": "string", "value": "string", "valueFrom": "any"}], OPEN: "any",
}  # fmt: skip
_POD_SPEC = {
    "nodeName": "string", "restartPolicy": "string", "terminationGracePeriodSeconds": "int64",
    "activeDeadlineSeconds": "int64", "hostNetwork": "bool", "hostPID": "bool", "schedulerName": "string",
    "priorityClassName": "string", "nodeSelector": _STRINGS, "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "tolerations": [
        {"key": "string", "operator": "string", "value": "string", "effect": "string",
         "tolerationSeconds": "int64"}
    ],
    OPEN: "any",
}  # fmt: skip
_TEMPLATE = {"metadata": _META, "spec": _POD_SPEC}
_KINDS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("", "Node"): {
        "spec": {
            "unschedulable": "bool", "providerID": "string", "podCIDR": "string", "podCIDRs": ["string"],
            "externalID": "string", "configSource": "any",
            "taints": [{"key": "string", "value": "string", "effect": "string", "timeAdded": "string"}],
        },
        "status": {**_STATUS, "addresses": [{"type": "string", "address": "string"}]},
    },
    ("", "Pod"): {"spec": _POD_SPEC, "status": {**_STATUS, "phase": "string", "podIP": "string"}},
    ("", "ConfigMap"): {"data": _STRINGS, "binaryData": _STRINGS, "immutable": "bool"},
    ("", "Event"): {
        "involvedObject": {
            "apiVersion": "string", "kind": "string", "name": "string", "namespace": "string",
            "uid": "string", "resourceVersion": "string", "fieldPath": "string",
        },
        "related": "any", "reason": "string", "message": "string", "type": "string", "action": "string",
        "source": {"component": "string", "host": "string"}, "firstTimestamp": "string",
        "lastTimestamp": "string", "eventTime": "string", "count": "int32", "series": "any",
        "reportingComponent": "string", "reportingInstance": "string",
    },
    ("coordination.k8s.io", "Lease"): {
        "spec": {
            "holderIdentity": "string", "leaseDurationSeconds": "int32", "acquireTime": "string",
            "renewTime": "string", "leaseTransitions": "int32", "strategy": "string",
            "preferredHolder": "string",
        },
    },
    ("policy", "PodDisruptionBudget"): {
        "spec": {
            "minAvailable": "any", "maxUnavailable": "any", "selector": _SELECTOR,
            "unhealthyPodEvictionPolicy": "string",
        },
        "status": _STATUS,
    },
    ("batch", "Job"): {
        "spec": {
            "parallelism": "int32", "completions": "int32", "backoffLimit": "int32", "suspend": "bool",
            "ttlSecondsAfterFinished": "int32", "activeDeadlineSeconds": "int64", "completionMode": "string",
            "selector": _SELECTOR, "template": _TEMPLATE, OPEN: "any",
        },
        "status": _STATUS,
    },
}  # fmt: skip
_WORKLOAD = {
    "spec": {
        "replicas": "int32", "selector": _SELECTOR, "template": _TEMPLATE,
        "strategy": {OPEN: "any"}, OPEN: "any",
    },
    "status": _STATUS,
}  # fmt: skip
_ANY_KIND = {"spec": {OPEN: "any"}, "status": {OPEN: "any"}, OPEN: "any"}
_GO = {"string": str, "bool": bool, "int32": int, "int64": int}


class WrongType(Exception):
    """A value that does not fit its field; `str()` is worded as a Go decoder words it."""


def check(group: str, kind: str, obj: dict[str, Any]) -> list[str]:
    """Drop unknown fields of an object in place; their paths. Raises WrongType."""
    unknown: list[str] = []
    table = _KINDS.get((group, kind)) or (_WORKLOAD if group == "apps" else _ANY_KIND)
    everything = {"apiVersion": "any", "kind": "any", "metadata": _META, **table}
    _walk(obj, everything, "", kind, unknown)
    return unknown


def _walk(value: Any, wanted: Any, path: str, kind: str, unknown: list[str]) -> None:
    if value is None or wanted == "any":
        return
    if isinstance(wanted, str):
        expected = _GO[wanted]
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            raise WrongType(_words(value, path, kind, wanted))
    elif isinstance(wanted, list):
        if not isinstance(value, list):
            raise WrongType(_words(value, path, kind, "list"))
        for index, item in enumerate(value):
            _walk(item, wanted[0], f"{path}[{index}]", kind, unknown)
    elif not isinstance(value, dict):
        raise WrongType(_words(value, path, kind, "object"))
    else:
        for name in list(value):
            where = f"{path}.{name}" if path else name
            child = wanted.get(name, wanted.get("*", wanted.get(OPEN)))
            if child is None:
                unknown.append(where)
                del value[name]
            elif value[name] is None:
                # To a decoder of typed structs null is the same as nothing.
                if wanted is _STRINGS:
                    value[name] = ""
                else:
                    del value[name]
            else:
                _walk(value[name], child, where, kind, unknown)


def _words(value: Any, path: str, kind: str, wanted: str) -> str:
    names: tuple[tuple[type, str], ...] = ((bool, "bool"), (str, "string"), (dict, "object"), (list, "array"))
    given = next((name for type_, name in names if isinstance(value, type_)), "number")
    owner = {"metadata": "ObjectMeta", "spec": f"{kind}Spec", "status": f"{kind}Status"}
    plain = path.partition("[")[0]
    if plain.startswith(("metadata.labels", "metadata.annotations")):
        plain = ".".join(plain.split(".")[:2])
    struct = owner.get(plain.split(".", 1)[0], kind)
    return f"json: cannot unmarshal {given} into Go struct field {struct}.{plain} of type {wanted}"
