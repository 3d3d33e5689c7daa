"""`outlast agent` as a process on a machine with a scripted DCGM: what it says, and that it holds nobody."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from outlast.model.names import GPU_MONITOR_READY, GPU_READY
from tests.dcgm import FakeDcgmi, recorded
from tests.e2e.test_agent_process import EIGHT_GPUS, ended_within, eventually, place, running

pytestmark = pytest.mark.asyncio

CHROOT = '#!/bin/sh\nroot=$1; program=$2; shift 2; exec "$root$program" "$@"\n'
"""The mounted machine has no shell that the scripted tool could run with."""


@pytest.fixture
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDcgmi:
    """In the machine's own /usr/bin."""
    fake = FakeDcgmi(tmp_path)
    there = tmp_path / "host/usr/bin/dcgmi"
    there.parent.mkdir(parents=True)
    there.write_text(f'#!/bin/sh\nexec {fake.path} "$@"\n')
    there.chmod(0o755)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "chroot").write_text(CHROOT)
    (programs / "chroot").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return fake


async def test_an_engine_that_watches_nothing_is_told_and_blocks_nobody(
    tmp_path: Path, dcgmi: FakeDcgmi
) -> None:
    """NVML vouches: the conditions stay True, and the message tells how to turn the watches on."""
    dcgmi.say("health", recorded("health-watches-off.txt"), 253)
    async with place(tmp_path) as there, running(there):
        await there.until(GPU_READY, "True")

        async def told() -> str | None:
            condition = await there.condition(GPU_MONITOR_READY)
            message = condition.message if condition and condition.status == "True" else ""
            return message if "DcgmUnusable" in message else None

        assert "dcgmi health -s a" in await eventually(told)
        assert {call.split()[0] for call in dcgmi.calls()} == {"health"}


async def test_sigterm_ends_the_agent_and_its_tool_at_once_while_dcgm_hangs(
    tmp_path: Path, dcgmi: FakeDcgmi
) -> None:
    """And until then everything else is published as if there were no DCGM."""
    dcgmi.hang("health")
    async with place(tmp_path) as there, running(there) as agent:
        await there.until(GPU_READY, "True")
        await there.until(GPU_MONITOR_READY, "True")

        async def asked() -> int | None:
            return dcgmi.pid()

        pid = await eventually(asked)
        took_s = await asyncio.to_thread(ended_within, agent, 5)
        assert took_s < 1.5

        async def gone() -> bool:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True
            return False

        await eventually(gone)


async def test_dcgm_is_not_asked_where_it_is_switched_off(tmp_path: Path, dcgmi: FakeDcgmi) -> None:
    """`--dcgm off`."""
    async with place(tmp_path) as there, running(there, *EIGHT_GPUS, "--dcgm", "off"):
        await there.until(GPU_READY, "True")
        await there.until(GPU_MONITOR_READY, "True")
        assert dcgmi.calls() == []
