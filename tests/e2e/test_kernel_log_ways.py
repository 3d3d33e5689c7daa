"""The agent process on each way to the kernel log that is not a FIFO of ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.model.names import GPU_MONITOR_READY, GPU_READY
from tests.e2e.test_agent_process import EIGHT_GPUS, Place, eventually, place, running
from tests.unit.adapters.linux.test_kernel_log_fallbacks import (
    DEVKMSG_SWITCH,
    printed,
    user_records_unlimited,
)

pytestmark = pytest.mark.asyncio

own_kernel_log = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/kmsg", os.W_OK) or not os.access(DEVKMSG_SWITCH, os.W_OK),
    reason="this machine's kernel log may not be written here: run as root outside a container",
)


def xid_of(there: Place, index: int) -> str:
    return f"NVRM: Xid (PCI:{there.nvml.address(index)[:-2]}): 79, GPU has fallen off the bus."


@pytest.mark.root
@own_kernel_log
async def test_without_the_device_the_agent_reads_by_the_system_call(tmp_path: Path) -> None:
    """The unprivileged profile: a line of the real ring becomes a condition."""
    async with place(tmp_path) as there:
        there.kernel_log = Path("syslog")
        with user_records_unlimited():
            async with running(there, "--trust-user-records", *EIGHT_GPUS):
                await there.until(GPU_MONITOR_READY, "True")
                printed(f"<4>{xid_of(there, 5)}\n")
                await there.until(GPU_READY, "False", "GpuFellOffBus")


@pytest.mark.root
@own_kernel_log
async def test_the_agent_says_which_way_it_found(tmp_path: Path) -> None:
    """By default the best one that answers, named in the condition; a forged line is not believed."""
    async with place(tmp_path) as there:
        there.kernel_log = Path("auto")
        with user_records_unlimited():
            async with running(there):
                await there.until(GPU_MONITOR_READY, "True")

                async def named() -> bool:
                    here = await there.condition(GPU_MONITOR_READY)
                    return here is not None and "the kernel log (/dev/kmsg)" in here.message

                await eventually(named)
                printed(f"<4>{xid_of(there, 6)}\n")
                await eventually(lambda: _logged(there, "not believed"))
                ready = await there.condition(GPU_READY)

    assert ready is not None
    assert ready.status == "True"


async def test_a_log_file_of_a_syslog_daemon_is_followed(tmp_path: Path) -> None:
    """The kernel's line in it becomes a condition; the same words of a program do not."""
    async with place(tmp_path) as there:
        there.kernel_log = tmp_path / "kern.log"
        there.kernel_log.write_text("Nov 30 12:00:00 h kernel: [    0.000000] Linux version 6.1.0\n")
        async with running(there):
            await there.until(GPU_READY, "True")
            _append(there.kernel_log, f"Nov 30 12:00:01 h root: {xid_of(there, 1)}\n")
            await eventually(lambda: _logged(there, "not believed"))
            _append(there.kernel_log, f"Nov 30 12:00:02 h kernel: {xid_of(there, 2)}\n")
            await there.until(GPU_READY, "False", "GpuFellOffBus")

            async def accused() -> list[str]:
                return [fault.gpu.pci_address for fault in (await there.health()).faults if fault.gpu]

            assert await eventually(accused) == [there.nvml.address(2)]


async def _logged(there: Place, words: str) -> bool:
    return words in there.log_path.read_text()


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)
