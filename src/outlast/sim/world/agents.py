"""Runs the production agent on every simulated machine, as its container would run.

A reboot kills the process without a word. An agent that fails by itself is started again, as a kubelet
would, and is counted: a crash is never part of the script.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Final

import structlog

from outlast.adapters.kubernetes import KubernetesCluster, QueuedEvents, access_with_token
from outlast.agent.agent import Agent
from outlast.agent.options import Options
from outlast.model.names import AGENT_FIELD_MANAGER
from outlast.ports.clock import Clock
from outlast.sim.world.machine import Machine
from outlast.sim.world.wire import Wire

RESTART_S: Final = 10.0
POLL_S: Final = 30.0
"""Twice the default: 48 agents at 60 times the speed share one processor here."""
log = structlog.get_logger("outlast.sim.agents")


class Agents:
    """One agent a machine. Implements `outlast.sim.world.kubelet.AgentSwitch`."""

    def __init__(self, url: str, clock: Clock, pace: Clock, rng: Random) -> None:
        """`clock` is the world's time; network deadlines run on `pace`, the machine's own."""
        self._access = access_with_token(url)
        self._clock = clock
        self._pace = pace
        self._rng = rng
        self._group: asyncio.TaskGroup | None = None
        self._running: dict[str, tuple[asyncio.Task[None], Wire]] = {}
        self.writes: Counter[str] = Counter()
        self.crashes: list[str] = []

    async def run(self) -> None:
        """Keep agents running until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await asyncio.Event().wait()

    def start(self, machine: Machine) -> None:
        """Start the agent of a machine, unless it runs."""
        assert self._group is not None, "agents start while `run` runs"
        if machine.name in self._running:
            return
        cluster = KubernetesCluster(
            self._access, clock=self._pace, rng=self._rng, field_manager=AGENT_FIELD_MANAGER
        )
        wire = Wire(cluster, self.writes)
        task = self._group.create_task(self._container(machine, cluster, wire), name=f"agent {machine.name}")
        self._running[machine.name] = (task, wire)

    def kill(self, machine: Machine) -> None:
        """End the agent's process at once."""
        found = self._running.pop(machine.name, None)
        if found is not None:
            task, wire = found
            wire.cut()
            task.cancel()

    async def _container(self, machine: Machine, cluster: KubernetesCluster, wire: Wire) -> None:
        async with cluster:
            while True:
                try:
                    await self._process(machine, wire)
                except Exception as error:
                    self.crashes.append(f"{machine.name}: {_innermost(error)!r}")
                    log.exception("agent crashed", node=machine.name)
                await self._clock.sleep(RESTART_S)

    async def _process(self, machine: Machine, wire: Wire) -> None:
        rng = Random(self._rng.getrandbits(64))  # noqa: S311 - seeded by the scenario
        events = QueuedEvents(
            wire, clock=self._clock, rng=rng, component=AGENT_FIELD_MANAGER, host=machine.name
        )
        agent = Agent(
            cluster=wire,
            kernel_log=machine.kernel_log,
            gpu_reader=machine.reader,
            pci=machine.pci,
            machine=machine.identity,
            state_file=machine.disk,
            clock=self._clock,
            rng=rng,
            options=Options(node_name=machine.name, poll_interval_s=POLL_S),
            events=events,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(events.run())
            group.create_task(agent.run())


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
