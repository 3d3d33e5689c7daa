"""One simulated node with the production agent on it, and the embedded API server it writes to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

from outlast.adapters.clock import ScaledClock, SystemClock
from outlast.adapters.kubernetes import KubernetesCluster, access_with_token
from outlast.agent.agent import Agent
from outlast.agent.options import Options
from outlast.health.verdict import Settings
from outlast.model.cluster import NODES, Condition, Kind, KubernetesObject, Node
from outlast.model.health import NODE_HEALTHS, NodeHealthStatus
from outlast.model.names import AGENT_FIELD_MANAGER
from outlast.ports.cluster import NotFound
from outlast.ports.node import Polled
from outlast.schema.crds import definitions
from outlast.sim.apiserver import ApiServer
from outlast.sim.node import FakeGpuReader, FakeKernelLog, FakeMachine, FakePciBus, Hardware, MemoryStateFile

CRDS = Kind(
    "apiextensions.k8s.io/v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    False,
    KubernetesObject,
)
NAME = "gpu-0"
RATE = 20.0
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Rig:
    """Everything a scenario turns."""

    server: ApiServer
    clock: ScaledClock
    cluster: KubernetesCluster
    writer: KubernetesCluster
    """Another client, as somebody else."""
    machine: FakeMachine
    hardware: Hardware
    kernel: FakeKernelLog
    pci: FakePciBus
    nvml: FakeGpuReader
    memory: MemoryStateFile
    options: Options
    quiesce_memory: MemoryStateFile = field(default_factory=MemoryStateFile)
    polled: tuple[Polled, ...] = ()
    agents: list[Agent] = field(default_factory=list)

    def agent(self) -> Agent:
        """A new agent process on this node: it knows the log only by the position that was saved."""
        self.kernel._delivered = None
        made = Agent(
            cluster=self.cluster,
            kernel_log=self.kernel,
            gpu_reader=self.nvml,
            pci=self.pci,
            machine=self.machine,
            state_file=self.memory,
            clock=self.clock,
            rng=Random(1),
            options=self.options,
            quiesce_file=self.quiesce_memory,
            polled=self.polled,
        )
        self.agents.append(made)
        return made

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Agent]:
        """The agent runs inside the block and is ended with it, as by SIGTERM."""
        agent = self.agent()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(agent.run())
            try:
                yield agent
            finally:
                task.cancel()

    def gpu(self, index: int) -> str:
        """PCI address of a GPU."""
        return sorted(self.hardware.gpus)[index]

    def xid(self, index: int, code: int, text: str = "text") -> None:
        """The driver prints a Xid."""
        self.kernel.write(f"NVRM: Xid (PCI:{self.gpu(index)[:-2]}): {code}, {text}")

    def reboot(self) -> None:
        """The machine starts again."""
        self.machine.reboot()

    async def node(self) -> Node:
        """Our Node."""
        return await self.writer.get(NODES, NAME)

    async def condition(self, type_: str) -> Condition:
        """One condition of our Node; `status` is empty before it was written."""
        return (await self.node()).condition(type_) or Condition(type=type_, status="")

    async def health(self) -> NodeHealthStatus:
        """What NodeHealth says; empty before it exists."""
        try:
            return (await self.writer.get(NODE_HEALTHS, NAME)).status
        except NotFound:
            return NodeHealthStatus()

    async def until(self, what: Callable[[], Any], *, deadline_s: float = 15.0) -> Any:
        """Wait until the awaited answer is true."""
        async with asyncio.timeout(deadline_s):
            while not (answer := await what()):
                await asyncio.sleep(0.01)
        return answer

    async def until_health(self, says: Callable[[NodeHealthStatus], bool]) -> NodeHealthStatus:
        """Wait until NodeHealth says what is asked for: it is written apart from the conditions."""

        async def so() -> NodeHealthStatus | None:
            here = await self.health()
            return here if says(here) else None

        return await self.until(so)

    async def until_condition(self, type_: str, status: str, reason: str | None = None) -> Condition:
        """Wait until a condition has a status, and a reason where given."""

        async def so() -> Condition | None:
            here = await self.condition(type_)
            return here if here.status == status and reason in (None, here.reason) else None

        return await self.until(so)


@asynccontextmanager
async def rig(
    *, rate: float = RATE, gpus: int = 8, efa: int = 32, settings: Settings | None = None, **options: Any
) -> AsyncIterator[Rig]:
    """A healthy node, registered, with no agent yet."""
    clock = ScaledClock(rate, START)
    async with ApiServer(clock) as server:
        access = access_with_token(server.url, "anybody")
        async with (
            # Network deadlines run in real time, whatever the speed of the scene.
            KubernetesCluster(
                access, clock=SystemClock(), rng=Random(1), field_manager=AGENT_FIELD_MANAGER
            ) as mine,
            KubernetesCluster(access, clock=SystemClock(), rng=Random(2), field_manager="somebody") as theirs,
        ):
            for crd in definitions():
                await theirs.create(CRDS, crd)
            await theirs.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}})
            machine = FakeMachine(NAME)
            hardware = Hardware.h100(NAME, gpus=gpus, efa=efa)
            kernel = FakeKernelLog(clock=clock, boot_id=machine.boot_id)
            nvml = FakeGpuReader(hardware, clock=clock)
            machine.attach(kernel, nvml)
            yield Rig(
                server=server,
                clock=clock,
                cluster=mine,
                writer=theirs,
                machine=machine,
                hardware=hardware,
                kernel=kernel,
                pci=FakePciBus(hardware),
                nvml=nvml,
                memory=MemoryStateFile(),
                options=Options(node_name=NAME, settings=settings or Settings(), **options),
            )
