"""The real agent over NVIDIA's bindings: what a GPU's readings do to the node, as Kubernetes sees it."""

from pathlib import Path

import pytest

from outlast.model.health import FaultClass
from outlast.model.names import GPU_FABRIC_READY, GPU_MONITOR_READY, GPU_READY
from tests.e2e.test_agent_process import Place, eventually, place, running

pytestmark = pytest.mark.asyncio


async def fault_class(there: Place) -> FaultClass:
    """Of the only fault."""

    async def one() -> FaultClass | None:
        faults = (await there.health()).faults
        return faults[0].fault_class if len(faults) == 1 else None

    return await eventually(one)


@pytest.mark.parametrize(
    ("key", "value", "condition", "reason", "cure"),
    [
        ("gpu.3.sram_threshold_exceeded", 1, GPU_READY, "SramThresholdExceeded", FaultClass.HARDWARE_GONE),
        ("gpu.3.clocks_event_reasons", 0x48, GPU_READY, "GpuTooHot", FaultClass.TRANSIENT),
        ("gpu.3.pcie_width", 4, GPU_READY, "PcieLinkDegraded", FaultClass.TRANSIENT),
        ("gpu.3.fabric_summary", 2, GPU_FABRIC_READY, "FabricUnhealthy", FaultClass.TRANSIENT),
    ],
)
async def test_a_reading_becomes_a_condition_with_its_cure(
    tmp_path: Path, key: str, value: int, condition: str, reason: str, cure: FaultClass
) -> None:
    """Healthy first; then the script changes under the running worker."""
    async with place(tmp_path) as there, running(there):
        await there.until(GPU_READY, "True")
        await there.until(GPU_FABRIC_READY, "True")

        there.nvml.set(key, value)

        said = await there.until(condition, "False", reason)
        assert there.nvml.address(3) in said.message
        assert await fault_class(there) is cure


async def test_libraries_swapped_under_the_driver_drain_nobody(tmp_path: Path) -> None:
    """NVML cannot be opened, programs that run go on, and the node asks for a reboot when it is empty."""
    async with place(tmp_path) as there:
        there.nvml.action("nvmlInitWithFlags", "ret:18")
        async with running(there):
            said = await there.until(GPU_MONITOR_READY, "False", "RebootNeeded")
            assert "running programs go on" in said.message
            assert await fault_class(there) is FaultClass.TRANSIENT
            gpus = await there.condition(GPU_READY)
            assert gpus is not None
            assert gpus.status == "Unknown"

            there.nvml.action("nvmlInitWithFlags", "")

            await there.until(GPU_READY, "True")


async def test_a_mig_mode_that_waits_for_a_reset_makes_the_node_unknown(tmp_path: Path) -> None:
    """No fault, and nobody vouches until it rests."""
    async with place(tmp_path) as there, running(there):
        await there.until(GPU_READY, "True")

        there.nvml.set("gpu.5.mig_pending", 1)

        await there.until(GPU_READY, "Unknown", "Reconfiguring")
        assert (await there.health()).faults == ()
        there.nvml.set("gpu.5.mig_pending", None)
        await there.until(GPU_READY, "True")


async def test_a_line_of_the_log_has_the_details_read_at_once(tmp_path: Path) -> None:
    """A repair that waits is read in the poll that follows its line, not up to a minute later."""
    async with place(tmp_path) as there, running(there):
        await there.until(GPU_READY, "True")
        there.nvml.set("gpu.3.channel_repair_pending", 1).set("gpu.3.tpc_repair_pending", 0)
        there.xid(3, 160, "CHANNEL_RETIREMENT_EVENT")

        async def both() -> bool:
            said = {text.source for fault in (await there.health()).faults for text in fault.evidence}
            return {"kernel log", "NVML"} <= said

        assert await eventually(both)
