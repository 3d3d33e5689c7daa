"""`outlast agent` as a process on a machine with InfiniBand: judged, hung, and ended while it hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outlast.model.names import GPU_READY, RDMA_READY
from tests.e2e.test_agent_process import EIGHT_GPUS, Place, ended_within, eventually, place, running
from tests.rdma_tree import RdmaTree

IB = tuple(f"0000:{bus:02x}:00.0" for bus in (0x5C, 0x5D))
pytestmark = pytest.mark.asyncio


def readers(agent: int) -> list[int]:
    """The agent's children that read files for it."""
    tasks = Path(f"/proc/{agent}/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    return [int(child) for child in children if _name(child) == "outlast-files"]


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


async def says(there: Place, text: str) -> None:
    """Wait until RDMAReady has this in its message."""

    async def so() -> bool:
        here = await there.condition(RDMA_READY)
        return here is not None and text in here.message

    await eventually(so)


async def test_infiniband_is_vouched_for_and_a_device_that_hangs_takes_nothing_with_it(
    tmp_path: Path,
) -> None:
    """The agent goes on judging GPUs, says which device does not answer, and ends at once."""
    async with place(tmp_path) as there:
        rdma = RdmaTree(there.sysfs)
        for number, address in enumerate(IB):
            rdma.add_infiniband(f"mlx5_{number}", address)
        async with running(there, *EIGHT_GPUS) as process:
            await there.until(RDMA_READY, "True", "RdmaHealthy")
            await says(there, "2 of 2 InfiniBand and RoCE ports are active")
            [reader] = await asyncio.to_thread(readers, process.pid)

            rdma.hang("mlx5_1", "ports/1/state")
            there.xid(0, 48)  # A new fault has every source look again.
            await there.until(GPU_READY, "False", "UncorrectableMemoryError")

            async def given_up() -> bool:
                return reader not in await asyncio.to_thread(readers, process.pid)

            await eventually(given_up)
            there.xid(1, 79)
            await there.until(RDMA_READY, "Unknown", "RdmaNotReadable")
            await says(there, "mlx5_1")

            took_s = await asyncio.to_thread(ended_within, process, 5)
            assert took_s < 1.5
