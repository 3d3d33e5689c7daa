"""What the agent's process writes when it is killed and when a source falls silent: no time moves untruly."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

import pytest

from outlast.model.names import AGENT_CONDITIONS, GPU_MONITOR_READY, GPU_READY
from tests.e2e.test_agent_process import EIGHT_GPUS, Place, eventually, place

pytestmark = pytest.mark.asyncio

QUICK = (*EIGHT_GPUS, "--heartbeat", "1")


async def times(there: Place) -> dict[str, tuple[str, datetime | None, datetime | None]]:
    """Status, transition and heartbeat of each of our conditions."""
    found = {}
    for type_ in AGENT_CONDITIONS:
        if (condition := await there.condition(type_)) is not None:
            found[type_] = (condition.status, condition.last_transition_time, condition.last_heartbeat_time)
    return found


async def beats_on(there: Place, after: datetime | None) -> datetime:
    async def later() -> datetime | None:
        beat = (await times(there))[GPU_READY][2]
        assert after is not None
        return beat if beat is not None and beat > after else None

    return await eventually(later)


async def test_kill_9_moves_no_transition(tmp_path: Path) -> None:
    """Twice killed without a word, each condition still tells since when it is so; only heartbeats go on."""
    async with place(tmp_path) as there:
        process = there.start(*QUICK)
        try:
            for type_ in (GPU_READY, GPU_MONITOR_READY):
                await there.until(type_, "True")
            before = await times(there)
            assert set(before) == set(AGENT_CONDITIONS)
            for _ in range(2):
                process.kill()
                await asyncio.to_thread(process.wait, 10)
                beat = (await times(there))[GPU_READY][2]
                process = there.start(*QUICK)
                await beats_on(there, beat)
                after = await times(there)
                assert {t: v[:2] for t, v in after.items()} == {t: v[:2] for t, v in before.items()}
        finally:
            process.kill()
            await asyncio.to_thread(process.wait, 10)


async def test_the_heartbeat_stands_still_while_nvml_hangs_and_goes_on_after(tmp_path: Path) -> None:
    """Asked every second to beat, the agent has nothing new to vouch for; a flip moves its own time only."""
    async with place(tmp_path) as there:
        process = there.start(*QUICK)
        try:
            await there.until(GPU_READY, "True")
            before = await times(there)
            there.nvml.action("nvmlDeviceGetUUID", "hang", gpu=0)
            await there.until(GPU_MONITOR_READY, "False", "DiagnosticsHung")
            hung = await times(there)
            assert hung[GPU_MONITOR_READY][1] != before[GPU_MONITOR_READY][1]
            assert hung[GPU_READY][1] == before[GPU_READY][1]
            there.xid(1, 13, "Graphics Exception: ESR 0x504648=0x1000e")  # something else goes on meanwhile

            async def asked_again() -> bool:
                # GPU 0 is asked last, after a pause of ten seconds: until then nothing completes.
                found = await times(there)
                assert found[GPU_READY][2] == hung[GPU_READY][2]
                return there.log_path.stat().st_size > size and b"xid/13" in there.log_path.read_bytes()

            size = there.log_path.stat().st_size
            await eventually(asked_again)
            there.nvml.action("nvmlDeviceGetUUID", "", gpu=0)
            await there.until(GPU_MONITOR_READY, "True")
            await beats_on(there, hung[GPU_READY][2])
        finally:
            process.kill()
            await asyncio.to_thread(process.wait, 10)
