"""What a GPU machine says of itself when its kubelet registers: identity, capacity, conditions.

`padded=True` makes the Node as large as on a real cloud (about 15 KB: images, labels, annotations), which
is what list sizes and memory figures must be measured with.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

Json = dict[str, Any]

GPUS_PER_NODE = 8
IMAGES_PER_NODE = 40
PADDING_LABELS = 30


def timestamp() -> str:
    """Now, as Kubernetes writes it."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _new_id() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine; `boot_id` changes with each boot, `system_uuid` and `provider_id` never."""

    name: str
    gpus: int = GPUS_PER_NODE
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[Json, ...] = ()
    padded: bool = False
    boot_id: str = field(default_factory=_new_id)
    system_uuid: str = field(default_factory=_new_id)
    instance: str = field(default_factory=lambda: f"i-{uuid.uuid4().hex[:17]}")
    boots: int = 1

    @property
    def provider_id(self) -> str:
        """As a cloud provider writes it into the Node."""
        return f"aws:///test-1a/{self.instance}"

    def rebooted(self) -> Machine:
        """The same machine in its next boot."""
        return replace(self, boot_id=_new_id(), boots=self.boots + 1)


def condition(type_: str, status: str, reason: str = "", message: str = "") -> Json:
    """A condition that begins now."""
    now = timestamp()
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }


def node_object(machine: Machine) -> Json:
    """The Node as created; its status is written separately."""
    labels = {
        "kubernetes.io/hostname": machine.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "topology.kubernetes.io/zone": "test-1a",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": str(machine.gpus),
    } | machine.labels
    annotations = {"node.alpha.kubernetes.io/ttl": "0"}
    if machine.padded:
        labels |= {
            f"nvidia.com/feature-{i:02d}.present": "a-value-as-long-as-usual" for i in range(PADDING_LABELS)
        }
        annotations["csi.volume.kubernetes.io/nodeid"] = "{" + "x" * 900 + "}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": machine.name, "labels": labels, "annotations": annotations},
        "spec": {"providerID": machine.provider_id, "taints": list(machine.taints)},
    }


def node_status(machine: Machine) -> Json:
    """The first full status: Ready, with GPUs and room for pods."""
    resources = {
        "cpu": "192",
        "memory": "2Ti",
        "pods": "110",
        "ephemeral-storage": "500Gi",
        "nvidia.com/gpu": str(machine.gpus),
    }
    status: Json = {
        "capacity": resources,
        "allocatable": resources,
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID"),
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ],
        "addresses": [{"type": "Hostname", "address": machine.name}],
        "nodeInfo": {
            "machineID": machine.system_uuid.replace("-", ""),
            "systemUUID": machine.system_uuid,
            "bootID": machine.boot_id,
            "kernelVersion": "6.12.0",
            "osImage": "Test Linux",
            "containerRuntimeVersion": "containerd://2.1.0",
            "kubeletVersion": "v1.37.2",
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }
    if machine.padded:
        status["images"] = [_image(i) for i in range(IMAGES_PER_NODE)]
    return status


def _image(number: int) -> Json:
    repository = f"registry.example/team-{number % 7}/training-image-{number:03d}"
    return {
        "names": [f"{repository}@sha256:{number:064x}", f"{repository}:release-{number:03d}"],
        "sizeBytes": 1_000_000_000 + number,
    }
