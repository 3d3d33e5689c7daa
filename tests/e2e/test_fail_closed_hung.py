"""Fail closed, on the real agent: what hangs where no signal reaches blocks new work and harms nothing else.

The NVML worker sleeps on a frozen ext4, other readers on a FUSE mount whose daemon never answers: both are
true uninterruptible sleep, which outlives SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from outlast.adapters.linux.file_worker import PROCESS_NAME as FILE_READER
from outlast.adapters.linux.leaks import leaked_workers
from outlast.adapters.nvml.reader import LEAKED_WORKERS_MAX, POLL_DEADLINE_S
from outlast.model.health import Fault, FaultClass
from outlast.model.names import GPU_MONITOR_READY, GPU_READY, HOST_READY, RDMA_READY
from tests.closed.clocks import Clocks
from tests.closed.silent import silent_mount
from tests.e2e.test_agent_network import IB, readers, says
from tests.e2e.test_agent_process import EIGHT_GPUS, Place, ended_within, eventually, place, running
from tests.nvml.frozen import FrozenMount, frozen_mount, why_not
from tests.procfs import FakeProc
from tests.rdma_tree import RdmaTree

pytestmark = pytest.mark.asyncio

LATE_S = 3.0
"""Allowed beyond the deadline on a busy machine; benchmarks/hang.py holds it to one second."""
EXIT_S = 1.5


@contextmanager
def counted() -> Iterator[list[int]]:
    """How many workers were stuck at once, looked at all the time."""
    seen, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            seen.append(len(leaked_workers()))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


async def hung(there: Place) -> Fault:
    """The fault of the tool that hangs, once it is published."""

    async def so() -> Fault | None:
        return next((f for f in (await there.health()).faults if f.code == "monitor/hung"), None)

    return await eventually(so)


async def witnessed(there: Place) -> Fault:
    """The same with a second witness."""

    async def so() -> Fault | None:
        fault = await hung(there)
        return fault if fault.second_witness else None

    return await eventually(so)


async def codes(there: Place) -> set[str]:
    return {fault.code for fault in (await there.health()).faults}


async def asleep(there: Place) -> float:
    """When a worker was first seen to sleep in the kernel."""

    async def so() -> float | None:
        return time.monotonic() if await asyncio.to_thread(any_worker_sleeps) else None

    return await eventually(so)


def any_worker_sleeps() -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        if name.endswith("(outlast-nvml") and rest.split()[0] == "D":
            return True
    return False


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[FrozenMount]:
    with frozen_mount(tmp_path) as mount:
        yield mount
        mount.thaw()
        until = time.monotonic() + 20
        while leaked_workers() and time.monotonic() < until:
            time.sleep(0.05)


@pytest.mark.root
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "can freeze a file system")
async def test_a_driver_that_never_answers_is_said_survived_and_recovered_from(
    tmp_path: Path, frozen: FrozenMount
) -> None:
    """In time, with every other source at work, at most two stuck workers over any number of agents, and an
    end at once; after the thaw the next agent finds out by itself that all is well."""
    async with place(tmp_path) as there:
        there.proc_root = Path("/proc")
        there.sysfs.add_efa("0000:a0:00.0")
        options = ("--expected-gpus", "8", "--expected-efa", "1")
        with counted() as stuck:
            async with running(there, *options) as agent:
                await there.until(GPU_MONITOR_READY, "True")
                await there.until(RDMA_READY, "True")
                there.nvml.action("nvmlDeviceGetSerial", f"dstate:{frozen.trap}", gpu=2)
                since_s = await asleep(there)
                # Everything else goes on while the call hangs ...
                there.sysfs.unplug("0000:a0:00.0")
                there.line("EXT4-fs (nvme0n1p1): Remounting filesystem read-only")
                await there.until(HOST_READY, "False")
                assert time.monotonic() - since_s < POLL_DEADLINE_S, "a kernel line did not wait for NVML"
                condition = await there.until(GPU_MONITOR_READY, "False", "DiagnosticsHung")
                assert time.monotonic() - since_s < POLL_DEADLINE_S + LATE_S
                assert there.nvml.address(2) in condition.message
                # ... and a hang alone makes no GPU bad.
                fault = await hung(there)
                assert (fault.fault_class, fault.second_witness) == (FaultClass.MONITOR_HUNG, False)
                gpus = await there.condition(GPU_READY)
                assert gpus is not None and gpus.status != "False"
                assert not [f for f in (await there.health()).faults if f.gpu is not None]
                await there.until(RDMA_READY, "False", "EfaMissing")
                there.xid(0, 79)
                await there.until(GPU_READY, "False", "GpuFellOffBus")
                agent.kill()
                await asyncio.to_thread(agent.wait, 10)
            # The second agent loses one more, and two are a witness; the third starts none.
            async with running(there, *options) as agent:
                await witnessed(there)
                assert len(leaked_workers()) == LEAKED_WORKERS_MAX
                agent.kill()
                await asyncio.to_thread(agent.wait, 10)
            for _ in range(2):
                async with running(there, *options) as agent:
                    await refused(there, agent.pid)
                    took_s = await asyncio.to_thread(ended_within, agent, 10)
                    assert took_s < EXIT_S
            async with running(there, *options) as agent:
                await refused(there, agent.pid)
                there.nvml.action("nvmlDeviceGetSerial", "", gpu=2)
                frozen.thaw()
                await there.until(GPU_MONITOR_READY, "True")
                assert "monitor/hung" not in await codes(there)
        assert max(stuck) == LEAKED_WORKERS_MAX


async def refused(there: Place, agent: int) -> None:
    """A later agent has begun, starts no worker, and goes on saying that the diagnostics hang."""
    begun = (await there.health()).started_at

    async def new() -> bool:
        return (await there.health()).started_at != begun

    await eventually(new)
    assert await asyncio.to_thread(workers_of, agent) == []
    await there.until(GPU_MONITOR_READY, "False", "DiagnosticsHung")
    # What the last agent knew of it may have died with it; the stuck workers are found again.
    await witnessed(there)


def workers_of(agent: int) -> list[int]:
    """The agent's own NVML workers."""
    tasks = Path(f"/proc/{agent}/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    return [int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "outlast-nvml\n"]


async def hangs(there: Place) -> None:
    """NVML stops answering, in a way that can be killed."""
    await there.until(GPU_MONITOR_READY, "True")
    there.nvml.action("nvmlDeviceGetUUID", "hang", gpu=3)
    await there.until(GPU_MONITOR_READY, "False", "DiagnosticsHung")
    assert not (await hung(there)).second_witness


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Place]:
    await asyncio.to_thread(folder.mkdir)
    async with place(folder) as there:
        yield there


async def test_only_a_second_witness_makes_a_hang_more_than_a_hang(tmp_path: Path) -> None:
    """Xid 119, a task that the kernel finds stuck, a task asleep in the driver by /proc; and none at all."""

    async def by_xid_119() -> None:
        async with scene(tmp_path / "xid") as there, running(there):
            await hangs(there)
            there.xid(3, 119, "Timeout after 6s of waiting for RPC response from GPU3 GSP!")
            await witnessed(there)

    async def by_a_hung_task() -> None:
        async with scene(tmp_path / "task") as there, running(there):
            await hangs(there)
            there.line("INFO: task nvidia-smi:4711 blocked for more than 120 seconds.")
            await witnessed(there)

    async def by_proc() -> None:
        async with scene(tmp_path / "proc") as there:
            proc = FakeProc(tmp_path / "proc/processes")
            there.proc_root = proc.root
            clocks = Clocks(tmp_path / "proc")
            there.environment = clocks.environment
            there.nvml.set("gpu.*.process_ids", "4711")
            waits_in = "[<0>] nvidia_ioctl+0x1/0x2 [nvidia]"
            proc.add(4711, "python", threads={4711: "S", 4712: "D"}, stack=waits_in)
            async with running(there):
                await hangs(there)
                # Two looks a minute apart; the first of them was asked for by the fault.
                clocks.step(steady_s=61)
                await witnessed(there)

    async def by_nobody(others: asyncio.Event) -> None:
        async with scene(tmp_path / "alone") as there, running(there):
            await hangs(there)
            there.line("INFO: task postgres:4711 blocked for more than 120 seconds.")
            await others.wait()
            assert not (await hung(there)).second_witness
            assert not [f for f in (await there.health()).faults if f.gpu is not None]
            gpus = await there.condition(GPU_READY)
            assert gpus is not None and gpus.status != "False"

    async with asyncio.TaskGroup() as group:
        others = asyncio.Event()
        group.create_task(by_nobody(others))
        async with asyncio.TaskGroup() as witnesses:
            witnesses.create_task(by_xid_119())
            witnesses.create_task(by_a_hung_task())
            witnesses.create_task(by_proc())
        others.set()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="needs root and /dev/fuse")
async def test_a_device_file_that_never_answers_hangs_its_own_source_only(tmp_path: Path) -> None:
    """The reader of network devices is stuck and cannot be killed: RDMA is unknown, the rest is judged on."""
    with silent_mount(tmp_path / "silent") as silent:
        async with place(tmp_path) as there:
            rdma = RdmaTree(there.sysfs)
            for number, address in enumerate(IB):
                rdma.add_infiniband(f"mlx5_{number}", address)
            async with running(there, *EIGHT_GPUS) as agent:
                await there.until(RDMA_READY, "True", "RdmaHealthy")
                state = rdma._homes["mlx5_1"] / "ports/1/state"
                state.unlink()
                state.symlink_to(silent / "state")
                there.xid(0, 48)  # A new fault has every source look again.
                await there.until(GPU_READY, "False", "UncorrectableMemoryError")

                async def stuck() -> bool:
                    return bool(await asyncio.to_thread(leaked_workers, Path("/proc"), FILE_READER))

                await eventually(stuck)
                there.xid(1, 79)
                await there.until(RDMA_READY, "Unknown", "RdmaNotReadable")
                await says(there, "mlx5_1")
                monitor = await there.condition(GPU_MONITOR_READY)
                assert monitor is not None and monitor.status == "True"
                assert len(await asyncio.to_thread(readers, agent.pid)) <= 2
                took_s = await asyncio.to_thread(ended_within, agent, 10)
                assert took_s < EXIT_S

    async def gone() -> bool:
        return not await asyncio.to_thread(leaked_workers, Path("/proc"), FILE_READER)

    await eventually(gone)


async def test_a_journal_that_never_answers_leaves_the_rest_at_work_and_is_said(tmp_path: Path) -> None:
    """NVML vouches for the GPUs, nobody claims to have read the log, and the agent ends at once."""
    programs = tmp_path / "programs"
    programs.mkdir()
    journal = programs / "journalctl"
    journal.write_text(f"#!/bin/sh\necho $$ > {programs}/pid\nexec sleep 600\n")
    journal.chmod(0o755)
    async with place(tmp_path) as there:
        there.environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        there.kernel_log = Path("journal")
        async with running(there) as agent:
            await there.until(GPU_READY, "True")
            condition = await there.until(GPU_MONITOR_READY, "Unknown", "NotYetChecked")
            assert "kernel log has not been read" in condition.message
            pid = int((programs / "pid").read_text())
            took_s = await asyncio.to_thread(ended_within, agent, 10)
            assert took_s < EXIT_S

        async def gone() -> bool:
            return not await asyncio.to_thread(Path(f"/proc/{pid}").exists)

        await eventually(gone)
