"""One node: load, decide, apply. What protects comes first, then the record, then what disrupts.

Blocks and calls-off go out before the record, since they only make things safer. The record (with its
intent) has to stand before anything disruptive, which is decided once more on freshly read objects
right before. A conflict or a lost race means: load and decide again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

import structlog

from outlast.controller.fleet import FleetLedger, contribution
from outlast.controller.metrics import Activity
from outlast.controller.policies import NO_POLICY, PolicyBook, judge, selects
from outlast.controller.queue import Lane
from outlast.controller.steady import SteadyTime
from outlast.controller.world import World
from outlast.model.cluster import NODES, PODS, Kind, KubernetesObject, Pod
from outlast.model.decision import (
    DISRUPTIVE,
    Act,
    Block,
    Evict,
    Step,
    StopRepair,
    TakeBack,
    cordon_of,
)
from outlast.model.health import NODE_HEALTHS
from outlast.model.incident import INCIDENTS, Incident, Phase
from outlast.model.policy import REMEDIATION_POLICIES
from outlast.ports.cluster import Cluster, Conflict, NotFound
from outlast.remediation.act import Performer, Result
from outlast.remediation.decide import RulingPolicy, Situation, decide
from outlast.remediation.decide.budgets import IN_FLIGHT
from outlast.remediation.decide.opening import has_stray_hand_over

ROUNDS_MAX: Final = 6
"""Looks at one node in a row; what is not settled then waits for its next turn."""
AGAIN_S: Final = 0.2
PROTECTIVE: Final = (Block, StopRepair, TakeBack)

T = TypeVar("T", bound=KubernetesObject)
_log = structlog.get_logger(__name__)


class Reconciler:
    """Brings one node at a time level with what was decided."""

    def __init__(
        self,
        cluster: Cluster,
        world: World,
        book: PolicyBook,
        ledger: FleetLedger,
        performer: Performer,
        time: SteadyTime,
        requeue: Callable[[str, Lane], None],
    ) -> None:
        self._cluster = cluster
        self._world = world
        self._book = book
        self._ledger = ledger
        self._performer = performer
        self._time = time
        self._requeue = requeue
        self.activity = Activity()

    async def reconcile(self, name: str, lane: Lane) -> float | None:
        """Seconds until the node has to be looked at again; None waits for a change.

        Raises Fenced when this process may not write, ClusterError when the API server does not play.
        """
        try:
            for _ in range(ROUNDS_MAX):
                goes_on, again_s = await self._round(name, lane)
                if not goes_on:
                    return again_s
            return AGAIN_S
        finally:
            self._ledger.settle(name)
            self.count(name)

    def count(self, name: str) -> None:
        """Tell the budgets what this node contributes now."""
        node = self._world.node(name)
        incident = self._world.open_incident(name)
        if node is None and incident is None:
            self._ledger.drop(name)
            self._world.forget_node(name)
            return
        ruling = self._book.ruling(node, self._world.healths.get(name)) if node is not None else None
        self._ledger.put(name, contribution(node, incident, ruling))

    def _ruling(self, situation: Situation) -> RulingPolicy | None:
        node = situation.node
        ruling = self._book.ruling(node, situation.health) if node is not None else None
        if ruling is None and (situation.incident is not None or _bears_our_mark(situation)):
            return NO_POLICY
        return ruling

    async def _round(self, name: str, lane: Lane) -> tuple[bool, float | None]:
        """One look; whether another has to follow at once, and when the next is due otherwise."""
        situation = self._world.situation(name)
        step = self._decide(situation)
        if step is None:
            return False, None
        if step.needs_pods or _is_grave(step):
            situation = await self._fresh(situation)
            step = self._decide(situation, await self._fresh_ruling(situation))
            if step is None:
                return True, None
        return await self._apply(name, lane, situation, step)

    def _decide(self, situation: Situation, fresh: RulingPolicy | None = None) -> Step | None:
        ruling = fresh or self._ruling(situation)
        if ruling is None:
            return None
        now = self._time.now()
        view = replace(self._ledger.view(situation.node_name, ruling, now), complete=self._world.synced)
        step = decide(situation, ruling, view, now)
        # No await between the view and the reservation: two workers never see the same free slot.
        if any(isinstance(act, Block) for act in step.acts):
            self._ledger.reserve_block(situation.node_name)
        if step.status is not None and step.status.phase in IN_FLIGHT:
            self._ledger.reserve_repair(situation.node_name, step.incident)
        return step

    async def _fresh(self, situation: Situation) -> Situation:
        """The situation with everything that a disruptive act rests on read from the server."""
        name, incident = situation.node_name, situation.incident
        node = await self._read(NODES, name)
        if node is not None:
            self._world.wrote_node(node)
        health = await self._read(NODE_HEALTHS, name)
        if incident is not None:
            read = await self._read(INCIDENTS, incident.metadata.name)
            if read is None:
                self._world.lost_incident(incident)
            else:
                self._world.saw_incident(read)
        situation = replace(self._world.situation(name), node=node, health=health)
        return replace(situation, pods=await self._pods(name))

    async def _fresh_ruling(self, situation: Situation) -> RulingPolicy | None:
        """The policy as the server has it now: who switches to Observe is obeyed before the watch tells."""
        ruling, node = self._ruling(situation), situation.node
        if ruling is None or ruling is NO_POLICY or node is None:
            return ruling
        policy = await self._read(REMEDIATION_POLICIES, ruling.name)
        in_force = judge(policy, ruling.spec).in_force if policy is not None else None
        if in_force is None or not selects(in_force, node, situation.health):
            return NO_POLICY
        return RulingPolicy(ruling.name, in_force)

    async def _read(self, kind: Kind[T], name: str) -> T | None:
        try:
            return await self._cluster.get(kind, name)
        except NotFound:
            return None

    async def _pods(self, name: str) -> tuple[Pod, ...]:
        return tuple(await self._cluster.list(PODS, field_selector=f"spec.nodeName={name}"))

    async def _apply(
        self, name: str, lane: Lane, situation: Situation, step: Step
    ) -> tuple[bool, float | None]:
        protective = [act for act in step.acts if isinstance(act, PROTECTIVE)]
        for first in protective:
            if not await self._perform(name, first):
                return True, None
        if step.open is not None:
            if lane is Lane.BLOCK and protective:
                self._requeue(name, Lane.RECORD)
                return False, None
            self._saw(await self._performer.open_incident(step.incident, step.open))
            self._tell(situation, step)
            _log.info("incident opened", node=name, incident=step.incident)
            return True, None
        incident = situation.incident
        if step.status is not None and incident is not None and not await self._write(incident, step):
            return True, None
        self._tell(situation, step)
        for act in step.acts:
            if not isinstance(act, PROTECTIVE) and not await self._perform(name, act):
                return True, None
        if step.status is not None and step.status.phase is Phase.CLOSED:
            return True, None
        return bool(protective), step.look_again_s

    async def _write(self, incident: Incident, step: Step) -> bool:
        """Put the record down; False where it moved meanwhile, and was read again."""
        assert step.status is not None
        try:
            self._saw(await self._performer.write_status(incident, step.status))
        except Conflict:
            read = await self._read(INCIDENTS, incident.metadata.name)
            if read is None:
                self._world.lost_incident(incident)
            else:
                self._saw(read)
            return False
        except NotFound:
            self._world.lost_incident(incident)
            return False
        self.activity.wrote(incident.status, step.status)
        _log.info(
            "incident moved",
            node=incident.spec.node_name,
            incident=incident.metadata.name,
            phase=str(step.status.phase),
            step=str(step.status.step),
            blocked_by=step.status.blocked_by_text,
        )
        return True

    def _saw(self, incident: Incident) -> None:
        self._world.saw_incident(incident)
        self._ledger.saw_incident(incident)
        self.count(incident.spec.node_name)

    async def _perform(self, name: str, act: Act) -> bool:
        """Carry out one act; False where the world is not as it was when this was decided."""
        refusals = self._world.refusals.get(name, {})
        try:
            acted = await self._performer.perform(act, refusals if isinstance(act, Evict) else None)
        except NotFound as gone:
            _log.info("target is gone", node=name, act=type(act).__name__, why=str(gone))
            return False
        if acted.node is not None:
            self._world.wrote_node(acted.node)
            self.count(name)
        if acted.refusals is not None:
            self._world.refusals[name] = dict(acted.refusals)
        return acted.result is Result.DONE

    def _tell(self, situation: Situation, step: Step) -> None:
        for note in step.notes:
            self._performer.tell(situation.node, situation.node_name, note)


def _is_grave(step: Step) -> bool:
    """Whether a step has to rest on freshly read objects: it disrupts, or closes the record."""
    if step.status is not None and step.status.phase is Phase.CLOSED:
        return True
    return any(isinstance(act, DISRUPTIVE) for act in step.acts)


def _bears_our_mark(situation: Situation) -> bool:
    """Whether a node that nobody rules still carries something that only we can take away."""
    node = situation.node
    if node is None:
        return False
    return cordon_of(node) is not None or has_stray_hand_over(node)
