"""`outlast controller` as a process of its own on a real control plane, with the rights of its manifests.

The kubelets are played, and the repair pod's command is really run: `outlast act reboot` compares the
boot id and asks for the reboot. The controller is killed in the middle, more than once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outlast.model import names
from tests.controlplane.access import MERGE, Access
from tests.controlplane.installation import NAMESPACE, Installation
from tests.controlplane.kubelet import Exit, Kubelets
from tests.controlplane.machines import Machine
from tests.controlplane.processes import Program, Reaper

Json = dict[str, Any]
LABEL = {"outlast.test/pool": "controller-process"}
WAIT_S = 60.0
API = "/apis/outlast.dev/v1alpha1"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
SUBSYSTEMS = ("GPU", "Fabric", "RDMA", "Monitor")


class Stage:
    """A pool of machines, what their agents say, and the controller that watches them."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        self.admin: Access = installation.admin
        self.installation = installation
        self.folder = folder
        self.kubelets = Kubelets(self.admin, run_pod=self._run)
        self.reboot_commands = 0
        self.ran: list[str] = []
        self._reaper = Reaper()
        self._replicas = 0

    # -- machines --------------------------------------------------------------------------

    async def _run(self, pod: Json, machine: Machine) -> Exit | None:
        """A repair pod runs the real program; every other pod runs until it is deleted."""
        if names.REPAIR_LABEL not in pod["metadata"].get("labels", {}):
            return None
        command = pod["spec"]["containers"][0]["command"]
        assert command[:3] == ["outlast", "act", "reboot"]
        boot_id, asked = self.folder / "boot_id", self.folder / "asked"
        boot_id.write_text(machine.boot_id)
        asked.unlink(missing_ok=True)
        environment = os.environ | {
            "OUTLAST_BOOT_ID_FILE": str(boot_id),
            "OUTLAST_REBOOT_COMMAND": f"touch {asked}",
            "OUTLAST_REBOOT_FORCE_AFTER": "0",
            "OUTLAST_TERMINATION_LOG": str(self.folder / "message"),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "outlast", *command[1:], env=environment
        )
        code = await process.wait()
        if asked.exists():
            self.reboot_commands += 1
            self.kubelets.reboot(machine.name, down_s=1.0)
            return None
        return Exit(code, (self.folder / "message").read_text())

    async def say(self, node: str, *, fault: Json | None, boot_id: str, checked: bool = True) -> None:
        """What the agent of a node says of it."""
        rest = "Healthy" if checked else "Unknown"
        verdicts = [
            {"subsystem": s, "verdict": "Faulty" if fault and s == "GPU" else rest, "reason": "Test"}
            for s in SUBSYSTEMS
        ]
        status = {
            "bootID": boot_id,
            "checkedAt": "2026-01-01T00:00:00Z" if checked else None,
            "state": "Faulty" if fault else rest,
            "gpusExpected": 8,
            "verdicts": verdicts,
            "faults": [fault] if fault else [],
        }
        path = f"{API}/nodehealths/{node}/status"
        await asyncio.to_thread(self.admin.request, "PATCH", path, {"status": status}, content_type=MERGE)

    async def add(self, node: str) -> Machine:
        machine = await self.kubelets.add(node, labels=LABEL)
        health = {"apiVersion": "outlast.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": node}}
        await asyncio.to_thread(self.admin.request, "POST", f"{API}/nodehealths", health)
        lease = {"metadata": {"name": names.AGENT_LEASE_PREFIX + node}, "spec": {"holderIdentity": node}}
        await asyncio.to_thread(self.admin.request, "POST", LEASES, lease)
        await self.say(node, fault=None, boot_id=machine.boot_id)
        return machine

    async def beat(self, *nodes: str) -> None:
        """The agents' heartbeats, for ever."""
        count = 0
        while True:
            count += 1
            spec = {"renewTime": f"2026-01-01T00:00:00.{count:06d}Z"}
            for node in nodes:
                path = f"{LEASES}/{names.AGENT_LEASE_PREFIX}{node}"
                await asyncio.to_thread(self.admin.request, "PATCH", path, {"spec": spec}, content_type=MERGE)
            await asyncio.sleep(0.5)

    # -- controller ------------------------------------------------------------------------

    def controller(self) -> Program:
        """A new replica, started."""
        self._replicas += 1
        name = f"outlast-controller-test-{self._replicas}"
        access = self.installation.controller(name, "controller-host")
        config = access.write_kubeconfig(self.folder / f"{name}.kubeconfig")
        argv = [
            sys.executable,
            "-m",
            "outlast",
            "controller",
            "--kubeconfig",
            str(config),
            "--identity",
            name,
        ]
        program = Program(name, argv, self.folder / f"{name}.log", self._reaper)
        program.start()
        return program

    def close(self) -> None:
        self._reaper.close()

    # -- looking ---------------------------------------------------------------------------

    async def get(self, path: str) -> Json:
        return await asyncio.to_thread(self.admin.get, path)

    async def incident(self, node: str) -> Json:
        listed = await self.get(f"{API}/incidents?fieldSelector=spec.nodeName={node}")
        return listed["items"][0] if listed["items"] else {}

    async def until(self, what: str, true: Callable[[], Awaitable[Any]], program: Program) -> Any:
        try:
            async with asyncio.timeout(WAIT_S):
                while not (value := await true()):
                    assert program.running, f"the controller died:\n{program.log_tail()}"
                    await asyncio.sleep(0.05)
                return value
        except TimeoutError:
            raise AssertionError(f"{what} did not happen:\n{program.log_tail()}") from None


@asynccontextmanager
async def staged(installation: Installation, folder: Path, *nodes: str) -> AsyncIterator[Stage]:
    stage = Stage(installation, folder)
    admin = installation.admin
    policy = {
        "apiVersion": "outlast.dev/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": "controller-process"},
        "spec": {"mode": "Enforce", "nodeSelector": LABEL, "budgets": {"maxUnavailablePercent": 100}},
    }
    if not admin.ask("GET", "/api/v1/nodes/controller-host").ok:
        installation.node("controller-host")
    admin.request("POST", f"{API}/remediationpolicies", policy)
    try:
        async with stage.kubelets, asyncio.TaskGroup() as group:
            for node in nodes:
                await stage.add(node)
            beat = group.create_task(stage.beat(*nodes))
            try:
                yield stage
            finally:
                beat.cancel()
    finally:
        stage.close()
        admin.ask("DELETE", f"{API}/remediationpolicies/controller-process")
        for node in nodes:
            admin.ask("DELETE", f"/api/v1/nodes/{node}")
            admin.ask("DELETE", f"{API}/nodehealths/{node}")
            admin.ask("DELETE", f"{LEASES}/{names.AGENT_LEASE_PREFIX}{node}")


def off_the_bus(boot_id: str) -> Json:
    return {
        "id": "xid/79@0000:b3:00.0",
        "code": "xid/79",
        "class": "RebootCures",
        "subsystem": "GPU",
        "scope": "GPU",
        "summary": "GPU 5 has fallen off the bus",
        "openedAt": "2026-01-01T00:00:00Z",
        "lastSeenAt": "2026-01-01T00:00:00Z",
        "bootID": boot_id,
    }


@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_a_killed_controller_repairs_once_and_strands_nothing(
    installation: Installation, namespace: str, tmp_path: Path
) -> None:
    """Cordon, evictions under a PDB, kill -9 at each stage, one reboot, clean check, uncordon, closed."""
    node = "controller-gpu"
    async with staged(installation, tmp_path, node) as stage:
        admin = stage.admin
        machine = stage.kubelets.machine(node)
        await asyncio.to_thread(_workload, admin, namespace, node)

        async def pods(*phases: str) -> list[str]:
            found = await stage.get(f"/api/v1/namespaces/{namespace}/pods")
            return [p["metadata"]["name"] for p in found["items"] if p["status"]["phase"] in phases]

        async with asyncio.timeout(WAIT_S):
            while len(await pods("Running")) < 2:
                await asyncio.sleep(0.1)
        program = stage.controller()
        await stage.say(node, fault=off_the_bus(machine.boot_id), boot_id=machine.boot_id)

        async def cordoned() -> bool:
            return bool((await stage.get(f"/api/v1/nodes/{node}"))["spec"].get("unschedulable"))

        await stage.until("the cordon", cordoned, program)
        program.kill()

        program = stage.controller()

        async def held_by_budget() -> bool:
            status = (await stage.incident(node)).get("status", {})
            return "guarded" in status.get("blockedByText", "")

        await stage.until("the refusal by the budget", held_by_budget, program)
        assert await pods("Running") == ["guarded"], "the bare pod is gone, the guarded one stays"
        program.kill()
        await asyncio.to_thread(
            admin.request, "DELETE", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/guard"
        )

        program = stage.controller()

        async def repair_job() -> list[Json]:
            return (await stage.get(f"{JOBS}?labelSelector={names.REPAIR_LABEL}"))["items"]

        await stage.until("the repair Job", repair_job, program)
        program.kill()
        rebooted = await stage.kubelets.wait_rebooted(node, machine.boot_id, deadline_s=WAIT_S)
        await stage.say(node, fault=None, boot_id=rebooted.boot_id)

        program = stage.controller()

        async def closed() -> Json | None:
            incident = await stage.incident(node)
            return incident if incident["status"]["phase"] == "Closed" else None

        incident = await stage.until("the end", closed, program)

        async def released() -> bool:
            return not await cordoned()

        await stage.until("the release", released, program)
        assert incident["status"]["end"]["result"] == "Returned"
        assert stage.reboot_commands == 1
        assert stage.kubelets.machine(node).boots == 2
        rungs = [attempt["rung"] for attempt in incident["status"]["attempts"]]
        assert rungs == ["BlockNewWork", "Drain", "Reboot"]
        assert all(attempt["outcome"]["result"] == "Succeeded" for attempt in incident["status"]["attempts"])
        timings = incident["status"]["timings"]
        assert {
            "detectedAt",
            "blockedAt",
            "drainedAt",
            "actedAt",
            "cameBackAt",
            "verifiedAt",
        } <= timings.keys()
        marks = (await stage.get(f"/api/v1/nodes/{node}"))["metadata"]["annotations"]
        assert names.CORDON_ANNOTATION not in marks and names.DO_NOT_DISRUPT_ANNOTATION not in marks

        async def tidied() -> bool:
            return not await repair_job()

        await stage.until("the Job's removal", tidied, program)
        told = await stage.get(f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={node}")
        reasons = {event["reason"] for event in told["items"]}
        # Events are best effort and kill -9 loses those not yet sent; only the survivor's are certain.
        assert "IncidentClosed" in reasons
        program.stop()
        assert "orbidden" not in program.log.read_text()


def _workload(admin: Access, namespace: str, node: str) -> None:
    """A bare pod, and one that a budget protects."""
    for name in ("bare", "guarded"):
        pod = {
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]},
        }
        admin.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
    budget = {
        "metadata": {"name": "guard"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    admin.request("POST", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", budget)
