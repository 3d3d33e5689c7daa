"""The production agent with exactly the rights that the manifests give it: nothing it needs is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.model import names
from tests.controlplane.access import STRATEGIC
from tests.controlplane.installation import NAMESPACE, Installation
from tests.controlplane.processes import Program, Reaper

Json = dict[str, Any]
NODE = "agent-process-node"
WAIT_S = 40.0
OFF_THE_BUS = b"4,12045,74889644138,c;NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n"
"""As /dev/kmsg delivers it."""


@pytest.fixture
def agent(installation: Installation, tmp_path: Path) -> Iterator[Program]:
    """`outlast agent` as a process of its own, with the token of its pod."""
    installation.node(NODE)
    config = installation.agent(NODE).write_kubeconfig(tmp_path / "kubeconfig")
    kernel_log = tmp_path / "kmsg"
    kernel_log.write_text("")
    reaper = Reaper()
    argv = [sys.executable, "-m", "outlast", "agent", "--node-name", NODE, "--kubeconfig", str(config)]
    argv += ["--kernel-log", str(kernel_log), "--state-dir", str(tmp_path / "state")]
    argv += ["--poll-interval", "0.5", "--heartbeat", "1", "--lease-renew", "1"]
    program = Program("agent", argv, tmp_path / "agent.log", reaper)
    program.start()
    yield program
    program.stop()
    reaper.close()
    admin = installation.admin
    for path in (
        f"/api/v1/nodes/{NODE}",
        f"/api/v1/namespaces/{NAMESPACE}/pods/outlast-agent-{NODE}",
        f"/apis/outlast.dev/v1alpha1/nodehealths/{NODE}",
    ):
        admin.ask("DELETE", path)


def test_the_agent_publishes_all_it_has_to_say(installation: Installation, agent: Program) -> None:
    """Conditions, NodeHealth, Lease and Event get through; what somebody reverts is written again; no 403."""
    admin = installation.admin
    node_path = f"/api/v1/nodes/{NODE}"

    def conditions() -> dict[str, Json]:
        found = admin.get(node_path)["status"]["conditions"]
        return {c["type"]: c for c in found if c["type"] in names.AGENT_CONDITIONS}

    def exists(path: str) -> bool:
        return admin.ask("GET", path).ok

    try:
        agent.wait_ready(lambda: set(conditions()) == set(names.AGENT_CONDITIONS), deadline_s=WAIT_S)
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{names.AGENT_LEASE_PREFIX}{NODE}"
        agent.wait_ready(lambda: exists(lease), deadline_s=WAIT_S)
        first = admin.get(lease)["spec"]["renewTime"]
        agent.wait_ready(lambda: admin.get(lease)["spec"]["renewTime"] != first, deadline_s=WAIT_S)
        health = f"/apis/outlast.dev/v1alpha1/nodehealths/{NODE}"
        agent.wait_ready(lambda: bool(exists(health) and admin.get(health).get("status")), deadline_s=WAIT_S)
        said = conditions()["GPUMonitorReady"]
        forged = said | {"status": "True" if said["status"] != "True" else "False", "reason": "Forged"}
        body = {"status": {"conditions": [forged]}}
        admin.request("PATCH", f"{node_path}/status", body, content_type=STRATEGIC)
        agent.wait_ready(lambda: conditions()["GPUMonitorReady"]["reason"] != "Forged", deadline_s=WAIT_S)
        with (agent.log.parent / "kmsg").open("ab") as kernel_log:
            kernel_log.write(OFF_THE_BUS)
        agent.wait_ready(lambda: conditions()["GPUReady"]["status"] == "False", deadline_s=WAIT_S)
        about = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={NODE}"
        agent.wait_ready(lambda: bool(admin.get(about)["items"]), deadline_s=WAIT_S)
        log = agent.log.read_text()
        assert "orbidden" not in log
        assert "403" not in log
    except Exception:
        print(agent.log_tail())
        raise
