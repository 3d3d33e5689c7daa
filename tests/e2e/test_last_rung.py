"""The last rung on a real API server: a board that is dead after the reboot is handed over, once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from outlast.model import names
from tests.controlplane.installation import Installation
from tests.e2e.line import Box, until
from tests.e2e.scene import XID_79, closed, cordoned, line_on, running, with_work

Json = dict[str, Any]

DEAD = 5
"""The GPU whose board is broken."""

pytestmark = pytest.mark.controlplane


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_a_board_that_stays_dead_is_handed_over_after_one_reboot(
    own_installation: Installation, tmp_path: Path
) -> None:
    """AcceleratedHardwareReady becomes False only after the one reboot did not help, on a drained and
    cordoned node; no foreign condition changes; the node's disappearance closes the incident."""
    async with line_on(own_installation, tmp_path) as line:

        async def still_dead(box: Box) -> None:
            box.nvml.action("nvmlDeviceGetUUID", "ret:15", gpu=DEAD)
            box.sysfs.fall_off_bus(box.nvml.address(DEAD))
            box.say(XID_79.format(gpu=box.nvml.address(DEAD)[:10]))

        line.on_boot = still_dead  # type: ignore[method-assign]
        sick = await with_work(line)
        boot_before = line.kubelets.machine("sick").boot_id
        assert line.condition("sick", names.ACCELERATED_HARDWARE_READY) is None

        sick.say(XID_79.format(gpu=sick.nvml.address(DEAD)[:10]))
        await until(lambda: line.reboots, "the reboot", 90)
        assert line.condition("sick", names.ACCELERATED_HARDWARE_READY) is None, "a reboot comes first"

        def handed_over() -> Json | None:
            found = line.condition("sick", names.ACCELERATED_HARDWARE_READY)
            return found if found is not None and found["status"] == "False" else None

        told = await until(handed_over, "the hand-over", 120)
        assert "79" in told["message"] and told["reason"] == "OutlastReplace"
        assert line.reboots == [("sick", boot_before)]
        assert cordoned(line, "sick")
        assert [n for n in running(line, "sick") if not n.startswith("daemon")] == [], "drained first"
        node = line.node("sick")
        kinds = [c["type"] for c in node["status"]["conditions"]]
        assert len(kinds) == len(set(kinds)) and {"Ready", "MemoryPressure", "DiskPressure"} <= set(kinds)
        assert next(c for c in node["status"]["conditions"] if c["type"] == "Ready")["status"] == "True"
        code, out, err = await line.outlast("explain", "sick")
        assert code == 0, err
        assert "handed over" in out and "failed" in out

        # Karpenter would take the machine away now.
        await asyncio.to_thread(line.admin.request, "DELETE", "/api/v1/nodes/sick")
        incident = await until(lambda: closed(line, "sick"), "the incident is closed", 90)
        assert incident["status"]["end"]["result"] == "Replaced"
        rungs = [a["rung"] for a in incident["status"]["attempts"]]
        assert rungs[0] == "BlockNewWork" and rungs[-2:] == ["Reboot", "Replace"]
        results = {a["rung"]: a["outcome"]["result"] for a in incident["status"]["attempts"]}
        assert (results["Reboot"], results["Replace"]) == ("Failed", "Succeeded")
        assert len(line.repairs) == 1
