"""The Kubernetes objects of the simulated cluster, as plain data: nodes, jobs, a service, daemons."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple

from outlast.model.names import API_VERSION, CHECKPOINT_CAPABLE_LABEL, SYSTEM_NAMESPACE
from outlast.sim.apiserver.store import timestamp
from outlast.sim.world.machine import Machine
from outlast.sim.world.scenario import Shape

RACK_LABEL: Final = "example.com/rack"
POOL_LABEL: Final = "karpenter.sh/nodepool"
TRAINING: Final = "training"
INFERENCE: Final = "inference"
INFERENCE_APP: Final = "chat"
POLICY_NAME: Final = "gpu-nodes"
NODE_LEASES: Final = "kube-node-lease"
_EVERYTHING: Final = [{"operator": "Exists"}]

DAEMONS: Final = (
    ("kube-system", "nvidia-device-plugin"),
    ("kube-system", "aws-efa-k8s-device-plugin"),
    (SYSTEM_NAMESPACE, "outlast-agent"),
)


class Place(NamedTuple):
    """Where a machine stands and what it is meant for; a replacement takes both over."""

    rack: str
    pool: str


def node(machine: Machine, shape: Shape, place: Place, now: datetime) -> dict[str, Any]:
    """A node that has just registered."""
    resources = {
        "cpu": "192",
        "memory": "2048Gi",
        "pods": "110",
        "nvidia.com/gpu": str(shape.gpus),
        "vpc.amazonaws.com/efa": str(shape.efa),
    }
    return {
        "metadata": {
            "name": machine.name,
            "labels": {
                "kubernetes.io/hostname": machine.name,
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": shape.instance_type,
                "topology.kubernetes.io/region": "us-east-1",
                "topology.kubernetes.io/zone": "us-east-1d",
                POOL_LABEL: place.pool,
                "nvidia.com/gpu.present": "true",
                RACK_LABEL: place.rack,
            },
        },
        "spec": {"providerID": f"aws:///us-east-1d/{machine.instance_id}"},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [{"type": "Hostname", "address": machine.name}],
            "conditions": [ready(now)],
            "nodeInfo": {
                "bootID": machine.boot_id,
                "systemUUID": machine.system_uuid,
                "machineID": machine.system_uuid.replace("-", ""),
                "kernelVersion": "6.8.0-1021-aws",
                "osImage": "Ubuntu 24.04.2 LTS",
                "containerRuntimeVersion": "containerd://2.0.5",
                "kubeletVersion": "v1.34.1",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


def node_lease(name: str, node_uid: str, now: datetime) -> dict[str, Any]:
    """The Lease by which a kubelet says that it lives; it goes with its Node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}
    return {
        "metadata": {"name": name, "namespace": NODE_LEASES, "ownerReferences": [owner]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micro_time(now)},
    }


def micro_time(now: datetime) -> str:
    """A moment as Leases write it."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def ready(now: datetime) -> dict[str, Any]:
    """The Ready condition of a kubelet that is well."""
    at = timestamp(now)
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": at,
        "lastTransitionTime": at,
    }


def unknown(now: datetime) -> dict[str, Any]:
    """The Ready condition that the control plane writes when a kubelet is silent."""
    at = timestamp(now)
    return {
        "type": "Ready",
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
        "lastTransitionTime": at,
    }


def gang(name: str, machines: int, gpus: int) -> dict[str, Any]:
    """A training job: one pod a machine, all its GPUs, answers checkpoint requests."""
    return {
        "metadata": {"name": name},
        "spec": {
            "completions": machines,
            "parallelism": machines,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
            },
            "template": {
                "metadata": {"labels": {"app": name, CHECKPOINT_CAPABLE_LABEL: "on-request"}},
                "spec": {
                    "nodeSelector": {POOL_LABEL: TRAINING},
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 60,
                    "containers": [_container("train", gpus)],
                },
            },
        },
    }


def deployment(shape: Shape) -> dict[str, Any]:
    """The inference service."""
    labels = {"app": INFERENCE_APP}
    return {
        "metadata": {"name": INFERENCE_APP, "labels": labels},
        "spec": {
            "replicas": shape.inference_pods,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {POOL_LABEL: INFERENCE},
                    "containers": [_container("serve", shape.inference_gpus)],
                },
            },
        },
    }


def disruption_budget(shape: Shape) -> dict[str, Any]:
    """How many of the inference pods have to stay up."""
    return {
        "metadata": {"name": INFERENCE_APP},
        "spec": {
            "minAvailable": shape.inference_available,
            "selector": {"matchLabels": {"app": INFERENCE_APP}},
        },
    }


def daemon_set(name: str) -> dict[str, Any]:
    """Something every node runs."""
    labels = {"app": name}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"tolerations": _EVERYTHING, "containers": [_container("main", 0)]},
            },
        },
    }


def policy() -> dict[str, Any]:
    """What the demo lets outlast do."""
    return {
        "apiVersion": API_VERSION,
        "kind": "RemediationPolicy",
        "metadata": {"name": POLICY_NAME},
        "spec": {
            "mode": "Enforce",
            "budgets": {
                "maxUnavailable": 8,
                "maxUnavailablePercent": 20,
                "maxRepairsInFlight": 4,
                "maxRepairsPerHour": 30,
                "failureDomainLabel": RACK_LABEL,
            },
            "storm": {"nodes": 5, "windowSeconds": 300},
            "probationSeconds": 120,
            "agentSilentSeconds": 600,
        },
    }


def _container(name: str, gpus: int) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    return {"name": name, "image": f"registry.example.com/{name}:1", "resources": resources}
