"""The repair Job: the only thing that changes a machine, once for each intent.

Its name comes from the intent, so a second create is refused; the program inside compares the boot id
before it acts, which is what makes a reboot happen once even if a kubelet starts the pod again. An
intent is called off by occupying its name with a suspended Job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import outlast
from outlast.model.cluster import JOBS
from outlast.model.decision import RemoveRepair, StartRepair, StopRepair
from outlast.model.names import INCIDENT_LABEL, REPAIR_LABEL, SYSTEM_NAMESPACE
from outlast.ports.cluster import AlreadyExists, Cluster, NotFound, Patch, PatchType

LABEL_MAX = 63


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """How repair pods are made."""

    image: str = f"outlast:{outlast.__version__}"
    """The controller's own image; the manifests say which by OUTLAST_REPAIR_IMAGE."""
    namespace: str = SYSTEM_NAMESPACE
    service_account: str = "outlast-repair"
    command: tuple[str, ...] = ("outlast", "act", "reboot")
    priority_class: str = "system-node-critical"
    """For a drained node only: under pressure a kubelet admits nothing less."""
    pull_secrets: tuple[str, ...] = field(default=())


def label_value(text: str) -> str:
    """A text as a label value: itself where it fits, else its beginning and a digest."""
    if len(text) <= LABEL_MAX:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{text[: LABEL_MAX - 13].rstrip('-._')}-{digest}"


def manifest(act: StartRepair | StopRepair, options: RepairOptions, *, suspended: bool) -> dict[str, Any]:
    """The Job as plain data."""
    labels = {
        REPAIR_LABEL: act.job_name,
        INCIDENT_LABEL: label_value(act.incident),
        "app.kubernetes.io/name": "outlast",
        "app.kubernetes.io/component": "repair",
    }
    notes = {"outlast.dev/incident": act.incident, "outlast.dev/intent": act.intent_id}
    critical = isinstance(act, StartRepair) and act.critical
    return {
        "metadata": {
            "name": act.job_name,
            "namespace": options.namespace,
            "labels": labels,
            "annotations": notes,
        },
        "spec": {
            "suspend": suspended,
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "template": {
                "metadata": {"labels": labels, "annotations": notes},
                "spec": _pod_spec(act, options, critical=critical),
            },
        },
    }


def _pod_spec(act: StartRepair | StopRepair, options: RepairOptions, *, critical: bool) -> dict[str, Any]:
    this_node = {"key": "metadata.name", "operator": "In", "values": [act.node]}
    spec: dict[str, Any] = {
        "serviceAccountName": options.service_account,
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "hostPID": True,
        "tolerations": [{"operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchFields": [this_node]}]
                }
            }
        },
        "containers": [
            {
                "name": "repair",
                "image": options.image,
                "command": [*options.command, "--intent", act.intent_id, "--if-boot-id", act.boot_id],
                "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}, "limits": {"memory": "128Mi"}},
                "securityContext": {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True},
            }
        ],
    }
    if critical and options.priority_class:
        spec["priorityClassName"] = options.priority_class
    if options.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    return spec


async def start(cluster: Cluster, act: StartRepair, options: RepairOptions) -> bool:
    """Create the Job of an intent; False where it exists already. Raises ClusterError."""
    try:
        await cluster.create(JOBS, manifest(act, options, suspended=False), options.namespace)
    except AlreadyExists:
        return False
    return True


async def stop(cluster: Cluster, act: StopRepair, options: RepairOptions, guard: Callable[[], None]) -> None:
    """Make sure that the Job of an intent does not start from now on. Raises ClusterError."""
    suspend = Patch(PatchType.MERGE, {"spec": {"suspend": True}})
    try:
        await cluster.patch(JOBS, act.job_name, suspend, options.namespace)
    except NotFound:
        guard()
        try:
            await cluster.create(JOBS, manifest(act, options, suspended=True), options.namespace)
        except AlreadyExists:
            guard()
            await cluster.patch(JOBS, act.job_name, suspend, options.namespace)


async def remove(cluster: Cluster, act: RemoveRepair, options: RepairOptions) -> None:
    """Delete the Job of an intent whose outcome is recorded. Raises ClusterError."""
    try:
        await cluster.delete(JOBS, act.job_name, options.namespace)
    except NotFound:
        return
