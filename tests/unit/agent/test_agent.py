"""The whole agent on one simulated node: real parsers, real judge, real HTTP."""

from __future__ import annotations

import pytest

from outlast.model.health import FaultClass, FaultState
from outlast.model.names import GPU_FABRIC_READY, GPU_MONITOR_READY, GPU_READY, RDMA_READY
from tests.unit.agent.rig import rig

pytestmark = pytest.mark.asyncio


async def test_a_healthy_node_becomes_ready_by_a_completed_check() -> None:
    """All four conditions are True after the first complete survey, and NodeHealth says what was found."""
    async with rig() as there, there.running():
        for type_ in (GPU_READY, GPU_FABRIC_READY, RDMA_READY, GPU_MONITOR_READY):
            await there.until_condition(type_, "True")
        health = await there.until(there.health)
        assert (health.gpu_count, health.rdma_found, health.state) == ("8/8", 32, "Healthy")
        assert health.checked_at is not None


async def test_a_gpu_off_the_bus_is_published_and_clears_only_after_a_reboot() -> None:
    """Xid 79 makes GPUReady False at once; after a reboot it is Unknown until proven, then True."""
    async with rig() as there, there.running():
        await there.until_condition(GPU_READY, "True")
        there.xid(3, 79, "GPU has fallen off the bus.")
        await there.until_condition(GPU_READY, "False", "GpuFellOffBus")
        [fault] = (await there.until(there.health)).faults
        assert (fault.code, fault.fault_class) == ("xid/79", FaultClass.REBOOT_CURES)
        assert fault.gpu is not None
        assert fault.gpu.serial == "gpu-0-3"
        there.reboot()
        await there.until_condition(GPU_READY, "Unknown", "AwaitingProof")
        await there.until_condition(GPU_READY, "True")
        assert (await there.health()).faults == ()


async def test_a_restart_of_the_agent_loses_no_fault_and_moves_no_transition_time() -> None:
    """Faults, their ids and lastTransitionTime survive the process."""
    async with rig() as there:
        async with there.running():
            await there.until_condition(GPU_READY, "True")
            there.xid(0, 48, "DBE")
            before = await there.until_condition(GPU_READY, "False")
            [fault] = (await there.until(there.health)).faults
        async with there.running() as agent:

            async def written() -> bool:
                return agent.node_health.writes > 0

            await there.until(written)
            after = await there.condition(GPU_READY)
            assert (after.status, after.last_transition_time) == ("False", before.last_transition_time)
            [same] = (await there.health()).faults
            assert (same.id, same.state) == (fault.id, FaultState.OPEN)
