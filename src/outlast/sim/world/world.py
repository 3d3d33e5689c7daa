"""The whole simulated cluster as one object: API server, machines, players, script.

The same seed gives the same fleet and the same script; how requests interleave is up to the event loop,
as in life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Final

import msgspec

from outlast.model.cluster import Node
from outlast.model.health import NODE_HEALTHS, NodeHealth
from outlast.model.incident import INCIDENTS, Incident
from outlast.model.policy import REMEDIATION_POLICIES
from outlast.schema.crds import definitions
from outlast.sim.apiserver import ApiServer, Writer
from outlast.sim.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, NODES, PODS
from outlast.sim.world import objects
from outlast.sim.world.agenda import Agenda
from outlast.sim.world.chronicle import Chronicle
from outlast.sim.world.clock import PacedClock
from outlast.sim.world.karpenter import Karpenter
from outlast.sim.world.kubelet import AgentSwitch, Kubelets
from outlast.sim.world.machine import Machine
from outlast.sim.world.objects import Place
from outlast.sim.world.referee import Referee
from outlast.sim.world.scenario import Happening, Scenario
from outlast.sim.world.workloads import create_workloads

_decode_node = msgspec.json.Decoder(Node).decode
_decode_health = msgspec.json.Decoder(NodeHealth).decode
_decode_incident = msgspec.json.Decoder(Incident).decode
SPARES_S: Final = 30.0
_ADMIN = Writer(manager="kubectl-client-side-apply")


def machine_name(number: int) -> str:
    """The node name of a machine by the number of its delivery, from 0."""
    return f"gpu-{number + 1:03d}"


def rack_name(position: int, per_rack: int) -> str:
    """The rack of a position in the fleet."""
    return f"rack-{chr(ord('a') + position // per_rack)}"


class World:
    """A cluster that suffers a scenario. `start` it, `run` it, look at it through its API server."""

    def __init__(self, scenario: Scenario, clock: PacedClock) -> None:
        self.scenario = scenario
        self.clock = clock
        self.server = ApiServer(clock)
        self.store = self.server.store
        self.agenda = Agenda(clock)
        self.chronicle = Chronicle(self.store, clock.now)
        self.names = tuple(machine_name(i) for i in range(scenario.shape.nodes))
        """The nodes of the start, by position."""
        self._rng = Random(scenario.seed)  # noqa: S311 - a scenario, not a secret
        self._machines: dict[str, Machine] = {}
        self._places: dict[str, Place] = {}
        self._delivered = 0
        self.began_s: float | None = None
        """When the script began, on the world's clock."""
        self._left_to_happen = sum(len(s.happenings) for s in scenario.stories)
        self.kubelets: Kubelets | None = None
        self.referee: Referee | None = None
        self.karpenter = Karpenter(
            self.store, self.agenda, clock, terminate=self._terminate, launch=self._launch
        )

    async def start(self, port: int = 0) -> str:
        """Serve the API with our kinds, a policy, the users' work; returns the URL."""
        for definition in definitions():
            self.store.create(CUSTOM_RESOURCE_DEFINITIONS, definition, writer=_ADMIN)
        url = await self.server.start(port=port)
        create_workloads(self.store, self.scenario.shape)
        self.store.create(REMEDIATION_POLICIES, objects.policy(), writer=_ADMIN)
        return url

    def populate(self, agents: AgentSwitch) -> None:
        """Switch the machines on."""
        self.kubelets = Kubelets(self.store, self.agenda, self.clock, self._rng, agents)
        self.referee = Referee(self.store, self.kubelets)
        shape = self.scenario.shape
        for position in range(shape.nodes - shape.spares):
            self._launch(self._place(position))
        # Spares come last, so that which machine has work does not depend on how a scheduler spreads it.
        for position in range(shape.nodes - shape.spares, shape.nodes):
            self.agenda.after(SPARES_S, partial(self._launch, self._place(position)))

    def _place(self, position: int) -> Place:
        shape = self.scenario.shape
        for_training = sum(size for _, size in shape.gangs)
        trains = position < for_training or position >= shape.nodes - shape.spares
        return Place(
            rack_name(position, shape.nodes_per_rack), objects.TRAINING if trains else objects.INFERENCE
        )

    def begin(self) -> None:
        """Put the script on the agenda; its minutes count from now."""
        self.began_s = self.clock.monotonic()
        for story in self.scenario.stories:
            for happening in story.happenings:
                self.agenda.after(60 * happening.minute, partial(self.suffer, happening))

    async def run(self) -> None:
        """Let time pass. Ends by cancellation only."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.clock.run())
            group.create_task(self.agenda.run())

    @property
    def script_is_over(self) -> bool:
        """Everything that was to happen has happened."""
        return self._left_to_happen == 0

    @property
    def minute(self) -> float:
        """Minutes since the script began; negative is never, 0 before it."""
        return 0.0 if self.began_s is None else (self.clock.monotonic() - self.began_s) / 60

    def nodes(self) -> Mapping[str, Node]:
        """The nodes, read from the API server's store."""
        return {e.name: _decode_node(e.raw) for e in self.store.entries(NODES)}

    def healths(self) -> tuple[NodeHealth, ...]:
        """What the agents say, read from the API server's store."""
        return tuple(_decode_health(e.raw) for e in self.store.entries(NODE_HEALTHS))

    def pods_pending(self) -> int:
        """Pods of users that do not run."""
        users = (e for ns in (objects.TRAINING, objects.INFERENCE) for e in self.store.entries(PODS, ns))
        return sum(e.fields.get("status.phase") != "Running" for e in users)

    def incidents(self) -> tuple[Incident, ...]:
        """The incidents, read from the API server's store."""
        return tuple(_decode_incident(e.raw) for e in self.store.entries(INCIDENTS))

    def suffer(self, happening: Happening) -> None:
        """Let one symptom happen to its machine, if that is still there."""
        self._left_to_happen -= 1
        machine = self._machines.get(self.names[happening.node])
        if machine is not None:
            machine.suffer(happening.symptom, happening.device)

    def _launch(self, place: Place) -> None:
        assert self.kubelets is not None, "machines join a populated world"
        name = machine_name(self._delivered)
        self._delivered += 1
        machine = Machine(name, self.scenario.shape, self.clock, self._rng)
        self._machines[name] = machine
        self._places[name] = place
        node = objects.node(machine, self.scenario.shape, place, self.clock.now())
        self.store.create(NODES, node, writer=Writer(manager="kubelet"))
        self.kubelets.join(machine)

    def _terminate(self, name: str) -> Place:
        assert self.kubelets is not None, "machines leave a populated world"
        self.kubelets.power_off(self._machines.pop(name))
        return self._places.pop(name)
