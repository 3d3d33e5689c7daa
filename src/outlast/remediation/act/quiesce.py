"""Ask the agent of a node to let go of the GPUs, and read its answer.

For whatever needs a GPU without clients: a reset, a change of the MIG layout, a driver that is unloaded.
The request ends by itself; withdrawing it only makes the agent look again sooner.
"""

from __future__ import annotations

from enum import Enum

from outlast.model.cluster import NODES, Node
from outlast.model.health import NodeHealth
from outlast.model.names import QUIESCE_ANNOTATION
from outlast.model.quiesce import QuiesceRequest, request_of
from outlast.ports.cluster import Cluster, Invalid, Patch, PatchType
from outlast.remediation.act.nodes import Guard, NodeAnswer, annotation_path


class Quieted(Enum):
    """How far the agent is with a request."""

    WAITING = "the agent has not answered yet"
    HELD = "the agent cannot let go"
    RELEASED = "no process of the agent holds a GPU"


def progress(health: NodeHealth | None, node: Node, request: QuiesceRequest) -> tuple[Quieted, str]:
    """What the agent has answered to this request on this machine, and why it cannot let go."""
    answer = health.status.quiesce if health is not None else None
    if health is None or answer is None or answer.request != request.id:
        return Quieted.WAITING, ""
    if health.status.node_uid != node.metadata.uid:
        return Quieted.WAITING, ""
    if answer.released:
        return Quieted.RELEASED, ""
    return (Quieted.HELD, answer.message) if answer.message else (Quieted.WAITING, "")


async def ask(cluster: Cluster, node: Node, request: QuiesceRequest, guard: Guard) -> tuple[NodeAnswer, Node]:
    """Put the request on the node, unless somebody else's stands there. Raises ClusterError.

    One's own request, by `by`, is replaced, which is how longer work asks again.
    """
    standing = request_of(node)
    if standing is not None and standing.by != request.by:
        return NodeAnswer.TAKEN, node
    guard()
    change = {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version}
    body = {"metadata": {**change, "annotations": {QUIESCE_ANNOTATION: request.to_annotation()}}}
    return NodeAnswer.DONE, await cluster.patch(NODES, node.metadata.name, Patch(PatchType.MERGE, body))


async def withdraw(cluster: Cluster, node: Node, request_id: str, guard: Guard) -> tuple[NodeAnswer, Node]:
    """Take that request away; another one stays. Raises ClusterError."""
    text = node.metadata.annotations.get(QUIESCE_ANNOTATION)
    standing = request_of(node)
    if text is None or standing is None or standing.id != request_id:
        return NodeAnswer.NOT_OURS, node
    path = annotation_path(QUIESCE_ANNOTATION)
    operations = [
        {"op": "test", "path": "/metadata/uid", "value": node.metadata.uid},
        {"op": "test", "path": path, "value": text},
        {"op": "remove", "path": path},
    ]
    guard()
    try:
        return NodeAnswer.DONE, await cluster.patch(
            NODES, node.metadata.name, Patch(PatchType.JSON, operations)
        )
    except Invalid:
        return NodeAnswer.LOST_RACE, await cluster.get(NODES, node.metadata.name)
