"""Names that other people's tools see: API group, condition types, annotations, labels.

They are a contract: dashboards, policies and shell scripts match on them, so they only ever grow.
"""

from typing import Final

GROUP: Final = "outlast.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

SYSTEM_NAMESPACE: Final = "outlast-system"
CONTROLLER_LEASE: Final = "outlast-controller"
AGENT_LEASE_PREFIX: Final = "outlast-agent-"
CONTROLLER_FIELD_MANAGER: Final = "outlast-controller"
AGENT_FIELD_MANAGER: Final = "outlast-agent"

# Node conditions the agent owns; True is good.
GPU_READY: Final = "GPUReady"
GPU_FABRIC_READY: Final = "GPUFabricReady"
RDMA_READY: Final = "RDMAReady"
GPU_MONITOR_READY: Final = "GPUMonitorReady"
HOST_READY: Final = "HostReady"
AGENT_CONDITIONS: Final = (GPU_READY, GPU_FABRIC_READY, RDMA_READY, GPU_MONITOR_READY, HOST_READY)

# Karpenter's trigger on AWS; the controller owns it and writes False only as the last rung.
ACCELERATED_HARDWARE_READY: Final = "AcceleratedHardwareReady"

# On Nodes.
CORDON_ANNOTATION: Final = "outlast.dev/cordon"
"""JSON: the write-ahead intent of a block, and its outcome, in one."""
HOLD_ANNOTATION: Final = "outlast.dev/hold"
"""Set by a human, value = reason: whatever state the node is in, leave it there."""
MANAGED_ANNOTATION: Final = "outlast.dev/managed"
"""Set to "false" by a human: outlast watches this node and does nothing to it."""
QUIESCE_ANNOTATION: Final = "outlast.dev/quiesce"
"""JSON: somebody needs the GPUs free of clients for a while; the agent lets go of them."""
DO_NOT_DISRUPT_ANNOTATION: Final = "karpenter.sh/do-not-disrupt"

# On Incidents.
CANCEL_ANNOTATION: Final = "outlast.dev/cancel"
"""Set by a human, value = reason: end the incident and give the node back."""

# On Pods.
CHECKPOINT_REQUEST_ANNOTATION: Final = "outlast.dev/checkpoint-request"
"""Value = id of the request: please write a checkpoint, the machine is going away."""
CHECKPOINT_DONE_ANNOTATION: Final = "outlast.dev/checkpoint-done"
"""Set by the job: the id of the request whose checkpoint is durable."""
CHECKPOINT_CAPABLE_LABEL: Final = "outlast.dev/checkpoint"
"""Label with value "on-request" on pods that answer checkpoint requests."""

# On repair Jobs and their pods.
REPAIR_LABEL: Final = "outlast.dev/repair"
INCIDENT_LABEL: Final = "outlast.dev/incident"
