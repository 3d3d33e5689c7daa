"""Wiring of the controller: caches mark nodes, workers look at them, the elected one acts.

Standbys follow the caches too, so that a take-over begins with a warm picture.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol

import structlog

from outlast.controller.changes import Changes
from outlast.controller.fleet import FleetLedger
from outlast.controller.housekeeping import Housekeeping
from outlast.controller.options import ControllerOptions
from outlast.controller.policies import PolicyBook
from outlast.controller.queue import DirtyQueue, Lane
from outlast.controller.reconcile import Reconciler
from outlast.controller.steady import SteadyTime
from outlast.controller.world import World
from outlast.ports.clock import Clock
from outlast.ports.cluster import Cluster, ClusterError, EventRecorder, Fence
from outlast.remediation.act import Fenced, Performer

TICK_S = 0.25
"""How often due times are looked at."""

_log = structlog.get_logger(__name__)


class Elector(Fence, Protocol):
    """A fence that is gained and lost."""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Call `lead` while this process leads, and cancel it when it does not."""
        ...


class Controller:
    """One replica. `run` ends by cancellation only."""

    def __init__(
        self,
        cluster: Cluster,
        elector: Elector,
        recorder: EventRecorder,
        clock: Clock,
        rng: Random,
        options: ControllerOptions | None = None,
    ) -> None:
        self._options = options or ControllerOptions()
        self._elector = elector
        self._clock = clock
        self._rng = rng
        time = SteadyTime(clock)
        self.world = World(cluster, clock, self._options)
        self.book = PolicyBook()
        self.ledger = FleetLedger()
        self.queue = DirtyQueue(self._options.records_in_flight)
        performer = Performer(
            cluster, fence=elector, recorder=recorder, clock=clock, repair=self._options.repair
        )
        self._reconciler = Reconciler(
            cluster, self.world, self.book, self.ledger, performer, time, self.queue.mark
        )
        self._housekeeping = Housekeeping(
            cluster, self.world, self.book, self.ledger, performer, recorder, time, self._options
        )
        self._synced = asyncio.Event()
        self._changes = Changes(
            self.world, self.book, self.ledger, self._reconciler, self.queue, self._on_synced
        )
        self._failures: dict[str, int] = {}
        self.activity = self._reconciler.activity

    @property
    def leads(self) -> bool:
        """Whether this replica may write now."""
        return self._elector.may_write()

    def _on_synced(self) -> None:
        if self.world.synced:
            self._synced.set()

    async def run(self) -> None:
        """Follow the cluster for ever, and act while this process leads."""
        world, changes = self.world, self._changes
        async with asyncio.TaskGroup() as group:
            group.create_task(world.nodes.run(changes.of_node))
            group.create_task(world.healths.run(changes.of_health))
            group.create_task(world.incidents.run(changes.of_incident))
            group.create_task(world.policies.run(changes.of_policy))
            group.create_task(world.leases.run(changes.of_lease))
            group.create_task(world.jobs.run(changes.of_job))
            await self._synced.wait()
            await self._elector.run(self._lead)

    async def _lead(self) -> None:
        _log.info("controller leads", nodes=len(self.world.nodes.values()))
        self._changes.mark_all()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.cordons_in_flight):
                group.create_task(self._work())
            group.create_task(self._tick())
            group.create_task(self._every(self._options.policy_status_s, self._housekeeping.policy_status))
            group.create_task(self._every(self._options.housekeeping_s, self._housekeeping.tidy))

    async def _work(self) -> None:
        while True:
            name, lane = await self.queue.take()
            try:
                again_s = await self._attempt(name, lane)
            finally:
                self.queue.done(name)
            if again_s is not None:
                self.queue.mark_at(name, self._clock.monotonic() + again_s)

    async def _attempt(self, name: str, lane: Lane) -> float | None:
        try:
            again_s = await self._reconciler.reconcile(name, lane)
        except Fenced:
            return self._options.retry_base_s
        except ClusterError as error:
            back_off_s = self._back_off_s(name)
            _log.warning("node not settled", node=name, again_s=back_off_s, why=str(error))
            return max(min(error.retry_after_s or 0.0, self._options.retry_max_s), back_off_s)
        except Exception:
            # One node that trips a bug must not take the watch over all others down with it.
            back_off_s = self._back_off_s(name)
            _log.exception("node not settled: this is a bug", node=name, again_s=back_off_s)
            return back_off_s
        self._failures.pop(name, None)
        return again_s

    def _back_off_s(self, name: str) -> float:
        self.activity.failures += 1
        tries = self._failures[name] = self._failures.get(name, 0) + 1
        options = self._options
        longest_s: float = min(options.retry_max_s, options.retry_base_s * 2 ** min(tries - 1, 10))
        return longest_s * (0.5 + float(self._rng.random()) / 2)

    async def _tick(self) -> None:
        while True:
            self.queue.release_due(self._clock.monotonic())
            await self._clock.sleep(TICK_S)

    async def _every(self, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Fenced:
                _log.info("left undone: not the leader")
            await self._clock.sleep(period_s)
