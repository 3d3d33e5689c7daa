"""The fixture itself: it is the yardstick, so its own promises are tested first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.access import MERGE
from tests.controlplane.kubelet import Exit, Kubelets
from tests.controlplane.machines import Machine
from tests.controlplane.plane import Plane, PlaneOptions

Json = dict[str, Any]
WAIT_S = 30.0


async def until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(WAIT_S):
        while not (value := await asyncio.to_thread(condition)):
            await asyncio.sleep(0.05)
    return value


def pod(name: str, node: str = "", **spec: Any) -> Json:
    container = {"name": "main", "image": "none"}
    body = {"terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    if node:
        body["nodeName"] = node
    return {"metadata": {"name": name}, "spec": body}


def test_the_server_is_the_version_we_state(controlplane: Plane) -> None:
    """Results are only comparable when the server's release is known."""
    assert controlplane.admin.get("/version")["gitVersion"] == "v1.37.2"
    assert '"gitVersion": "v1.37.2"' in controlplane.kubectl("version", "--output=json")


def test_a_client_certificate_is_a_user_with_groups(controlplane: Plane) -> None:
    """Clients of all kinds of kubeconfig can be tried against this server."""
    pair = controlplane.client_certificate("certified", "system:masters")
    arguments = (f"--client-certificate={pair.certificate}", f"--client-key={pair.key}")
    nobody = controlplane.admin.with_token("")
    assert "certified" in controlplane.kubectl("auth", "whoami", *arguments, access=nobody)


def test_a_kubelet_cannot_touch_another_node(controlplane: Plane) -> None:
    """The Node authorizer and NodeRestriction are on, as on real clusters."""
    for name in ("plane-self", "plane-other"):
        controlplane.admin.request("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    kubelet = controlplane.admin.as_kubelet("plane-self")
    answer = kubelet.ask(
        "PATCH",
        "/api/v1/nodes/plane-other/status",
        {"status": {"phase": "Running"}},
        content_type=MERGE,
    )
    assert (answer.status, "plane-self" in answer.message) == (403, True)


@pytest.mark.asyncio
async def test_pods_are_scheduled_run_and_end(controlplane: Plane, namespace: str) -> None:
    """A pod goes Pending, Running, and is gone after a delete, by scheduler and kubelet together."""
    admin, pods = controlplane.admin, f"/api/v1/namespaces/{namespace}/pods"
    async with Kubelets(admin) as kubelets:
        await kubelets.add("plane-runs", labels={"pool": namespace})
        body = pod("w", nodeSelector={"pool": namespace})
        await asyncio.to_thread(admin.request, "POST", pods, body)
        await until(lambda: admin.get(f"{pods}/w")["status"]["phase"] == "Running")
        await asyncio.to_thread(admin.request, "DELETE", f"{pods}/w")
        await until(lambda: admin.ask("GET", f"{pods}/w").status == 404)
        await kubelets.remove("plane-runs")


@pytest.mark.asyncio
async def test_a_job_pod_ends_as_its_callback_says(controlplane: Plane, namespace: str) -> None:
    """A test can execute a repair Job: the callback's exit code and message reach the API."""

    async def run(_pod: Json, machine: Machine) -> Exit:
        return Exit(3, f"no such device on {machine.name}")

    admin = controlplane.admin
    async with Kubelets(admin, run_pod=run) as kubelets:
        await kubelets.add("plane-job")
        template = pod("", "plane-job", restartPolicy="Never")
        job = {"metadata": {"name": "j"}, "spec": {"backoffLimit": 0, "template": {"spec": template["spec"]}}}
        jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        await asyncio.to_thread(admin.request, "POST", jobs, job)
        await until(lambda: admin.get(f"{jobs}/j")["status"].get("failed") == 1)
        (ended,) = admin.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        terminated = ended["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (terminated["exitCode"], terminated["message"]) == (3, "no such device on plane-job")
        await kubelets.remove("plane-job")


@pytest.mark.asyncio
async def test_a_reboot_changes_the_boot_id_and_loses_the_pod_that_asked(
    controlplane: Plane, namespace: str
) -> None:
    """A reboot Job never reports success: its pod dies with the machine, which returns in a new boot."""
    admin = controlplane.admin

    async def run(_pod: Json, machine: Machine) -> Exit:
        kubelets.reboot(machine.name)
        await asyncio.Event().wait()
        return Exit()

    kubelets = Kubelets(admin, run_pod=run)
    async with kubelets:
        old = await kubelets.add("plane-reboots")
        body = pod("r", "plane-reboots", restartPolicy="Never")
        await asyncio.to_thread(admin.request, "POST", f"/api/v1/namespaces/{namespace}/pods", body)
        new = await kubelets.wait_rebooted("plane-reboots", old.boot_id)
        node = await asyncio.to_thread(admin.get, "/api/v1/nodes/plane-reboots")
        assert node["status"]["nodeInfo"]["bootID"] == new.boot_id != old.boot_id
        path = f"/api/v1/namespaces/{namespace}/pods/r"
        await until(lambda: admin.get(path)["status"]["phase"] == "Failed")
        await kubelets.remove("plane-reboots")


@pytest.mark.asyncio
async def test_everything_survives_a_killed_api_server(
    control_plane_programs: dict[str, Path], tmp_path: Path
) -> None:
    """After kill -9 the same address serves the same objects, and kubelets carry on."""
    with Plane(control_plane_programs) as plane:
        admin = plane.admin
        async with Kubelets(admin, heartbeat_s=0.1) as kubelets:
            await kubelets.add("survivor", padded=True)
            before = await asyncio.to_thread(admin.get, "/api/v1/nodes/survivor")
            await asyncio.to_thread(plane.kill_apiserver)
            with pytest.raises(OSError):
                await asyncio.to_thread(admin.get, "/readyz")
            await asyncio.to_thread(plane.start_apiserver)
            after = await asyncio.to_thread(admin.get, "/api/v1/nodes/survivor")
            assert after["metadata"]["uid"] == before["metadata"]["uid"]
            await asyncio.to_thread(
                admin.request, "POST", "/api/v1/namespaces/default/pods", pod("late", "survivor")
            )
            path = "/api/v1/namespaces/default/pods/late"
            await until(lambda: admin.get(path)["status"]["phase"] == "Running")


@pytest.mark.asyncio
async def test_an_evicted_pod_moves_to_another_machine(controlplane: Plane, namespace: str) -> None:
    """Deployment, budget, eviction, replacement: all by the real controllers, on machines that are played."""
    admin, pods = controlplane.admin, f"/api/v1/namespaces/{namespace}/pods"
    labels = {"app": namespace}
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [container], "nodeSelector": {"pool": namespace}},
    }
    deployment = {
        "metadata": {"name": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }
    budget = {
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
    }

    def running() -> dict[str, Json]:
        listed = [p for p in admin.get(pods)["items"] if "deletionTimestamp" not in p["metadata"]]
        return {p["spec"]["nodeName"]: p for p in listed if p["status"]["phase"] == "Running"}

    async with Kubelets(admin) as kubelets:
        names = [f"evict-{i}" for i in range(3)]
        await kubelets.add_many(names, labels={"pool": namespace})
        admin.request("POST", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", budget)
        admin.request("POST", f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment)
        before = await until(lambda: found if len(found := running()) == 2 else None)
        node, victim = next(iter(before.items()))
        await asyncio.to_thread(controlplane.kubectl, "drain", node, "--timeout=20s", "--ignore-daemonsets")
        after = await until(lambda: found if len(found := running()) == 2 and node not in found else None)
        assert victim["metadata"]["uid"] not in {p["metadata"]["uid"] for p in after.values()}
        for name in names:
            await kubelets.remove(name)


@pytest.mark.asyncio
async def test_a_reregistered_machine_is_a_bare_node(controlplane: Plane) -> None:
    """New uid, no cordon, no annotation, yet the same machine by system uuid and provider id."""
    admin, path = controlplane.admin, "/api/v1/nodes/plane-again"
    async with Kubelets(admin) as kubelets:
        await kubelets.add("plane-again")
        await asyncio.to_thread(controlplane.kubectl, "cordon", "plane-again")
        await asyncio.to_thread(controlplane.kubectl, "annotate", "node", "plane-again", "outlast.dev/x=y")
        old = await asyncio.to_thread(admin.get, path)
        await kubelets.reregister("plane-again")
        new = await asyncio.to_thread(admin.get, path)
        assert new["metadata"]["uid"] != old["metadata"]["uid"]
        assert "outlast.dev/x" not in new["metadata"]["annotations"]
        assert "unschedulable" not in new["spec"]
        assert new["spec"]["providerID"] == old["spec"]["providerID"]
        info_new, info_old = new["status"]["nodeInfo"], old["status"]["nodeInfo"]
        assert info_new["systemUUID"] == info_old["systemUUID"]
        assert info_new["bootID"] != info_old["bootID"]
        await kubelets.remove("plane-again")


@pytest.mark.asyncio
async def test_a_padded_node_is_as_large_as_a_real_one(controlplane: Plane) -> None:
    """Memory and list times are only worth something with nodes of real size, about 15 KB."""
    async with Kubelets(controlplane.admin) as kubelets:
        await kubelets.add("plane-padded", padded=True)
        node = await asyncio.to_thread(controlplane.admin.get, "/api/v1/nodes/plane-padded")
        await kubelets.remove("plane-padded")
    assert 13_000 < len(json.dumps(node, separators=(",", ":"))) < 17_000


@pytest.mark.asyncio
async def test_a_silent_machine_goes_unknown(control_plane_programs: dict[str, Path]) -> None:
    """The real node controller notices missing heartbeats, and only those, after the grace we set."""
    options = PlaneOptions(node_monitor_grace_s=4)

    def ready(node: str) -> str:
        found = plane.admin.get(f"/api/v1/nodes/{node}")["status"]["conditions"]
        return next(str(c["status"]) for c in found if c["type"] == "Ready")

    with Plane(control_plane_programs, options) as plane:
        async with Kubelets(plane.admin, heartbeat_s=0.5) as kubelets:
            await kubelets.add_many(["alive", "silent"])
            kubelets.fail("silent")
            await until(lambda: ready("silent") == "Unknown")
            assert ready("alive") == "True"
            await kubelets.recover("silent")
            await until(lambda: ready("silent") == "True")
