"""What is wrong with a node: faults with evidence, one verdict per subsystem, and the NodeHealth object.

Verdicts have three values. Healthy needs a completed check in this boot, Faulty needs evidence,
everything else is Unknown; Unknown may block new work and never drains.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from outlast.model.cluster import Kind, KubernetesObject, Resource
from outlast.model.names import (
    API_VERSION,
    GPU_FABRIC_READY,
    GPU_MONITOR_READY,
    GPU_READY,
    HOST_READY,
    RDMA_READY,
)

FAULTS_MAX: Final = 16
"""Open faults an object carries; more are counted in `faultsDropped`."""
EVIDENCE_MAX: Final = 8
EVIDENCE_TEXT_MAX: Final = 256
GPUS_MAX: Final = 64
REASON_MAX: Final = 128
MESSAGE_MAX: Final = 1024

ShortText = Annotated[str, Meta(max_length=REASON_MAX)]
LongText = Annotated[str, Meta(max_length=MESSAGE_MAX)]


class Verdict(StrEnum):
    """The three values."""

    HEALTHY = "Healthy"
    FAULTY = "Faulty"
    UNKNOWN = "Unknown"


class Subsystem(StrEnum):
    """What a verdict is about; each is published as one node condition."""

    GPU = "GPU"
    FABRIC = "Fabric"
    RDMA = "RDMA"
    MONITOR = "Monitor"
    HOST = "Host"
    """The machine around the GPUs: its disks, its memory, its kernel."""

    @property
    def condition_type(self) -> str:
        """The node condition that publishes this subsystem's verdict."""
        return _CONDITION_TYPES[self]


_CONDITION_TYPES = {
    Subsystem.GPU: GPU_READY,
    Subsystem.FABRIC: GPU_FABRIC_READY,
    Subsystem.RDMA: RDMA_READY,
    Subsystem.MONITOR: GPU_MONITOR_READY,
    Subsystem.HOST: HOST_READY,
}


class FaultClass(StrEnum):
    """What cures a fault; a policy has one ladder per class."""

    TRANSIENT = "Transient"
    APPLICATION = "Application"
    RESET_CURES = "ResetCures"
    REBOOT_CURES = "RebootCures"
    HARDWARE_GONE = "HardwareGone"
    MONITOR_HUNG = "MonitorHung"


class Scope(StrEnum):
    """How much of the machine a fault covers."""

    INSTANCE = "Instance"
    GPU = "GPU"
    DOMAIN = "Domain"
    NODE = "Node"


class FaultState(StrEnum):
    """Open: stands. AwaitingProof: from an earlier boot, or acted on; cleared only by a positive check."""

    OPEN = "Open"
    AWAITING_PROOF = "AwaitingProof"


class GpuIdentity(Resource, frozen=True, kw_only=True):
    """Who a GPU is. History is kept by serial; the index moves and is for people only."""

    pci_address: Annotated[ShortText, Meta(description="PCI address, lower case, dddd:bb:dd.f")] = ""
    uuid: Annotated[ShortText, Meta(description="GPU UUID as NVML gives it")] = ""
    serial: Annotated[ShortText, Meta(description="Board serial; empty where the board has none")] = ""
    index: Annotated[int | None, Meta(description="NVML index at the time, for people only")] = None
    instance: Annotated[int | None, Meta(description="MIG GPU instance id")] = None


class Evidence(Resource, frozen=True, kw_only=True):
    """One thing that was seen."""

    at: Annotated[datetime, Meta(description="Wall time of the observation")]
    source: Annotated[ShortText, Meta(description="kernel log, NVML, PCI, RDMA, ...")]
    text: Annotated[str, Meta(max_length=EVIDENCE_TEXT_MAX, description="What was seen, cut to size")]


class Fault(Resource, frozen=True, kw_only=True):
    """A finding that stands."""

    id: Annotated[ShortText, Meta(description="Stable name of this fault on this node")]
    code: Annotated[ShortText, Meta(description="Catalogue entry, such as xid/79 or efa/missing")]
    fault_class: Annotated[FaultClass, Meta(description="What cures it")] = msgspec.field(name="class")
    subsystem: Annotated[Subsystem, Meta(description="The verdict it makes Faulty")]
    scope: Annotated[Scope, Meta(description="How much of the machine it covers")]
    summary: Annotated[LongText, Meta(description="One sentence for people")]
    opened_at: Annotated[datetime, Meta(description="Wall time of the first evidence")]
    last_seen_at: Annotated[datetime, Meta(description="Wall time of the newest evidence")]
    boot_id: Annotated[ShortText, Meta(description="The boot in which it was seen")] = msgspec.field(
        name="bootID", default=""
    )
    state: Annotated[FaultState, Meta(description="Open, or waiting for the proof that clears it")] = (
        FaultState.OPEN
    )
    gpu: Annotated[GpuIdentity | None, Meta(description="The GPU, where it is about one")] = None
    device: Annotated[ShortText, Meta(description="Another device, such as an RDMA interface")] = ""
    clears_by: Annotated[LongText, Meta(description="The proof that ends it, one sentence")] = ""
    second_witness: Annotated[
        bool, Meta(description="A hung tool only: another source confirms the driver is wedged")
    ] = False
    evidence: Annotated[
        tuple[Evidence, ...], Meta(max_length=EVIDENCE_MAX, description="Newest last; the first is kept")
    ] = ()


class SubsystemVerdict(Resource, frozen=True, kw_only=True):
    """One subsystem's verdict."""

    subsystem: Annotated[Subsystem, Meta(description="Key of this list")]
    verdict: Annotated[Verdict, Meta(description="Healthy, Faulty or Unknown")]
    reason: Annotated[ShortText, Meta(description="PascalCase reason, see docs/reasons.md")]
    message: Annotated[LongText, Meta(description="One sentence for people")] = ""
    since: Annotated[datetime | None, Meta(description="When the verdict last flipped")] = None


class Gpu(Resource, frozen=True, kw_only=True):
    """A GPU of the inventory."""

    identity: Annotated[GpuIdentity, Meta(description="Who it is")]
    model: Annotated[ShortText, Meta(description="Product name")] = ""
    present: Annotated[bool, Meta(description="Enumerates on PCI and answers NVML")] = True


class QuiesceStatus(Resource, frozen=True, kw_only=True):
    """The answer to a request to let go of the GPUs."""

    request: Annotated[ShortText, Meta(description="id of the request that this answers")]
    by: Annotated[ShortText, Meta(description="Who asked")]
    since: Annotated[datetime, Meta(description="When the agent took the request up")]
    until: Annotated[datetime, Meta(description="When it takes the GPUs again by itself, at the latest")]
    released: Annotated[bool, Meta(description="No process of this agent holds a GPU")] = False
    message: Annotated[LongText, Meta(description="Why not, where it is not")] = ""


class NodeHealthStatus(Resource, frozen=True, kw_only=True):
    """What the agent of this node says. Written only when something changed."""

    node_uid: Annotated[ShortText, Meta(description="uid of the Node this is about")] = msgspec.field(
        name="nodeUID", default=""
    )
    boot_id: Annotated[ShortText, Meta(description="The boot the agent runs in")] = msgspec.field(
        name="bootID", default=""
    )
    agent_version: Annotated[ShortText, Meta(description="Version of outlast on the node")] = ""
    started_at: Annotated[datetime | None, Meta(description="Start of this agent process")] = None
    checked_at: Annotated[
        datetime | None,
        Meta(description="Last *completed* full check in this boot; absent until there was one"),
    ] = None
    state: Annotated[ShortText, Meta(description="Healthy, Faulty or Unknown over all subsystems")] = ""
    gpus_found: Annotated[int, Meta(description="GPUs that answer")] = 0
    gpus_expected: Annotated[int, Meta(description="GPUs this machine should have")] = 0
    gpu_count: Annotated[ShortText, Meta(description="found/expected, for kubectl")] = ""
    rdma_found: Annotated[int, Meta(description="RDMA devices present")] = 0
    rdma_expected: Annotated[int, Meta(description="RDMA devices this machine should have")] = 0
    gpus: Annotated[tuple[Gpu, ...], Meta(max_length=GPUS_MAX, description="Inventory")] = ()
    verdicts: Annotated[tuple[SubsystemVerdict, ...], Meta(max_length=8, description="One a subsystem")] = ()
    faults: Annotated[
        tuple[Fault, ...], Meta(max_length=FAULTS_MAX, description="Open faults, worst first")
    ] = ()
    faults_dropped: Annotated[int, Meta(description="Open faults beyond the limit of this list")] = 0

    quiesce: Annotated[
        QuiesceStatus | None, Meta(description="The agent keeps away from the GPUs, because it was asked to")
    ] = None

    def verdict(self, subsystem: Subsystem) -> SubsystemVerdict | None:
        """That subsystem's verdict, or None before the first check."""
        return next((v for v in self.verdicts if v.subsystem is subsystem), None)


class NodeHealth(KubernetesObject, frozen=True, kw_only=True):
    """Is this node fit? One object a node, named as the node, written only by that node's agent."""

    status: NodeHealthStatus = NodeHealthStatus()


NODE_HEALTHS = Kind(API_VERSION, "NodeHealth", "nodehealths", False, NodeHealth)
