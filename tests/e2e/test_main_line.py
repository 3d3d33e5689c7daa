"""The main job, end to end: seen, blocked, drained, repaired, verified, returned, on a real API server.

Everything runs as it would in a cluster: two kinds of our processes with their own rights, a scheduler and
a controller-manager that know nothing of us, and machines that are played from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.installation import Installation
from tests.e2e.line import Line, until
from tests.e2e.scene import XID_79, closed, cordoned, line_on, running, with_work

Json = dict[str, Any]

pytestmark = pytest.mark.controlplane


SETTLES_S = 180.0
"""An eviction that an API server takes down with it may leave its pod in the PodDisruptionBudget's books, and
Kubernetes strikes it out only after two minutes."""


class Least:
    """The fewest Ready pods that were ever seen at once."""

    def __init__(self, line: Line, app: str) -> None:
        self.seen = 1_000
        self._line, self._app = line, app

    def look(self) -> None:
        """Count once."""
        path = f"/api/v1/namespaces/default/pods?labelSelector=app={self._app}"
        pods = self._line.admin.get(path)["items"]
        ready = [
            p
            for p in pods
            if any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", []))
            and "deletionTimestamp" not in p["metadata"]
        ]
        self.seen = min(self.seen, len(ready))

    async def watch(self) -> None:
        """Count until cancelled."""
        while True:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self.look)
            await asyncio.sleep(0.05)


@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_a_gpu_that_fell_off_the_bus_costs_one_reboot_and_no_budget(
    own_installation: Installation, tmp_path: Path
) -> None:
    """An Xid 79 is blocked, drained under the budget, rebooted once, verified and returned, and explained."""
    async with line_on(own_installation, tmp_path) as line:
        sick = await with_work(line)
        boot_before = line.kubelets.machine("sick").boot_id
        daemon_before = [n for n in running(line, "sick") if n.startswith("daemon")]
        least = Least(line, "web")
        counting = asyncio.ensure_future(least.watch())

        sick.say(XID_79.format(gpu=sick.nvml.address(5)[:10]))
        await until(lambda: cordoned(line, "sick"), "the node is cordoned")
        gpu = line.condition("sick", "GPUReady")
        assert gpu is not None and gpu["status"] == "False" and "79" in gpu["message"]

        incident = await until(lambda: closed(line, "sick"), "the incident is closed", 120)
        counting.cancel()

        end, timings = incident["status"]["end"], incident["status"]["timings"]
        assert end["result"] == "Returned"
        assert line.reboots == [("sick", boot_before)]
        assert len(line.repairs) == 1
        order = [
            "detectedAt",
            "blockedAt",
            "drainStartedAt",
            "drainedAt",
            "actedAt",
            "verifiedAt",
            "returnedAt",
        ]
        assert [timings[k] for k in order] == sorted(timings[k] for k in order)
        assert least.seen >= 1, "the PodDisruptionBudget was broken"
        node = line.node("sick")
        assert node["status"]["nodeInfo"]["bootID"] != boot_before
        await until(lambda: "unschedulable" not in line.node("sick")["spec"], "the cordon is gone")
        left = line.node("sick")["metadata"].get("annotations", {})
        assert not [k for k in left if k.startswith(("outlast.dev/", "karpenter.sh/"))]
        web = [p for p in running(line, "spare") if p.startswith("web")]
        assert len(web) == 2, "the Deployment moved"
        assert [n for n in running(line, "sick") if n.startswith("daemon")] == daemon_before
        assert line.admin.ask("GET", "/api/v1/namespaces/default/pods/bare").status == 404

        code, out, err = await line.outlast("explain", incident["metadata"]["name"])
        assert code == 0, err
        for words in ("Xid 79", "reboot", "drain", "What outlast did", "Why this and not another"):
            assert words in out
        code, out, _ = await line.outlast("explain", "sick", "--json")
        assert code == 0 and json.loads(out)
        described = own_installation.plane.kubectl("describe", "node", "sick")
        told = ("GPUReady", "NewWorkBlocked", "IncidentOpened", "DrainStarted", "Drained", "RebootStarted")
        for words in (*told, "NodeRebooted", "IncidentClosed"):
            assert words in described, f"kubectl describe node does not tell of {words}"


def jobs_left(line: Line) -> list[Json]:
    """Jobs of ours that nobody has deleted."""
    jobs = line.admin.get("/apis/batch/v1/namespaces/outlast-system/jobs")["items"]
    return [j for j in jobs if "deletionTimestamp" not in j["metadata"]]


@pytest.mark.asyncio
@pytest.mark.timeout(480)
async def test_kill_9_at_every_step_costs_time_only(own_installation: Installation, tmp_path: Path) -> None:
    """kill -9 of the controller after each milestone, and of the API server in mid-drain: the story ends
    with one reboot, nothing done twice, nothing stranded, and nothing that an agent saw meanwhile lost."""
    async with line_on(own_installation, tmp_path) as line:
        sick = await with_work(line)
        boot_before = line.kubelets.machine("sick").boot_id

        async def kill_controller() -> None:
            assert line.controller is not None
            await line.controller.end(signal.SIGKILL)
            await line.start_controller()

        def status(key: str) -> Any:
            incidents = line.incidents("sick")
            return incidents[-1].get("status", {}).get(key) if incidents else None

        def milestone(key: str) -> bool:
            return bool((status("timings") or {}).get(key))

        sick.say(XID_79.format(gpu=sick.nvml.address(5)[:10]))

        async def kill_api_server() -> None:
            await asyncio.to_thread(own_installation.plane.kill_apiserver)
            spare = line.boxes["spare"]
            spare.say(XID_79.format(gpu=spare.nvml.address(0)[:10]))
            await asyncio.to_thread(own_installation.plane.start_apiserver)

        def spare_is_lost() -> bool:
            found = line.condition("spare", "GPUReady")
            return found is not None and found["status"] == "False"

        steps = [
            ("cordoned", lambda: cordoned(line, "sick")),
            ("the incident exists", lambda: line.incidents("sick")),
            ("draining", lambda: milestone("drainStartedAt")),
            ("drained", lambda: milestone("drainedAt")),
            ("the repair was asked for", lambda: milestone("actedAt")),
            ("the machine went down", lambda: line.reboots),
            ("the machine came back", lambda: milestone("cameBackAt")),
            ("verified", lambda: milestone("verifiedAt")),
        ]
        for what, reached in steps:
            await until(reached, what, SETTLES_S)
            await kill_controller()
            if what == "draining":
                await kill_api_server()
                await until(spare_is_lost, "what was seen while the API was down is published")
        incident = await until(lambda: closed(line, "sick"), "the incident is closed", 120)

        assert incident["status"]["end"]["result"] == "Returned"
        assert line.reboots == [("sick", boot_before)]
        assert len(line.repairs) == 1
        assert len(line.incidents("sick")) == 1
        rungs = [a["rung"] for a in incident["status"]["attempts"]]
        assert len(rungs) == len(set(rungs)), f"a rung was taken twice: {rungs}"
        assert all("outcome" in a for a in incident["status"]["attempts"])
        await until(lambda: "unschedulable" not in line.node("sick")["spec"], "the cordon is gone")
        await until(lambda: not jobs_left(line), "the repair Job is tidied up")
