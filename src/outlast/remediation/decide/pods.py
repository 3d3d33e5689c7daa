"""Which pods of a node have to move, and which can save their progress first.

What the machine needs to run (DaemonSets, mirror pods, our own repair pods) stays; what has ended or is
ending needs no eviction, but an ending pod is still there until it is gone.
"""

from __future__ import annotations

from outlast.model.cluster import Pod
from outlast.model.decision import PodRef
from outlast.model.names import (
    CHECKPOINT_CAPABLE_LABEL,
    CHECKPOINT_DONE_ANNOTATION,
    CHECKPOINT_REQUEST_ANNOTATION,
    REPAIR_LABEL,
)

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"


def has_ended(pod: Pod) -> bool:
    """Whether no container of the pod runs any more."""
    return pod.status.phase in ("Succeeded", "Failed")


def is_repair(pod: Pod, namespace: str) -> bool:
    """Whether a pod is one of ours: anybody may use our label, but not in our namespace."""
    return pod.metadata.namespace == namespace and REPAIR_LABEL in pod.metadata.labels


def stays(pod: Pod, namespace: str) -> bool:
    """Whether a drain leaves the pod alone for what it is; repair pods run in `namespace`."""
    if MIRROR_ANNOTATION in pod.metadata.annotations or is_repair(pod, namespace):
        return True
    return any(owner.kind == "DaemonSet" and owner.controller for owner in pod.metadata.owner_references)


def to_move(pods: tuple[Pod, ...], namespace: str) -> tuple[Pod, ...]:
    """Pods that keep a node from being drained, ending ones included."""
    return tuple(pod for pod in pods if not stays(pod, namespace) and not has_ended(pod))


def to_evict(pods: tuple[Pod, ...], namespace: str) -> tuple[Pod, ...]:
    """Pods that still have to be asked to go."""
    return tuple(pod for pod in to_move(pods, namespace) if pod.metadata.deletion_timestamp is None)


def can_checkpoint(pods: tuple[Pod, ...], namespace: str) -> tuple[Pod, ...]:
    """Running pods that answer checkpoint requests."""
    return tuple(
        pod
        for pod in to_evict(pods, namespace)
        if pod.metadata.labels.get(CHECKPOINT_CAPABLE_LABEL) == "on-request" and pod.status.phase == "Running"
    )


def not_asked(pods: tuple[Pod, ...], namespace: str, request_id: str) -> tuple[Pod, ...]:
    """Capable pods that do not carry this request yet."""
    return tuple(
        pod
        for pod in can_checkpoint(pods, namespace)
        if pod.metadata.annotations.get(CHECKPOINT_REQUEST_ANNOTATION) != request_id
    )


def not_answered(pods: tuple[Pod, ...], namespace: str, request_id: str) -> tuple[Pod, ...]:
    """Capable pods whose checkpoint for this request is not durable yet."""
    return tuple(
        pod
        for pod in can_checkpoint(pods, namespace)
        if pod.metadata.annotations.get(CHECKPOINT_DONE_ANNOTATION) != request_id
    )


def reference(pod: Pod) -> PodRef:
    """This very pod."""
    return PodRef(namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.metadata.uid)


def full_name(pod: Pod) -> str:
    """namespace/name, for people."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def counted_pods(number: int) -> str:
    """A number of pods, as people write it."""
    return "1 pod" if number == 1 else f"{number} pods"
