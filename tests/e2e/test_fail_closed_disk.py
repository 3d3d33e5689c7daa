"""What the agent does without its disk or its kernel log: it works on, and says what it cannot do."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from outlast.model.names import GPU_MONITOR_READY, GPU_READY
from tests.closed.disks import KINDS, why_no_disks
from tests.e2e.test_agent_process import Place, eventually, place, running

pytestmark = pytest.mark.asyncio

DEVICES_CGROUP = Path("/sys/fs/cgroup/devices")


async def monitor_says(there: Place, words: str) -> str:
    """Wait until the message of GPUMonitorReady has these words."""

    async def so() -> str | None:
        condition = await there.condition(GPU_MONITOR_READY)
        return condition.message if condition and words in condition.message else None

    return await eventually(so)


async def monitor_says_no_more(there: Place, words: str) -> None:
    async def so() -> bool:
        condition = await there.condition(GPU_MONITOR_READY)
        return condition is not None and words not in condition.message

    await eventually(so)


async def fault_ids(there: Place, count: int = 1) -> set[str]:
    """Of all faults, once there are so many."""

    async def so() -> set[str] | None:
        faults = (await there.health()).faults
        return {fault.id for fault in faults} if len(faults) >= count else None

    return await eventually(so)


async def logged(there: Place, words: str) -> None:
    """Wait until the agent's own log has this."""

    async def so() -> bool:
        return words in await asyncio.to_thread(there.log_path.read_text)

    await eventually(so)


def lasting(there: Place, folder: Path) -> None:
    """A kernel log that keeps its lines over the agent's restarts, as the kernel's ring does."""
    there.kernel_log = folder / "ring"
    there.kernel_log.touch()


def say(there: Place, number: int, text: str) -> None:
    with there.kernel_log.open("ab", buffering=0) as ring:
        ring.write(f"4,{number},{number * 1000},c;{text}\n".encode())


def xid(there: Place, gpu: int, code: int) -> str:
    return f"NVRM: Xid (PCI:{there.nvml.address(gpu)[:-2]}): {code}, text"


@pytest.mark.root
@pytest.mark.skipif(bool(why_no_disks()), reason=why_no_disks() or "can make disks")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_disk_that_refuses_costs_durability_only_and_is_said(tmp_path: Path, kind: str) -> None:
    """Faults are published as ever, and the condition tells what is wrong; a restart reads the log again and
    gives each fault its old id; when the disk is well again nothing is said any more."""
    with KINDS[kind](tmp_path / "disk") as disk:
        async with place(tmp_path) as there:
            there.state = disk.path / "state"
            lasting(there, tmp_path)
            async with running(there):
                await there.until(GPU_MONITOR_READY, "True")
                await eventually(lambda: saved(there))
                disk.fail()
                say(there, 1, xid(there, 5, 79))
                await there.until(GPU_READY, "False", "GpuFellOffBus")
                message = await monitor_says(there, "state cannot be saved")
                assert disk.words in message
                assert "reads the kernel log again" in message
                await logged(there, "state cannot be saved")
                known = await fault_ids(there)
            async with running(there):
                await there.until(GPU_READY, "False", "GpuFellOffBus")
                await monitor_says(there, disk.words)
                say(there, 2, xid(there, 2, 48))
                assert known < await fault_ids(there, 2)
                if disk.mend is not None:
                    disk.mend()
                    say(there, 3, xid(there, 3, 95))
                    await monitor_says_no_more(there, "state cannot be saved")
                    assert len(await fault_ids(there, 3)) == 3


async def saved(there: Place) -> bool:
    return await asyncio.to_thread((there.state / "judge.json").exists)


NEWER = json.dumps({"version": 99, "boot_id": "x", "faults": [{"id": 1}], "what": "nobody knows"}).encode()


@contextmanager
def damaged(kind: str, file: Path) -> Iterator[str]:
    """A state file that is no good; what the agent says of it."""
    file.parent.mkdir(parents=True)
    match kind:
        case "garbage":
            file.write_bytes(os.urandom(5000))
            yield "unreadable"
        case "cut short":
            file.write_bytes(
                b'{"version":2,"boot_id":"0d1cfb9c-4d0e-4a36-9d38-7d0a4c1f7a01","faults":[{"id":"x"'
            )
            yield "unreadable"
        case "of a newer agent":
            file.write_bytes(NEWER)
            yield "version 99"
        case "a folder":
            file.mkdir()
            yield "no plain file"
        case "a link":
            (file.parent / "other").write_bytes(NEWER)
            file.symlink_to(file.parent / "other")
            yield "no plain file"
        case "a pipe":
            os.mkfifo(file)
            yield "no plain file"


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Place]:
    await asyncio.to_thread(folder.mkdir)
    async with place(folder) as there:
        yield there


@asynccontextmanager
async def the_next_agent(there: Place) -> AsyncIterator[None]:
    """Runs, and what is published is its word, no longer that of the one before."""
    begun = (await there.health()).started_at

    async def said() -> bool:
        return (await there.health()).started_at != begun

    async with running(there):
        await eventually(said)
        yield


async def test_a_state_file_that_is_no_good_is_said_and_replaced(tmp_path: Path) -> None:
    """Garbage, half a file, a newer version, a folder, a link, a pipe: the agent starts without it, and only
    where it cannot be replaced it is said that nothing is saved."""
    async with place(tmp_path) as there:
        for kind in ("garbage", "cut short", "of a newer agent", "a folder", "a link", "a pipe"):
            there.state = tmp_path / kind
            file = there.state / "judge.json"
            with damaged(kind, file) as words:
                async with the_next_agent(there):
                    message = await monitor_says(there, words)
                    assert "may be forgotten" in message
                    if kind == "a folder":
                        await monitor_says(there, "state cannot be saved")
                    else:
                        await eventually(lambda file=file: holds(file, b'"version":2'))
                        assert not await asyncio.to_thread(file.is_symlink)
        await there.until(GPU_READY, "True")
        logged = await asyncio.to_thread(there.log_path.read_text)
        assert logged.count("starting without memory") == 6


async def holds(file: Path, words: bytes) -> bool:
    """Whether it is a plain file with these words in it."""

    def so() -> bool:
        try:
            return file.is_file() and words in file.read_bytes()
        except OSError:
            return False

    return await asyncio.to_thread(so)


async def test_a_state_folder_that_is_removed_comes_back_and_no_repaired_fault_with_it(
    tmp_path: Path,
) -> None:
    """With the next change it is written again; without the position alone no old line becomes news."""
    async with place(tmp_path) as there:
        lasting(there, tmp_path)
        async with running(there):
            await there.until(GPU_READY, "True")
            say(there, 1, xid(there, 5, 63))  # over as soon as the GPU is seen to have no row waiting
            await logged(there, "fault is over")
            await eventually(lambda: saved(there))
            for file in there.state.iterdir():
                file.unlink()
            there.state.rmdir()
            say(there, 2_000, xid(there, 2, 79))
            await eventually(lambda: holds(there.state / "judge.json", b"xid/79"))
            known = await fault_ids(there)
        (there.state / "kernel-log.json").unlink(missing_ok=True)
        async with running(there):
            await there.until(GPU_MONITOR_READY, "True")
            say(there, 3_000, xid(there, 3, 48))
            found = await fault_ids(there, 2)
            assert known < found and len(found) == 2
            opened = (await asyncio.to_thread(there.log_path.read_text)).count('"event": "fault"')
            assert opened == 3


async def test_a_kernel_log_that_is_not_there_is_said_until_it_is(tmp_path: Path) -> None:
    """NVML goes on vouching for the GPUs; what only the log can tell is not claimed."""
    async with place(tmp_path) as there:
        there.kernel_log = tmp_path / "no/kmsg"
        async with running(there):
            await there.until(GPU_READY, "True")
            condition = await there.until(GPU_MONITOR_READY, "Unknown", "KernelLogBlind")
            assert "does not exist" in condition.message and "mount" in condition.message
            await asyncio.to_thread(there.kernel_log.parent.mkdir)
            say(there, 1, "hello")
            await there.until(GPU_MONITOR_READY, "True")
            say(there, 2, xid(there, 2, 79))
            await there.until(GPU_READY, "False", "GpuFellOffBus")


@contextmanager
def no_kernel_device() -> Iterator[str]:
    """A command that starts a program which the device cgroup refuses /dev/kmsg, as in any container."""
    group = DEVICES_CGROUP / f"outlast-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "devices.deny").write_text("c 1:11 rwm")
        yield f'echo $$ > {group}/tasks && exec "$@"'
    finally:
        until_s = time.monotonic() + 20
        while group.exists():
            try:
                group.rmdir()
            except OSError:  # Its last processes are ending.
                assert time.monotonic() < until_s
                time.sleep(0.05)


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or not (DEVICES_CGROUP / "devices.deny").exists(),
    reason="needs root and the device cgroup of version 1",
)
async def test_a_kernel_device_that_is_refused_is_said_and_another_way_is_taken(tmp_path: Path) -> None:
    """Named, it is what cannot be read; else syslog(2) takes over, and the condition says so."""

    async def named(command: str) -> None:
        async with scene(tmp_path / "named") as there:
            there.wrapper = ("sh", "-c", command, "sh")
            there.kernel_log = Path("/dev/kmsg")
            async with running(there):
                await there.until(GPU_READY, "True")
                condition = await there.until(GPU_MONITOR_READY, "Unknown", "KernelLogBlind")
                assert "refused by the device cgroup" in condition.message

    async def chosen(command: str) -> None:
        async with scene(tmp_path / "chosen") as there:
            there.wrapper = ("sh", "-c", command, "sh")
            there.kernel_log = Path("auto")
            async with running(there):
                await monitor_says(there, "the kernel log (syslog(2)) answer")
                await logged(there, "refused by the device cgroup")

    with no_kernel_device() as command:
        async with asyncio.TaskGroup() as group:
            group.create_task(named(command))
            group.create_task(chosen(command))


async def test_lines_that_were_overwritten_unread_are_counted_and_said(tmp_path: Path) -> None:
    """A hole in the numbers of the log: it is said, everything is probed, and what is not lost is judged."""
    async with place(tmp_path) as there, running(there):
        await there.until(GPU_MONITOR_READY, "True")
        there.line("the last one before")
        there._sequence += 5_000
        there.line("the first one after")
        await logged(there, "records of the kernel log were lost")
        there.xid(2, 79)
        await there.until(GPU_READY, "False", "GpuFellOffBus")
        assert len(await fault_ids(there)) == 1
