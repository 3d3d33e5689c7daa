"""Kubernetes objects, cut down to the fields we read.

Unknown fields are dropped while decoding, which is what keeps 10,000 nodes small in memory.
Objects are read through these shapes and written as patches, never as whole objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta


class Resource(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """Base of every shape in this module: camelCase on the wire, defaults left out."""


class OwnerReference(Resource, frozen=True, kw_only=True):
    """Who owns an object."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class ObjectMeta(Resource, frozen=True, kw_only=True):
    """Metadata of any object; `resource_version` is opaque."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


class KubernetesObject(Resource, frozen=True, kw_only=True):
    """Anything with metadata."""

    metadata: ObjectMeta = ObjectMeta()


class Condition(Resource, frozen=True, kw_only=True):
    """One entry of a conditions list; `type` is its key."""

    type: Annotated[str, Meta(description="Key of this list")]
    status: Annotated[str, Meta(description="True, False or Unknown")] = "Unknown"
    reason: Annotated[str, Meta(description="PascalCase reason")] = ""
    message: Annotated[str, Meta(description="One sentence for people")] = ""
    last_transition_time: Annotated[datetime | None, Meta(description="When status last changed")] = None
    last_heartbeat_time: Annotated[datetime | None, Meta(description="When it was last confirmed")] = None


class Taint(Resource, frozen=True, kw_only=True):
    """A node taint; (key, effect) is its key."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(Resource, frozen=True, kw_only=True):
    """`unschedulable` is the cordon."""

    unschedulable: bool = False
    provider_id: str = msgspec.field(name="providerID", default="")
    taints: tuple[Taint, ...] = ()


class NodeSystemInfo(Resource, frozen=True, kw_only=True):
    """What the kubelet says of the machine; `boot_id` changes with each boot, late."""

    boot_id: str = msgspec.field(name="bootID", default="")
    system_uuid: str = msgspec.field(name="systemUUID", default="")


class NodeStatus(Resource, frozen=True, kw_only=True):
    """Conditions and machine identity."""

    conditions: tuple[Condition, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()


class Node(KubernetesObject, frozen=True, kw_only=True):
    """A machine of the cluster."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    def condition(self, type_: str) -> Condition | None:
        """The condition of that type, or None where it was never set."""
        return next((c for c in self.status.conditions if c.type == type_), None)


class ManagedFieldsEntry(Resource, frozen=True, kw_only=True):
    """Who last wrote which fields; `fields_v1` maps `f:name` to nested maps."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    fields_v1: dict[str, Any] = msgspec.field(name="fieldsV1", default_factory=dict)


class OwnedMeta(ObjectMeta, frozen=True):
    """Metadata with field ownership, which caches leave out for its size."""

    managed_fields: tuple[ManagedFieldsEntry, ...] = ()


class OwnedNode(Node, frozen=True):
    """A node read for one decision that depends on who owns its fields."""

    metadata: OwnedMeta = OwnedMeta()


class PodSpec(Resource, frozen=True, kw_only=True):
    """Where a pod runs."""

    node_name: str = ""


class ContainerStateTerminated(Resource, frozen=True, kw_only=True):
    """How a container ended; the message is what it wrote to its termination log."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(Resource, frozen=True, kw_only=True):
    """Only the end of a container is read."""

    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Resource, frozen=True, kw_only=True):
    """One container of a pod."""

    name: str = ""
    state: ContainerState = ContainerState()


class PodStatus(Resource, frozen=True, kw_only=True):
    """Phase and conditions of a pod."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(KubernetesObject, frozen=True, kw_only=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class LeaseSpec(Resource, frozen=True, kw_only=True):
    """Who holds a lease; times are the writer's wall clock and are shown, never compared."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int = 0


class Lease(KubernetesObject, frozen=True, kw_only=True):
    """coordination.k8s.io/v1 Lease."""

    spec: LeaseSpec = LeaseSpec()


class JobStatus(Resource, frozen=True, kw_only=True):
    """Counts and conditions of a Job."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[Condition, ...] = ()


class JobSpec(Resource, frozen=True, kw_only=True):
    """The pod template is written as plain data and never read back."""

    suspend: bool = False


class Job(KubernetesObject, frozen=True, kw_only=True):
    """batch/v1 Job."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class ObjectReference(Resource, frozen=True, kw_only=True):
    """What an Event is about."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class EventSource(Resource, frozen=True, kw_only=True):
    """Which component wrote an Event."""

    component: str = ""
    host: str = ""


class Event(KubernetesObject, frozen=True, kw_only=True):
    """core/v1 Event."""

    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = "Normal"
    source: EventSource = EventSource()
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    count: int = 1


T = TypeVar("T", bound=KubernetesObject)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """Where a kind of object lives in the API and the shape it is read through."""

    api_version: str
    name: str
    plural: str
    namespaced: bool
    shape: type[T]


NODES = Kind("v1", "Node", "nodes", False, Node)
OWNED_NODES = Kind("v1", "Node", "nodes", False, OwnedNode)
PODS = Kind("v1", "Pod", "pods", True, Pod)
EVENTS = Kind("v1", "Event", "events", True, Event)
LEASES = Kind("coordination.k8s.io/v1", "Lease", "leases", True, Lease)
JOBS = Kind("batch/v1", "Job", "jobs", True, Job)
