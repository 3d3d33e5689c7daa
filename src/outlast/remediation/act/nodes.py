"""Writes to a Node: block, release, hand-over. Each is one patch that names the node by uid.

A failed JSON `test` is a bare 422, so the answer is classified by reading the node again, and never
retried blindly.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from outlast.model.cluster import NODES, OWNED_NODES, Node, OwnedNode
from outlast.model.decision import Block, HandOver, Release, TakeBack, cordon_of
from outlast.model.names import (
    ACCELERATED_HARDWARE_READY,
    CONTROLLER_FIELD_MANAGER,
    CORDON_ANNOTATION,
    DO_NOT_DISRUPT_ANNOTATION,
)
from outlast.ports.cluster import Cluster, Conflict, Invalid, Patch, PatchType
from outlast.remediation.decide.opening import HANDOVER_REASON, TAKEN_BACK_REASON

OUR_DO_NOT_DISRUPT = "true"
RELEASE_TRIES_MAX = 3
"""A release that loses a race reads again this often; after that the next look tries."""


Guard = Callable[[], None]
"""Asked right before each write; raises where this process may not write now."""


class NodeAnswer(Enum):
    """What became of a write to a node."""

    DONE = "done"
    ALREADY = "already so"
    REPLACED = "another node has this name"
    TAKEN = "cordoned by somebody else"
    NOT_OURS = "not ours to undo"
    LOST_RACE = "somebody else writes at the same time"


def annotation_path(annotation: str) -> str:
    """Where a JSON patch finds an annotation."""
    return "/metadata/annotations/" + annotation.replace("~", "~0").replace("/", "~1")


async def block(cluster: Cluster, act: Block, guard: Guard) -> tuple[NodeAnswer, Node]:
    """Cordon with our annotation, in one patch that fails if anybody cordoned before. Raises ClusterError."""
    try:
        return NodeAnswer.DONE, await _send_block(cluster, act, [], guard)
    except (Invalid, Conflict):
        node = await cluster.get(NODES, act.node)
    if not node.metadata.annotations and _is_free(node, act):
        # A Node without any annotation has no map to add to; real kubelets always leave one.
        bare: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/annotations", "value": None},
            {"op": "add", "path": "/metadata/annotations", "value": {}},
        ]
        try:
            return NodeAnswer.DONE, await _send_block(cluster, act, bare, guard)
        except (Invalid, Conflict):
            node = await cluster.get(NODES, act.node)
    if node.metadata.uid != act.node_uid:
        return NodeAnswer.REPLACED, node
    cordon = cordon_of(node)
    if node.spec.unschedulable and cordon is not None and cordon.incident == act.cordon.incident:
        return NodeAnswer.ALREADY, node
    return (NodeAnswer.TAKEN if node.spec.unschedulable else NodeAnswer.LOST_RACE), node


def _is_free(node: Node, act: Block) -> bool:
    return node.metadata.uid == act.node_uid and not node.spec.unschedulable


async def _send_block(cluster: Cluster, act: Block, before: list[dict[str, Any]], guard: Guard) -> Node:
    mark = annotation_path(DO_NOT_DISRUPT_ANNOTATION)
    operations = [
        {"op": "test", "path": "/metadata/uid", "value": act.node_uid},
        {"op": "test", "path": "/spec/unschedulable", "value": None},
        *before,
        # What a release has to put back must be what stands there now, not what a cache remembers.
        {"op": "test", "path": mark, "value": act.cordon.prior_do_not_disrupt},
        {"op": "add", "path": annotation_path(CORDON_ANNOTATION), "value": act.cordon.to_annotation()},
        {"op": "add", "path": mark, "value": OUR_DO_NOT_DISRUPT},
        {"op": "add", "path": "/spec/unschedulable", "value": True},
    ]
    guard()
    return await cluster.patch(NODES, act.node, Patch(PatchType.JSON, operations))


async def release(cluster: Cluster, act: Release, guard: Guard) -> tuple[NodeAnswer, Node]:
    """Take our cordon and its marks away; one that passed to somebody else stays. Raises ClusterError."""
    for _ in range(RELEASE_TRIES_MAX):
        node = await cluster.get(OWNED_NODES, act.node)
        cordon = cordon_of(node)
        if node.metadata.uid != act.node_uid:
            return NodeAnswer.REPLACED, node
        if cordon is None or cordon.incident != act.incident:
            return NodeAnswer.NOT_OURS, node
        lifts = node.spec.unschedulable and cordon_is_ours(node)
        operations = _release_operations(node, cordon.prior_do_not_disrupt, lifts=lifts)
        guard()
        try:
            released = await cluster.patch(NODES, act.node, Patch(PatchType.JSON, operations))
        except (Invalid, Conflict):
            continue
        kept = node.spec.unschedulable and not lifts
        return (NodeAnswer.NOT_OURS if kept else NodeAnswer.DONE), released
    return NodeAnswer.LOST_RACE, node


def _release_operations(node: OwnedNode, prior: str | None, *, lifts: bool) -> list[dict[str, Any]]:
    marks = node.metadata.annotations
    operations: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/uid", "value": node.metadata.uid},
        {"op": "test", "path": annotation_path(CORDON_ANNOTATION), "value": marks[CORDON_ANNOTATION]},
        {"op": "remove", "path": annotation_path(CORDON_ANNOTATION)},
    ]
    if lifts:
        operations.append({"op": "test", "path": "/spec/unschedulable", "value": True})
        operations.append({"op": "remove", "path": "/spec/unschedulable"})
    if marks.get(DO_NOT_DISRUPT_ANNOTATION) != OUR_DO_NOT_DISRUPT:
        return operations  # Somebody else took it away or wrote another value meanwhile: theirs stands.
    mark = annotation_path(DO_NOT_DISRUPT_ANNOTATION)
    operations.append({"op": "test", "path": mark, "value": OUR_DO_NOT_DISRUPT})
    put_back = (
        {"op": "remove", "path": mark} if prior is None else {"op": "add", "path": mark, "value": prior}
    )
    return [*operations, put_back]


def cordon_is_ours(node: OwnedNode) -> bool:
    """Whether `spec.unschedulable` was last set by us: uncordon + cordon by a human changes that."""
    if not node.metadata.managed_fields:
        return True
    owners = {
        entry.manager
        for entry in node.metadata.managed_fields
        if not entry.subresource and "f:unschedulable" in (entry.fields_v1.get("f:spec") or {})
    }
    return CONTROLLER_FIELD_MANAGER in owners


async def hand_over(cluster: Cluster, act: HandOver, now: datetime, guard: Guard) -> tuple[NodeAnswer, Node]:
    """Publish False for Karpenter, unless somebody else owns the condition. Raises ClusterError."""
    return await _publish(cluster, act, "False", HANDOVER_REASON, now, guard)


async def take_back(cluster: Cluster, act: TakeBack, now: datetime, guard: Guard) -> tuple[NodeAnswer, Node]:
    """Publish True after a hand-over of ours. Raises ClusterError."""
    return await _publish(cluster, act, "True", TAKEN_BACK_REASON, now, guard)


async def _publish(
    cluster: Cluster, act: HandOver | TakeBack, status: str, reason: str, now: datetime, guard: Guard
) -> tuple[NodeAnswer, Node]:
    node = await cluster.get(NODES, act.node)
    if node.metadata.uid != act.node_uid:
        return NodeAnswer.REPLACED, node
    current = node.condition(ACCELERATED_HARDWARE_READY)
    if current is not None and current.reason not in (HANDOVER_REASON, TAKEN_BACK_REASON):
        return NodeAnswer.NOT_OURS, node
    if current is not None and (current.status, current.reason) == (status, reason):
        return NodeAnswer.ALREADY, node
    condition = {
        "type": ACCELERATED_HARDWARE_READY,
        "status": status,
        "reason": reason,
        "message": act.message,
        "lastTransitionTime": _seconds(act.since),
        "lastHeartbeatTime": _seconds(now),
    }
    # Against the version that was looked at: an owner who appears in between is not overwritten.
    seen = {"uid": act.node_uid, "resourceVersion": node.metadata.resource_version}
    body = {"metadata": seen, "status": {"conditions": [condition]}}
    guard()
    try:
        patch = Patch(PatchType.STRATEGIC, body)
        return NodeAnswer.DONE, await cluster.patch(NODES, act.node, patch, subresource="status")
    except (Invalid, Conflict):
        node = await cluster.get(NODES, act.node)
        return (NodeAnswer.REPLACED if node.metadata.uid != act.node_uid else NodeAnswer.LOST_RACE), node


def _seconds(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
