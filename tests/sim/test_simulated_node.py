"""The simulated node does to the agent what a machine does: overwrites, reboots, loses devices."""

import asyncio
from contextlib import aclosing

import pytest

from outlast.model.observation import (
    KernelLogCaughtUp,
    KernelLogGap,
    KernelLogLost,
    KernelRecord,
    SurveyProblem,
)
from outlast.sim.node import FakeGpuReader, FakeKernelLog, FakeMachine, FakePciBus, Hardware, MemoryStateFile
from tests.contract.node.logs import RealTime, read_to_end, take

pytestmark = pytest.mark.asyncio


def kernel_log(machine: FakeMachine, **options: object) -> FakeKernelLog:
    log = FakeKernelLog(clock=RealTime(), boot_id=machine.boot_id, **options)
    machine.attach(log)
    return log


async def test_a_written_line_looks_like_the_drivers_and_keeps_its_text() -> None:
    """Priority 4, flag c, kernel facility; control characters and UTF-8 survive the escaping."""
    log = kernel_log(FakeMachine("gpu-0001"))
    text = "NVRM: Xid (PCI:0000:02:00): 79, pid=7, name=caf\u00e9\nGPU has fallen off the bus. \\x41"
    log.write(text)

    record, _ = await read_to_end(log)

    assert isinstance(record, KernelRecord)
    assert (record.priority, record.facility, record.flags, record.text) == (4, 0, "c", text)


async def test_a_full_ring_overwrites_and_the_loss_is_counted() -> None:
    """A follower that was too slow learns how many records it missed."""
    log = kernel_log(FakeMachine("gpu-0001"), records_max=4)
    log.write("seen")
    async with aclosing(log.records()) as records:
        await take(records, 2)
        for number in range(10):
            log.write(f"flood {number}")
        gap, *rest = await take(records, 5)

    assert isinstance(gap, KernelLogGap)
    assert gap.lost == 6
    assert [item.text for item in rest if isinstance(item, KernelRecord)] == [
        f"flood {n}" for n in range(6, 10)
    ]


async def test_a_reboot_gives_a_new_boot_id_and_an_empty_log() -> None:
    """A follower, and an agent that starts again, both see the new boot from its first record."""
    machine, state = FakeMachine("gpu-0001"), MemoryStateFile()
    log = kernel_log(machine, state=state)
    for _ in range(3):
        log.write("before")
    await read_to_end(log)
    before = machine.boot_id

    machine.reboot()
    log.write("after")

    assert machine.boot_id != before
    assert machine.facts().boot_id == machine.boot_id
    assert [item.text for item in await read_to_end(log) if isinstance(item, KernelRecord)] == ["after"]


async def test_a_follower_survives_the_reboot_of_its_machine() -> None:
    """The simulated agent may keep its iterator; it is told that a new log begins."""
    machine = FakeMachine("gpu-0001")
    log = kernel_log(machine)
    async with aclosing(log.records()) as records:
        await take(records, 1)
        machine.reboot()
        log.write("after")
        items = await take(records, 2)

    assert [type(item) for item in items] == [KernelRecord, KernelLogCaughtUp]


async def test_a_follower_waits_on_the_empty_log_of_a_new_boot() -> None:
    """With nothing written since the reboot the follower sleeps; others on the loop get their turn."""
    machine = FakeMachine("gpu-0001")
    log = kernel_log(machine)
    log.write("before the reboot")
    async with aclosing(log.records()) as records:
        await take(records, 2)
        machine.reboot()
        following = asyncio.ensure_future(anext(records))
        turns = 0
        while not following.done() and turns < 100:
            await asyncio.sleep(0)
            turns += 1
        caught_up = await following
        following = asyncio.ensure_future(anext(records))
        for _ in range(100):
            await asyncio.sleep(0)
        waiting = not following.done()
        log.write("after the reboot")
        record = await following

    assert isinstance(caught_up, KernelLogCaughtUp)
    assert waiting
    assert isinstance(record, KernelRecord)
    assert record.text == "after the reboot"


async def test_a_lost_log_comes_back_with_what_was_written_meanwhile() -> None:
    """Lost, then caught up, with nothing missing."""
    log = kernel_log(FakeMachine("gpu-0001"))
    async with aclosing(log.records()) as records:
        await take(records, 1)
        log.lose("gone")
        log.write("meanwhile")
        (lost,) = await take(records, 1)
        log.restore()
        record, caught_up = await take(records, 2)

    assert lost == KernelLogLost(message="gone")
    assert isinstance(record, KernelRecord)
    assert record.text == "meanwhile"
    assert isinstance(caught_up, KernelLogCaughtUp)


async def test_one_hardware_shows_the_same_gpu_to_bus_and_driver() -> None:
    """A GPU off the bus is lost for NVML; an unplugged one is gone from both."""
    hardware = Hardware.h100("gpu-0001")
    off, out = list(hardware.gpus)[3:5]
    hardware.off_bus.add(off)
    hardware.unplugged.add(out)
    hardware.change(next(iter(hardware.gpus)), recovery_action=2)

    bus = FakePciBus(hardware).survey()
    survey = await FakeGpuReader(hardware, clock=RealTime()).survey(tuple(hardware.gpus))

    assert out not in {gpu.address for gpu in bus.gpus}
    assert {gpu.address for gpu in bus.gpus if not gpu.responds} == {off}
    assert {gpu.pci_address: gpu.error for gpu in survey.gpus if gpu.error} == {
        off: "GPU_IS_LOST",
        out: "NOT_FOUND",
    }
    assert survey.gpus[0].recovery_action == 2


async def test_a_hung_driver_as_a_whole_ends_with_the_reboot() -> None:
    """No GPU is blamed, nothing is read, and a new boot starts clean."""
    machine, hardware = FakeMachine("gpu-0001"), Hardware.h100("gpu-0001")
    reader = FakeGpuReader(hardware, clock=RealTime(rate=1000))
    machine.attach(reader)
    reader.hanging.add("")

    async with asyncio.timeout(10):
        hung = await reader.survey(tuple(hardware.gpus))
    machine.reboot()

    assert (hung.problem, hung.problem_gpu, hung.gpus) == (SurveyProblem.HUNG, "", ())
    assert (await reader.survey(tuple(hardware.gpus))).complete
