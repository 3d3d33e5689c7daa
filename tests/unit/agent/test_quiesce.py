"""Quiesce: asked to, the agent keeps away from the GPUs, says so, and comes back by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from outlast.agent.agent import Agent
from outlast.agent.quiesce import Quiesce
from outlast.model.cluster import NODES, Node, ObjectMeta
from outlast.model.health import QuiesceStatus
from outlast.model.names import GPU_FABRIC_READY, GPU_MONITOR_READY, GPU_READY, QUIESCE_ANNOTATION, RDMA_READY
from outlast.model.quiesce import QUIESCE_MAX_S, QuiesceRequest, request_in
from outlast.ports.cluster import Patch, PatchType
from outlast.remediation.act.nodes import NodeAnswer
from outlast.remediation.act.quiesce import ask, withdraw
from outlast.sim.apiserver.faults import Fault, Match
from outlast.sim.node import MemoryStateFile
from tests.unit.agent.rig import NAME, Rig, rig

pytestmark = pytest.mark.asyncio


def asked(there: Rig, *, seconds: float = 600.0, name: str = "reset-1") -> QuiesceRequest:
    return QuiesceRequest(id=name, by="a test", until=there.clock.now() + timedelta(seconds=seconds))


async def annotate(there: Rig, text: str | None) -> None:
    body = {"metadata": {"annotations": {QUIESCE_ANNOTATION: text}}}
    await there.writer.patch(NODES, NAME, Patch(PatchType.MERGE, body))


async def answer(there: Rig, *, released: bool) -> QuiesceStatus:
    found = await there.until_health(
        lambda health: (
            health.quiesce is not None
            and health.quiesce.released is released
            and bool(health.quiesce.message) is not released
        )
    )
    assert found.quiesce is not None
    return found.quiesce


@asynccontextmanager
async def quiet(there: Rig) -> AsyncIterator[None]:
    """A healthy node whose GPUs were let go."""
    async with there.running():
        await there.until_condition(GPU_READY, "True")
        done, _ = await ask(there.writer, await there.node(), asked(there), lambda: None)
        assert done is NodeAnswer.DONE
        await answer(there, released=True)
        yield


async def test_the_gpus_are_released_and_nobody_vouches_meanwhile() -> None:
    """Maintenance for all that NVML vouches for, and only that; no fault; withdrawn, all is as before."""
    async with rig() as there, quiet(there):
        assert not there.nvml.held
        for type_ in (GPU_READY, GPU_FABRIC_READY, GPU_MONITOR_READY):
            said = await there.until_condition(type_, "Unknown", "Maintenance")
            assert "a test asked" in said.message
        assert (await there.condition(RDMA_READY)).status == "True"
        assert (await there.health()).faults == ()

        done, _ = await withdraw(there.writer, await there.node(), "reset-1", lambda: None)

        assert done is NodeAnswer.DONE
        await there.until_condition(GPU_READY, "True")
        await there.until_health(lambda health: health.quiesce is None)
        assert there.nvml.held


async def test_it_ends_by_itself() -> None:
    """A request whose asker died keeps nobody away for longer than it says."""
    async with rig() as there, there.running():
        await there.until_condition(GPU_READY, "True")
        await annotate(there, asked(there, seconds=40.0).to_annotation())
        await there.until_condition(GPU_READY, "Unknown", "Maintenance")
        await there.until_condition(GPU_READY, "True")
        await there.until_health(lambda health: health.quiesce is None)


async def test_no_request_lasts_longer_than_the_limit() -> None:
    """Whatever it says: the answer names the moment that counts."""
    async with rig() as there, there.running():
        before = there.clock.now()
        await annotate(there, asked(there, seconds=1e8).to_annotation())
        until = (await answer(there, released=True)).until
        assert until <= there.clock.now() + timedelta(seconds=QUIESCE_MAX_S)
        assert until >= before + timedelta(seconds=QUIESCE_MAX_S - 1)


async def test_an_agent_that_starts_meanwhile_touches_nothing() -> None:
    """Neither with the API server's word, nor with only its own memory."""
    async with rig() as there:
        async with quiet(there):
            pass
        for verb in ("list", "watch", "get"):
            there.server.faults.add(Match(verb=verb, plural="nodes"), Fault(status=503))
        async with there.running() as agent:
            await there.clock.sleep(40)
            assert agent.quiesce.active
            assert not there.nvml.held
        there.server.faults.clear()
        there.quiesce_memory.save(b"")
        async with there.running() as agent:
            await there.until(lambda: _is_quiet(agent))
            await there.clock.sleep(20)
            assert not there.nvml.held


async def _is_quiet(agent: Agent) -> bool:
    return agent.quiesce.status is not None and agent.quiesce.status.released


async def test_a_worker_that_cannot_end_is_not_called_released() -> None:
    """The asker learns why, and hears of it when it ends after all."""
    async with rig() as there, there.running():
        await there.until_condition(GPU_READY, "True")
        there.nvml.leaked_workers = 1
        await annotate(there, asked(there).to_annotation())
        assert "hangs in the driver" in (await answer(there, released=False)).message
        there.nvml.leaked_workers = 0
        await answer(there, released=True)


async def test_a_fault_is_no_less_one_for_being_worked_on() -> None:
    """What stands goes on standing: maintenance proves nothing, and the kernel log is judged throughout."""
    async with rig() as there, quiet(there):
        there.xid(2, 79, "GPU has fallen off the bus.")
        await there.until_condition(GPU_READY, "False", "GpuFellOffBus")
        await withdraw(there.writer, await there.node(), "reset-1", lambda: None)
        await there.until_condition(GPU_MONITOR_READY, "True")
        assert (await there.condition(GPU_READY)).status == "False"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes",
        "[" * 5000,
        '{"id": "", "by": "x", "until": "2030-01-01T00:00:00Z"}',
        '{"id": "a", "by": "x"}',
    ],
)
async def test_nonsense_in_the_annotation_changes_nothing(text: str) -> None:
    """The GPUs are watched on."""
    async with rig() as there, there.running() as agent:
        await annotate(there, text)
        await there.until_condition(GPU_READY, "True")
        assert not agent.quiesce.active
        assert request_in(text) is None


async def test_a_request_of_somebody_else_stands() -> None:
    """Two repairs at a time would end each other's; one's own is renewed, and only its own is withdrawn."""
    async with rig() as there:
        node = await there.node()
        await ask(there.writer, node, asked(there), lambda: None)
        node = await there.node()
        other = QuiesceRequest(id="mig", by="another", until=there.clock.now())
        assert (await ask(there.writer, node, other, lambda: None))[0] is NodeAnswer.TAKEN
        assert (await withdraw(there.writer, node, "mig", lambda: None))[0] is NodeAnswer.NOT_OURS
        renewed, node = await ask(there.writer, node, asked(there, name="reset-2"), lambda: None)
        assert renewed is NodeAnswer.DONE
        assert (await withdraw(there.writer, node, "reset-2", lambda: None))[0] is NodeAnswer.DONE


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> datetime:
        """Wall time."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now_s)

    def monotonic(self) -> float:
        """Seconds."""
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        """Not to be waited for."""
        raise AssertionError(seconds)


def _marked(text: str) -> Node:
    return Node(metadata=ObjectMeta(name=NAME, annotations={QUIESCE_ANNOTATION: text}))


async def test_no_restart_prolongs_a_request() -> None:
    """The limit counts from when it was first taken up, over all agents; then it is over for good."""
    clock, memory = Clock(), MemoryStateFile()
    text = QuiesceRequest(id="x", by="a test", until=clock.now() + timedelta(days=3650)).to_annotation()
    for spent_s in (0, 700, 1400, 1799):
        clock.now_s = 100.0 + spent_s
        one = Quiesce(NAME, clock, memory, lambda: None)
        one.saw(_marked(text))
        assert one.active, spent_s
        assert one.status is not None
        assert one.status.until == datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=100 + QUIESCE_MAX_S)
    clock.now_s = 100.0 + QUIESCE_MAX_S
    assert not one.active
    another = Quiesce(NAME, clock, memory, lambda: None)
    another.saw(_marked(text))
    assert not another.active
    another.saw(_marked(asked_until(clock, 60)))
    assert another.active


def asked_until(clock: Clock, seconds: float) -> str:
    return QuiesceRequest(id="y", by="z", until=clock.now() + timedelta(seconds=seconds)).to_annotation()


@pytest.mark.parametrize(
    "content", [b"", b" ", b"x {}", b"2026-01-01 {", b"\xff \xff", b"2026-01-01T00:00:00 "]
)
async def test_a_damaged_memory_of_it_is_none(content: bytes) -> None:
    """Nothing is believed, nothing raised."""
    clock, memory = Clock(), MemoryStateFile()
    memory.save(content + asked_until(clock, 60).encode() if content.endswith(b"0 ") else content)
    assert not Quiesce(NAME, clock, memory, lambda: None).active
