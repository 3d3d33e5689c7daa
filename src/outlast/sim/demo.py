"""The demo: production agents and the production controller in a simulated cluster, for an hour of trouble.

One process and one event loop. Everything that acts is connected by HTTP, as it would be; the report at
the end is read from API objects.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from random import Random
from typing import Final

import msgspec

from outlast.adapters.kubernetes import (
    KubernetesCluster,
    LeaderElection,
    QueuedEvents,
    access_with_token,
)
from outlast.controller.main import Controller
from outlast.model.incident import Incident, Phase
from outlast.model.names import CONTROLLER_FIELD_MANAGER, SYSTEM_NAMESPACE
from outlast.ports.clock import Clock
from outlast.sim.world.agents import Agents
from outlast.sim.world.clock import PacedClock
from outlast.sim.world.scenario import DEMO, Scenario
from outlast.sim.world.verdict import StoryVerdict, false_drains, is_over, judge
from outlast.sim.world.wire import Wire
from outlast.sim.world.world import World

CONTROLLER_NAME: Final = "outlast-controller-0"
PATIENCE_MINUTES: Final = 45.0
"""Simulated minutes beyond the scenario's own after which a story that is not over has failed."""
START_RATE_MAX: Final = 40.0
"""How fast time goes while everything starts at once."""
READY_REAL_S: Final = 60.0
"""Real seconds a healthy cluster may take to come up."""
LOOK_S: Final = 5.0


class IncidentSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One incident, with the seconds that people ask for; None where a step was not taken."""

    name: str
    node: str
    fault: str
    end: str
    opened_at: datetime
    detect_to_block_s: float | None
    checkpoint_s: float | None
    drain_s: float | None
    repair_s: float | None
    """From the act to a completed clean check."""
    out_s: float | None
    """From the block to new work."""


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What happened, and whether it is what had to happen."""

    ok: bool
    over: bool
    """All stories were followed to their ends."""
    simulated_minutes: float
    real_s: float
    nodes: int
    stories: tuple[StoryVerdict, ...]
    incidents: tuple[IncidentSummary, ...]
    false_drains: tuple[str, ...]
    violations: tuple[str, ...]
    checks: int
    """How often the invariants were held against the world."""
    crashes: tuple[str, ...]
    reboots: int
    replaced: int
    agent_writes: dict[str, int]
    controller_writes: dict[str, int]


class Demo:
    """A scenario with the platform in it. `clock` is simulated time, `pace` the machine's."""

    def __init__(self, *, pace: Clock, rate: float, scenario: Scenario = DEMO) -> None:
        self.scenario = scenario
        self.pace = pace
        start = pace.now() - timedelta(minutes=scenario.minutes)
        self.rate = rate
        self.clock = PacedClock(min(rate, START_RATE_MAX), start, pace)
        self.world = World(scenario, self.clock)
        self.controller_writes: Counter[str] = Counter()
        self.url = ""
        self._agents: Agents | None = None
        self._election: LeaderElection | None = None
        self._rng = Random(scenario.seed)  # noqa: S311 - a scenario, not a secret
        self._began_s = pace.monotonic()

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[str]:
        """Run everything while the block runs; yields the API server's URL."""
        self.url = await self.world.start(port)
        self._began_s = self.pace.monotonic()
        agents = self._agents = Agents(self.url, self.clock, self.pace, self._rng)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(agents.run(), name="agents"),
                    group.create_task(self.world.run(), name="world"),
                    group.create_task(self._control(), name="controller"),
                ]
                await self.pace.sleep(0)
                self.world.populate(agents)
                try:
                    yield self.url
                finally:
                    for task in tasks:
                        task.cancel()
        finally:
            await self.world.server.stop()

    async def ready(self) -> bool:
        """Wait until nodes were checked, work runs and somebody leads; False when it takes too long."""
        until_s = self.pace.monotonic() + READY_REAL_S
        while self.pace.monotonic() < until_s:
            if self._election is not None and self._election.is_leader and self._all_checked():
                return True
            await self.clock.sleep(LOOK_S)
        return False

    def _all_checked(self) -> bool:
        healths = self.world.healths()
        are_healthy = all(h.status.state == "Healthy" for h in healths)
        return len(healths) >= len(self.world.names) and are_healthy and not self.world.pods_pending()

    async def finished(self) -> bool:
        """Play the script and wait for the end of all stories; False when they did not end in time."""
        self.clock.set_rate(self.rate)
        self.world.begin()
        longest_minutes = self.scenario.minutes + PATIENCE_MINUTES
        while self.world.minute < longest_minutes:
            if self.world.script_is_over and self._is_over():
                return True
            await self.clock.sleep(LOOK_S)
        return False

    def _is_over(self) -> bool:
        return is_over(self.scenario, self.world.names, self.world.incidents(), self.world.nodes())

    async def _control(self) -> None:
        """The controller process: election, controller, events."""
        rng = Random(self._rng.getrandbits(64))  # noqa: S311 - seeded by the scenario
        access = access_with_token(self.url)
        async with KubernetesCluster(
            access, clock=self.pace, rng=rng, field_manager=CONTROLLER_FIELD_MANAGER
        ) as cluster:
            wire = Wire(cluster, self.controller_writes)
            election = self._election = LeaderElection(
                wire, clock=self.pace, rng=rng, namespace=SYSTEM_NAMESPACE, identity=CONTROLLER_NAME
            )
            events = QueuedEvents(wire, clock=self.clock, rng=rng)
            controller = Controller(wire, election, events, self.clock, rng)
            async with asyncio.TaskGroup() as group:
                group.create_task(events.run())
                group.create_task(controller.run())

    def report(self) -> Report:
        """What the API objects say now."""
        incidents = self.world.incidents()
        names = self.world.names
        stories = judge(self.scenario, names, incidents)
        wrongly = false_drains(self.scenario, names, incidents)
        agents = self._agents
        crashes = tuple(agents.crashes) if agents is not None else ()
        referee = self.world.referee
        violations = (*referee.violations, *referee.at_the_end()) if referee is not None else ()
        over = self.world.script_is_over and self._is_over()
        kubelets = self.world.kubelets
        return Report(
            ok=over and not wrongly and not crashes and not violations and all(s.ok for s in stories),
            over=over,
            simulated_minutes=round(self.world.minute, 1),
            real_s=round(self.pace.monotonic() - self._began_s, 1),
            nodes=self.scenario.shape.nodes,
            stories=stories,
            incidents=tuple(summary(i) for i in sorted(incidents, key=lambda i: i.spec.opened_at)),
            false_drains=wrongly,
            violations=violations,
            checks=referee.looks if referee is not None else 0,
            crashes=crashes,
            reboots=kubelets.reboots.total() if kubelets is not None else 0,
            replaced=len(self.world.karpenter.replaced),
            agent_writes=dict(agents.writes) if agents is not None else {},
            controller_writes=dict(self.controller_writes),
        )


def summary(incident: Incident) -> IncidentSummary:
    """The times of one incident."""
    timings, end = incident.status.timings, incident.status.end
    faults = incident.status.faults or incident.spec.faults
    closed_at = end.at if end is not None else None
    open_phase: Phase = incident.status.phase
    return IncidentSummary(
        name=incident.metadata.name,
        node=incident.spec.node_name,
        fault=incident.status.fault or (faults[0].code if faults else ""),
        end=end.result.value if end is not None else open_phase.value,
        opened_at=incident.spec.opened_at,
        detect_to_block_s=_between(timings.detected_at, timings.blocked_at),
        checkpoint_s=_between(timings.checkpoint_requested_at, timings.checkpoint_done_at),
        drain_s=_between(timings.drain_started_at, timings.drained_at),
        repair_s=_between(timings.acted_at, timings.verified_at or (closed_at if timings.acted_at else None)),
        out_s=_between(timings.blocked_at, timings.returned_at or closed_at),
    )


def _between(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else round((end - start).total_seconds(), 3)
