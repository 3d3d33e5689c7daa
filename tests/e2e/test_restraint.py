"""What outlast does not do, end to end on a real API server: Observe, bad policies, a human's word, a hang.

The same processes and rights as in the main line. Each test ends where a human or a proof ends it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from outlast.model import names
from tests.controlplane.access import MERGE
from tests.controlplane.installation import NAMESPACE, Installation
from tests.e2e.line import Line, until
from tests.e2e.scene import (
    NODE_LABEL,
    XID_79,
    closed,
    containers,
    cordoned,
    is_healthy,
    line_on,
    running,
    with_work,
)

Json = dict[str, Any]

pytestmark = pytest.mark.controlplane

POLICY = "/apis/outlast.dev/v1alpha1/remediationpolicies/line"
FOREIGN = (
    "/api/v1/nodes",
    "/api/v1/pods",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/replicasets",
    "/apis/apps/v1/daemonsets",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/batch/v1/jobs",
    "/apis/coordination.k8s.io/v1/leases",
)
"""Every kind that outlast has a right to write, and is not its own; Events are ours by their reporter."""
MOVING = ("lastHeartbeatTime", "lastProbeTime")


def foreign_objects(line: Line) -> dict[str, Json]:
    """All objects that are not ours, without what kubelets and our agents say all the time."""
    found: dict[str, Json] = {}
    for path in FOREIGN:
        for item in line.admin.get(path)["items"]:
            meta = item["metadata"]
            if meta.get("namespace") in (NAMESPACE, "kube-node-lease", "kube-system"):
                continue
            kept = {k: v for k, v in meta.items() if k not in ("resourceVersion", "managedFields")}
            status = dict(item.get("status", {}))
            if path.endswith("/nodes"):
                status["conditions"] = [
                    {k: v for k, v in c.items() if k not in MOVING}
                    for c in status.get("conditions", [])
                    if c["type"] not in names.AGENT_CONDITIONS
                ]
            found[f"{path} {meta.get('namespace', '')}/{meta['name']}"] = {
                **item,
                "metadata": kept,
                "status": status,
            }
    return found


def written_by_controller(line: Line) -> list[str]:
    """Objects of others in which the API server has recorded our controller as a writer."""
    marked = []
    for path in FOREIGN:
        for item in line.admin.get(path)["items"]:
            writers = {entry["manager"] for entry in item["metadata"].get("managedFields", [])}
            name = item["metadata"]["name"]
            if names.CONTROLLER_FIELD_MANAGER in writers and name != names.CONTROLLER_LEASE:
                marked.append(f"{path}/{name}")
    return marked


def status_of_policy(line: Line) -> tuple[str, str]:
    """(status, message) of the policy's Accepted condition for its newest generation."""
    found = line.admin.get(POLICY)
    status = found.get("status", {})
    if status.get("observedGeneration") != found["metadata"]["generation"]:
        return "", ""
    accepted = [c for c in status.get("conditions", []) if c["type"] == "Accepted"]
    return (accepted[0]["status"], accepted[0]["message"]) if accepted else ("", "")


def our_marks(line: Line, node: str) -> list[str]:
    """Annotations that a block of ours sets on a node."""
    marks = line.node(node)["metadata"].get("annotations", {})
    return [key for key in marks if key.startswith(("outlast.dev/", "karpenter.sh/"))]


def phase(line: Line, node: str) -> str:
    """Where the newest incident of a node stands."""
    incidents = line.incidents(node)
    return str(incidents[-1].get("status", {}).get("phase", "")) if incidents else ""


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_nothing_of_others_is_touched_until_a_good_policy_and_no_human_forbid_it(
    own_installation: Installation, tmp_path: Path
) -> None:
    """Observe writes only our own objects; a bad policy is refused by field and rule and the last good one
    rules; a hold holds; a human's uncordon cancels and is obeyed."""
    async with line_on(own_installation, tmp_path) as line:
        sick = await with_work(line, mode="Observe")
        await until(lambda: status_of_policy(line)[0] == "True", "the policy is accepted")

        # A ladder that reboots under running jobs, and says Enforce: refused by the controller ...
        bad = {"mode": "Enforce", "ladders": [{"class": "RebootCures", "rungs": ["BlockNewWork", "Reboot"]}]}
        line.admin.request("PATCH", POLICY, {"spec": bad}, content_type=MERGE)
        await until(lambda: status_of_policy(line)[0] == "False", "the bad policy is not accepted")
        message = status_of_policy(line)[1]
        assert message.startswith("spec.ladders[0].rungs: Reboot needs Drain before it"), message
        assert "the last accepted version stays in force" in message
        # ... and one that breaks a rule of the schema, or its bounds: by the API server itself.
        worse = {"ladders": [{"class": "RebootCures", "rungs": ["Drain", "Reboot"]}]}
        refused = line.admin.ask("PATCH", POLICY, {"spec": worse}, content_type=MERGE)
        assert refused.status == 422
        assert "spec.ladders[0]" in refused.message
        assert "a ladder that drains or repairs must have BlockNewWork before it" in refused.message
        refused = line.admin.ask("PATCH", POLICY, {"spec": {"rebootTries": 6}}, content_type=MERGE)
        assert refused.status == 422
        assert "spec.rebootTries" in refused.message and "5" in refused.message

        before = await asyncio.to_thread(foreign_objects, line)
        sick.say(XID_79.format(gpu=sick.nvml.address(5)[:10]))
        await until(lambda: phase(line, "sick") == "Waiting", "the fault is on record")
        [seen] = line.incidents("sick")
        assert seen["spec"]["observeOnly"] is True
        assert "would block new work" in seen["status"]["next"]["message"]
        code, out, err = await line.outlast("explain", "sick")
        assert code == 0, err
        assert "would block new work" in out and "Observe" in out
        after = await asyncio.to_thread(foreign_objects, line)
        assert after == before
        assert await asyncio.to_thread(written_by_controller, line) == []

        # A human holds the node, and only then is the policy put right: still nothing.
        own_installation.plane.kubectl("annotate", "node", "sick", f"{names.HOLD_ANNOTATION}=firmware test")
        good = {"spec": {"mode": "Enforce", "ladders": None}}
        line.admin.request("PATCH", POLICY, good, content_type=MERGE)
        await until(lambda: status_of_policy(line)[0] == "True", "the policy is accepted again")
        await until(lambda: len(line.incidents("sick")) == 2, "an incident that may act takes over")
        await until(lambda: phase(line, "sick") == "OnHold", "the hold holds it")
        assert "firmware test" in line.incidents("sick")[-1]["status"]["blockedByText"]
        assert "unschedulable" not in line.node("sick")["spec"]
        assert await asyncio.to_thread(written_by_controller, line) == []

        # The hold goes: blocked. A human uncordons: cancelled, and never cordoned again.
        own_installation.plane.kubectl("annotate", "node", "sick", f"{names.HOLD_ANNOTATION}-")
        await until(lambda: cordoned(line, "sick"), "the node is cordoned when the hold is gone")
        own_installation.plane.kubectl("uncordon", "sick")
        incident = await until(lambda: closed(line, "sick"), "the incident is closed")
        assert incident["status"]["end"]["result"] == "CancelledByHuman"
        await until(lambda: not our_marks(line, "sick"), "nothing of ours is left on the node")
        assert "unschedulable" not in line.node("sick")["spec"]
        assert line.repairs == [] and line.reboots == []


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_a_hung_driver_blocks_new_work_at_once_and_moves_nobody(
    own_installation: Installation, tmp_path: Path
) -> None:
    """NVML stops answering: GPUMonitorReady is False with reason DiagnosticsHung, new work goes elsewhere,
    running work stays; NVML answers again: the node is back by itself, with no repair."""
    async with line_on(own_installation, tmp_path) as line:
        sick = await with_work(line)
        there = running(line, "sick")

        sick.nvml.action("nvmlDeviceGetUUID", "hang", gpu=3)
        hung = await until(lambda: is_hung(line, "sick"), "the monitor is said to hang")
        told = time.monotonic()
        await until(lambda: cordoned(line, "sick"), "the node is cordoned")
        blocked_after_s = time.monotonic() - told
        assert blocked_after_s < 5.0, "new work is blocked at once"
        assert "NVML" in hung["message"]
        late = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "late", "namespace": "default"},
            "spec": {"nodeSelector": {NODE_LABEL: "gpu"}, "containers": containers()},
        }
        await line.apply(late)
        await until(lambda: "late" in running(line, "spare"), "new work goes to the other node")
        await until(lambda: phase(line, "sick") == "Blocked", "the incident stands at the block")
        incident = line.incidents("sick")[-1]
        told_of = [i["status"]["fault"] for i in line.incidents("sick")]
        assert told_of == ["monitor/hung"], line.incidents("sick")
        assert "second witness" in incident["status"]["blockedByText"]
        assert sorted(running(line, "sick")) == sorted(there), "nobody was moved"

        sick.nvml.action("nvmlDeviceGetUUID", "", gpu=3)
        incident = await until(lambda: closed(line, "sick"), "the incident is closed", 90)
        assert is_healthy(line, "sick")
        assert incident["status"]["end"]["result"] == "NotNeeded"
        assert [a["rung"] for a in incident["status"]["attempts"]] == ["BlockNewWork"]
        await until(lambda: "unschedulable" not in line.node("sick")["spec"], "the cordon is gone")
        assert sorted(running(line, "sick")) == sorted(there)
        assert line.repairs == []


def is_hung(line: Line, node: str) -> Json | None:
    """GPUMonitorReady, once it says that the diagnostics hang."""
    found = line.condition(node, names.GPU_MONITOR_READY)
    hangs = found is not None and (found["status"], found["reason"]) == ("False", "DiagnosticsHung")
    return found if hangs else None
