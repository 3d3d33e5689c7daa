"""What tests of the whole line share: a control node, a policy, a workload, and looks at the outcome."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.controlplane.installation import Installation
from tests.e2e.line import Box, Line, until

Json = dict[str, Any]

XID_79 = "NVRM: Xid (PCI:{gpu}): 79, pid=4711, name=python3, GPU has fallen off the bus."
NODE_LABEL = "outlast.test/line"


@contextlib.asynccontextmanager
async def line_on(installation: Installation, folder: Path) -> AsyncIterator[Line]:
    """A line with a control node, so that our own pods have a home."""
    async with Line(installation, folder) as line:
        await line.kubelets.add("control", gpus=0, labels={"outlast.test/role": "control"})
        try:
            yield line
        finally:
            # First the processes: a controller that is still there would write down again what is cleaned.
            await line.kill_processes()
            await asyncio.to_thread(clean, line)


def clean(line: Line) -> None:
    """Leave nothing of a test to the next one."""
    for path in (
        "/apis/outlast.dev/v1alpha1/incidents",
        "/apis/outlast.dev/v1alpha1/nodehealths",
        "/apis/outlast.dev/v1alpha1/remediationpolicies",
        "/apis/apps/v1/namespaces/default/deployments",
        "/apis/apps/v1/namespaces/default/daemonsets",
        "/apis/apps/v1/namespaces/outlast-system/daemonsets",
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        "/api/v1/namespaces/default/pods?gracePeriodSeconds=0",
        "/apis/batch/v1/namespaces/outlast-system/jobs?propagationPolicy=Background",
        "/api/v1/namespaces/outlast-system/pods?gracePeriodSeconds=0",
        "/api/v1/nodes",
    ):
        line.admin.ask("DELETE", path)


def policy(mode: str = "Enforce", **spec: Any) -> Json:
    """A policy for the nodes of these tests."""
    return {
        "apiVersion": "outlast.dev/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": "line"},
        "spec": {
            "mode": mode,
            "nodeSelector": {NODE_LABEL: "gpu"},
            "deadlines": {"drainSeconds": 300, "rebootSeconds": 120, "verifySeconds": 120},
            **spec,
        },
    }


def containers() -> list[Json]:
    """What every pod of these tests runs."""
    return [{"name": "main", "image": "none"}]


def workload(node: str) -> list[Json]:
    """A Deployment of two with a budget that lets one go at a time, a DaemonSet, and a bare pod."""
    labels = {"app": "web"}
    gpu_nodes = {"nodeSelector": {NODE_LABEL: "gpu"}}
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers(), **gpu_nodes}}
    daemon = {"metadata": {"labels": {"app": "daemon"}}, "spec": {"containers": containers(), **gpu_nodes}}
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "daemon", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "daemon"}}, "template": daemon},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "bare", "namespace": "default"},
            "spec": {
                "nodeName": node,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": containers(),
            },
        },
    ]


async def with_work(line: Line, mode: str = "Enforce") -> Box:
    """A node `sick` that carries the workload, a node `spare` with room, a policy, a controller."""
    await line.apply(policy(mode))
    sick = await line.add_node("sick", labels={NODE_LABEL: "gpu"})
    await line.apply(*workload("sick"))
    await until(lambda: len(running(line, "sick")) == 4, "the workload runs on the only node")
    await line.add_node("spare", labels={NODE_LABEL: "gpu"})
    await line.start_controller()
    for name in ("sick", "spare"):
        await until(lambda name=name: is_healthy(line, name), f"{name} is judged healthy")
    return sick


def running(line: Line, node: str) -> list[str]:
    """Names of the user's pods that run on a node."""
    return [
        p["metadata"]["name"]
        for p in line.pods(node)
        if p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]
    ]


def is_healthy(line: Line, node: str) -> bool:
    """All five conditions vouch for the node."""
    types = ("GPUReady", "GPUFabricReady", "RDMAReady", "GPUMonitorReady", "HostReady")
    found = [line.condition(node, t) for t in types]
    return all(c is not None and c["status"] == "True" for c in found)


def closed(line: Line, node: str) -> Json | None:
    """The newest incident of a node, once it has ended."""
    incidents = line.incidents(node)
    return incidents[-1] if incidents and incidents[-1].get("status", {}).get("end") else None


def cordoned(line: Line, node: str) -> bool:
    """Whether no new work comes to a node, by our cordon."""
    found = line.node(node)
    ours = "outlast.dev/cordon" in found["metadata"].get("annotations", {})
    return ours and found["spec"].get("unschedulable") is True
