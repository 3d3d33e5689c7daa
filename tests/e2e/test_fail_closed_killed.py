"""An agent that is killed or stopped, or whose clock steps: no fault is lost, invented or renamed."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from outlast.model.health import Fault
from outlast.model.names import AGENT_CONDITIONS, GPU_MONITOR_READY, GPU_READY
from tests.closed.clocks import Clocks
from tests.e2e.test_agent_process import EIGHT_GPUS, Place, eventually, place, running

pytestmark = pytest.mark.asyncio

SEED = 20261130
ROUNDS = 20
ALIVE_S = (0.3, 1.5)
DAY_S = 86_400.0
CODES = (48, 62, 95, 46, 109, 79)
"""Each of another kind, and each leads."""


class Ring:
    """A kernel log that keeps its lines, as the kernel's ring does: an agent that starts finds them all."""

    def __init__(self, there: Place, folder: Path) -> None:
        self.path = folder / "ring"
        self.path.touch()
        there.kernel_log = self.path
        self._sequence = 0
        self._begun_us = int(time.monotonic() * 1_000_000)

    def say(self, text: str) -> None:
        self._sequence += 1
        us = self._begun_us + self._sequence * 100
        with self.path.open("ab", buffering=0) as ring:
            ring.write(f"4,{self._sequence},{us},c;{text}\n".encode())


@pytest.mark.timeout(240)
async def test_twenty_kills_at_any_moment_lose_nothing_and_invent_nothing(tmp_path: Path) -> None:
    """Lines are printed all along, while an agent runs and while none does: in the end each sick GPU has its
    one fault under the one id that it always had, with each line as evidence once."""
    rng = Random(SEED)
    sick = dict(zip(rng.sample(range(8), len(CODES)), CODES, strict=True))
    ids: dict[str, set[str]] = {}
    async with place(tmp_path) as there:
        ring = Ring(there, tmp_path)
        over = asyncio.Event()

        async def print_lines() -> None:
            at = {
                round_: gpu
                for gpu, round_ in zip(sick, rng.sample(range(ROUNDS * 8), len(sick)), strict=True)
            }
            number = 0
            while not over.is_set() or number < ROUNDS * 8:
                ring.say(f"systemd[1]: foreign line {number}")
                if number % 5 == 0:
                    ring.say(
                        f"NVRM: Xid (PCI:{there.nvml.address(7)[:-2]}): 13, a program's own error {number}"
                    )
                if number in at:
                    gpu = at[number]
                    ring.say(f"NVRM: Xid (PCI:{there.nvml.address(gpu)[:-2]}): {sick[gpu]}, number {number}")
                number += 1
                await asyncio.sleep(0 if over.is_set() else 0.05)

        async def note_ids() -> None:
            for fault in (await there.health()).faults:
                ids.setdefault(fault.gpu.pci_address if fault.gpu else fault.device, set()).add(fault.id)

        async with running(there):  # What was printed before the first agent is history, and judged as such.
            await there.until(GPU_READY, "True")
            await eventually(lambda: saved(there))
        async with asyncio.TaskGroup() as group:
            group.create_task(print_lines())
            for _ in range(ROUNDS):
                agent = there.start()
                await asyncio.sleep(rng.uniform(*ALIVE_S))
                agent.kill()
                await asyncio.to_thread(agent.wait, 10)
                await note_ids()
            over.set()
        async with running(there):
            last = await eventually(lambda: all_seen(there, len(sick)))
            await note_ids()
            condition = await there.until(GPU_READY, "False")
        async with running(there):  # Nothing changes by one restart more.
            await there.until(GPU_MONITOR_READY, "True")
            again = await eventually(lambda: all_seen(there, len(sick)))
            still = await there.until(GPU_READY, "False")

    assert {f.gpu.pci_address: f.code for f in last if f.gpu} == {
        there.nvml.address(gpu): f"xid/{code}" for gpu, code in sick.items()
    }
    assert {place_: len(known) for place_, known in ids.items()} == dict.fromkeys(
        (there.nvml.address(gpu) for gpu in sick), 1
    )
    assert {f.id for f in again} == {f.id for f in last}
    for fault in last:
        said = Counter(seen.text for seen in fault.evidence if "Xid" in seen.text)
        assert set(said.values()) == {1}, said
    assert condition.last_transition_time == still.last_transition_time


async def saved(there: Place) -> bool:
    return await asyncio.to_thread((there.state / "judge.json").exists)


async def all_seen(there: Place, count: int) -> tuple[Fault, ...]:
    faults = (await there.health()).faults
    return faults if len(faults) >= count else ()


async def test_an_agent_that_stood_still_blames_nobody_and_catches_up(tmp_path: Path) -> None:
    """Ten minutes of SIGSTOP in the middle of a survey: no hang is claimed, and what was printed is read."""
    async with place(tmp_path) as there:
        clocks = Clocks(tmp_path)
        there.environment = clocks.environment
        ring = Ring(there, tmp_path)
        async with running(there) as agent:
            await there.until(GPU_MONITOR_READY, "True")
            there.nvml.action(
                "nvmlDeviceGetSerial", "sleep:150"
            )  # A survey is under way nearly all the time.
            for round_ in range(3):
                await asyncio.sleep(0.3)
                agent.send_signal(signal.SIGSTOP)
                clocks.step(steady_s=600)
                if round_ == 2:
                    ring.say(f"NVRM: Xid (PCI:{there.nvml.address(3)[:-2]}): 79, GPU has fallen off the bus.")
                agent.send_signal(signal.SIGCONT)
            await there.until(GPU_READY, "False", "GpuFellOffBus")
            there.nvml.action("nvmlDeviceGetSerial", "")
            await there.until(GPU_MONITOR_READY, "True")
            assert {fault.code for fault in (await there.health()).faults} == {"xid/79"}
            assert "monitor/hung" not in await asyncio.to_thread(there.log_path.read_text)


async def test_a_clock_that_steps_a_day_moves_no_verdict_and_no_transition(tmp_path: Path) -> None:
    """Back and forth: what stands, stands since when it did, and a new fault is found at once as ever."""
    async with place(tmp_path) as there:
        clocks = Clocks(tmp_path)
        there.environment = clocks.environment
        async with running(there, *EIGHT_GPUS, "--heartbeat", "0.5"):
            await there.until(GPU_MONITOR_READY, "True")
            there.xid(5, 79, "GPU has fallen off the bus.")
            await there.until(GPU_READY, "False", "GpuFellOffBus")
            await eventually(lambda: all_seen(there, 1))
            before = await transitions(there)
            wall_s = 0.0
            for step_s in (DAY_S, -2 * DAY_S, DAY_S, -DAY_S):
                clocks.step(wall_s=step_s)
                wall_s += step_s
                await told_at(there, wall_s)
                assert await transitions(there) == before
                assert [fault.code for fault in (await there.health()).faults] == ["xid/79"]
            there.xid(2, 48)
            await eventually(lambda: all_seen(there, 2))
            assert await transitions(there) == before


async def transitions(there: Place) -> dict[str, tuple[object, ...]]:
    """Status, reason and the time of the last flip, of each condition."""
    found = {type_: await there.condition(type_) for type_ in AGENT_CONDITIONS}
    return {
        type_: (condition.status, condition.reason, condition.last_transition_time)
        for type_, condition in found.items()
        if condition is not None
    }


async def told_at(there: Place, wall_s: float) -> None:
    """A check was completed and published by the stepped clock, which its time shows."""

    async def so() -> bool:
        condition = await there.condition(GPU_READY)
        assert condition is not None and condition.last_heartbeat_time is not None
        shown = condition.last_heartbeat_time - datetime.now(UTC)
        return abs(shown.total_seconds() - wall_s) < DAY_S / 4

    await eventually(so)
