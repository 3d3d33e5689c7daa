"""Carries out acts. Right before each request it asks the fence; no fence, no write.

It knows nothing of policies: what it is given was decided, and every act carries the preconditions that
make a late or second try harmless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from outlast.model.cluster import NODES, Node
from outlast.model.decision import (
    Act,
    AskCheckpoint,
    Block,
    Evict,
    HandOver,
    Note,
    Release,
    RemoveRepair,
    StartRepair,
    StopRepair,
    TakeBack,
)
from outlast.model.incident import Incident, IncidentSpec, IncidentStatus
from outlast.ports.clock import Clock
from outlast.ports.cluster import Cluster, EventNote, EventRecorder, Fence
from outlast.remediation.act import incidents, nodes, pods
from outlast.remediation.act import repair as jobs
from outlast.remediation.act.nodes import NodeAnswer
from outlast.remediation.act.pods import Refusal
from outlast.remediation.act.repair import RepairOptions


class Fenced(Exception):
    """This process may not write now: it does not lead, or cannot be sure that it still does."""


class Result(Enum):
    """What became of an act."""

    DONE = "done"
    LOOK_AGAIN = "the world is not as it was when this was decided"


@dataclass(frozen=True, slots=True)
class Acted:
    """The result, and the node as the server returned it where one was written."""

    result: Result
    node: Node | None = None
    refusals: Mapping[str, Refusal] | None = None


class Performer:
    """The only writer of a controller."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        fence: Fence,
        recorder: EventRecorder,
        clock: Clock,
        repair: RepairOptions | None = None,
    ) -> None:
        self._cluster = cluster
        self._fence = fence
        self._recorder = recorder
        self._clock = clock
        self._repair = repair or RepairOptions()

    def guard(self) -> None:
        """Raises Fenced unless a write may be sent now."""
        if not self._fence.may_write():
            raise Fenced("not the leader, or not surely: nothing is written")

    async def open_incident(self, name: str, spec: IncidentSpec) -> Incident:
        """Create an incident, or find it created. Raises Fenced, ClusterError."""
        self.guard()
        return await incidents.open_incident(self._cluster, name, spec)

    async def write_status(self, incident: Incident, status: IncidentStatus) -> Incident:
        """Put the next record down. Raises Fenced, Conflict, ClusterError."""
        self.guard()
        return await incidents.write_status(self._cluster, incident, status)

    async def delete_incident(self, incident: Incident) -> None:
        """Forget a closed incident. Raises Fenced, ClusterError."""
        self.guard()
        await incidents.delete(self._cluster, incident)

    def tell(self, node: Node | None, name: str, note: Note) -> None:
        """Say a sentence on a node."""
        uid = node.metadata.uid if node is not None else ""
        self._recorder.record(
            EventNote(NODES, name, note.reason, note.message, uid=uid, warning=note.warning)
        )

    async def perform(self, act: Act, refusals: Mapping[str, Refusal] | None = None) -> Acted:
        """Carry out one act. Raises Fenced, ClusterError."""
        self.guard()
        match act:
            case Block():
                return _of_node(*await nodes.block(self._cluster, act, self.guard))
            case Release():
                return await self._release(act)
            case AskCheckpoint():
                await pods.ask_checkpoint(self._cluster, self._recorder, act, self.guard)
                return Acted(Result.DONE)
            case Evict():
                monotonic = self._clock.monotonic
                left = await pods.evict(self._cluster, act, refusals or {}, monotonic, self.guard)
                return Acted(Result.DONE, refusals=left)
            case StartRepair():
                await jobs.start(self._cluster, act, self._repair)
                return Acted(Result.DONE)
            case StopRepair():
                await jobs.stop(self._cluster, act, self._repair, self.guard)
                return Acted(Result.DONE)
            case RemoveRepair():
                await jobs.remove(self._cluster, act, self._repair)
                return Acted(Result.DONE)
            case HandOver():
                now = self._clock.now()
                return _of_node(*await nodes.hand_over(self._cluster, act, now, self.guard))
            case TakeBack():
                now = self._clock.now()
                return _of_node(*await nodes.take_back(self._cluster, act, now, self.guard))

    async def _release(self, act: Release) -> Acted:
        answer, node = await nodes.release(self._cluster, act, self.guard)
        if answer is NodeAnswer.NOT_OURS and node.spec.unschedulable:
            text = "the cordon now belongs to somebody else and stays; outlast took its own marks away"
            self.tell(node, act.node, Note(reason="CordonKept", message=text))
        elif answer is NodeAnswer.DONE:
            text = f"new work may come again (incident {act.incident})"
            self.tell(node, act.node, Note(reason="NewWorkAllowed", message=text))
        return _of_node(answer, node)


def _of_node(answer: NodeAnswer, node: Node) -> Acted:
    settled = answer in (NodeAnswer.DONE, NodeAnswer.ALREADY, NodeAnswer.NOT_OURS)
    return Acted(Result.DONE if settled else Result.LOOK_AGAIN, node)
