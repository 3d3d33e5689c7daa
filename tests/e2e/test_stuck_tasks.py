"""Stuck tasks on the real /proc: a thread in true uninterruptible sleep, alive and after SIGKILL.

No NVIDIA driver is here, so the sleep is in a frozen file system, and the word that is looked for in the
stack is one of its functions. Everything else is as on a GPU node.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from outlast.adapters.linux import processes
from outlast.adapters.linux.processes import ProcProcesses
from outlast.model.observation import ProcessSurvey, Witness
from outlast.ports.node import Wanted
from tests.contract.node.hand_clock import HandClock
from tests.nvml.frozen import FrozenMount, frozen_mount, why_not

pytestmark = [
    pytest.mark.root,
    pytest.mark.asyncio,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "can freeze a file system"),
]
SLEEPER = textwrap.dedent(
    """
    import sys, threading, time
    threading.Thread(target=lambda: open(sys.argv[1], "w"), daemon=True).start()
    while True:
        time.sleep(1)
    """
)


def start(trap: Path) -> subprocess.Popen[bytes]:
    """A process whose second thread opens a file that it never gets."""
    return subprocess.Popen([sys.executable, "-c", SLEEPER, trap], start_new_session=True)


def states(pid: int) -> dict[int, str]:
    """State of each thread; empty when the process is gone."""
    found = {}
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            found[int(task.parent.name)] = task.read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
    return found


async def until(true: object) -> None:
    """Wait for a state of another process."""
    assert callable(true)
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def frozen(tmp_path: Path) -> AsyncIterator[FrozenMount]:
    with frozen_mount(tmp_path) as mount:
        yield mount


async def test_a_thread_asleep_in_the_kernel_is_found_before_and_after_its_process_was_killed(
    frozen: FrozenMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process sleeps or is dead to look at; the thread's own entry and its kernel stack tell."""
    child = start(frozen.trap)
    clock = HandClock()
    source = ProcProcesses(clock=clock)
    wanted = Wanted(process_ids=(child.pid,))

    async def after(seconds: float) -> ProcessSurvey:
        clock.wait(seconds)
        return await source.survey(wanted)

    try:
        await until(lambda: "D" in states(child.pid).values())
        await after(0)
        elsewhere = (await after(30)).stuck
        monkeypatch.setattr(processes, "_DRIVER_IN_STACK", "open")
        await source.aclose()
        source = ProcProcesses(clock=clock)
        await after(0)
        alive = (await after(61)).stuck
        os.kill(child.pid, signal.SIGKILL)
        await until(lambda: states(child.pid).get(child.pid) == "Z")
        dead = (await after(30)).stuck
    finally:
        frozen.thaw()
        child.kill()
        child.wait(timeout=20)
        await source.aclose()

    ours = [task for task in alive if task.pid == child.pid]
    killed = [task for task in dead if task.pid == child.pid]
    assert elsewhere == ()
    assert [(t.witness, t.zombie, t.asleep_s) for t in ours] == [(Witness.STACK, False, 61)]
    assert ours[0].tid != child.pid
    assert [(t.tid, t.zombie) for t in killed] == [(ours[0].tid, True)]
