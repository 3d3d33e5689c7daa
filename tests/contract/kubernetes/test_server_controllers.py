"""The controllers that clients count on: Jobs, workloads, scheduling, node taints."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.kubernetes.conftest import Server, until
from tests.controlplane.access import MERGE, STRATEGIC

CONTAINERS = [{"name": "c", "image": "i:1"}]


@pytest.fixture
def pods(space: str) -> str:
    """The path of the pods of this test."""
    return f"/api/v1/namespaces/{space}/pods"


def on(node: str) -> dict[str, Any]:
    """Affinity to one node by name, as repair Jobs have it."""
    term = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [term]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def job(name: str, node: str, **spec: Any) -> dict[str, Any]:
    """A Job whose pod goes to a node and stands everything."""
    pod = {
        "restartPolicy": "Never", "containers": CONTAINERS, "affinity": on(node),
        "tolerations": [{"operator": "Exists"}],
    }  # fmt: skip
    return {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": pod}, **spec}}


class Jobs:
    """Jobs of one namespace and their pods."""

    def __init__(self, server: Server, space: str, pods: str) -> None:
        self.server = server
        self.path = f"/apis/batch/v1/namespaces/{space}/jobs"
        self.pods = pods

    def bound_pod(self, job_name: str, node: str) -> dict[str, Any]:
        """The Job's pod once it is on the node."""

        def found() -> Any:
            items = self.server.ok("GET", f"{self.pods}?labelSelector=job-name%3D{job_name}")["items"]
            return next((p for p in items if p["spec"].get("nodeName") == node), None)

        pod: dict[str, Any] = until("the Job's pod is bound", found)
        return pod

    def finish(self, pod: dict[str, Any], phase: str) -> None:
        """Play the kubelet at the end of a pod."""
        path = f"{self.pods}/{pod['metadata']['name']}/status"
        self.server.ok("PATCH", path, {"status": {"phase": phase}}, content_type=STRATEGIC)

    def ended(self, name: str, condition: str) -> dict[str, Any]:
        """The Job once it has a condition."""

        def look() -> Any:
            found = self.server.ok("GET", f"{self.path}/{name}")
            held = {c["type"] for c in found["status"].get("conditions", ()) if c["status"] == "True"}
            return found if condition in held else None

        ended: dict[str, Any] = until(f"the Job is {condition}", look)
        return ended


@pytest.fixture
def jobs(server: Server, space: str, pods: str) -> Jobs:
    """The Jobs of this test."""
    return Jobs(server, space, pods)


def test_a_job_runs_its_pod_on_a_cordoned_node(server: Server, jobs: Jobs, node: str) -> None:
    """Affinity on metadata.name and tolerations bring a repair pod through the cordon."""
    server.ok("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}, content_type=MERGE)
    server.ok("POST", jobs.path, job("j", node))
    pod = jobs.bound_pod("j", node)
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Job", "j", True)
    assert pod["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]


def test_a_job_completes(server: Server, jobs: Jobs, node: str) -> None:
    """One succeeded pod: Complete, counted once, and the pod is let go."""
    server.ok("POST", jobs.path, job("j", node))
    pod = jobs.bound_pod("j", node)
    jobs.finish(pod, "Succeeded")
    status = jobs.ended("j", "Complete")["status"]
    assert (status["succeeded"], status.get("active", 0)) == (1, 0)
    assert status["completionTime"]
    until(
        "the pod has no finalizer",
        lambda: "finalizers" not in server.ok("GET", f"{jobs.pods}/{pod['metadata']['name']}")["metadata"],
    )


def test_a_job_fails_at_its_limit(server: Server, jobs: Jobs, node: str) -> None:
    """backoffLimit 0: the first failure is the last."""
    server.ok("POST", jobs.path, job("j", node))
    jobs.finish(jobs.bound_pod("j", node), "Failed")
    status = jobs.ended("j", "Failed")["status"]
    (failed,) = [c for c in status["conditions"] if c["type"] == "Failed"]
    assert (status["failed"], failed["reason"]) == (1, "BackoffLimitExceeded")


def test_a_suspended_job_only_takes_the_name(server: Server, jobs: Jobs, node: str) -> None:
    """No pod is made, and a second create finds the name taken."""
    server.ok("POST", jobs.path, job("j", node, suspend=True))
    jobs.ended("j", "Suspended")
    assert server.ok("GET", jobs.pods)["items"] == []
    assert server.ask("POST", jobs.path, job("j", node)).status == 409


def test_a_pod_removed_while_running_holds_its_job(server: Server, jobs: Jobs, node: str) -> None:
    """Under a podFailurePolicy it stays with its finalizer: neither replaced nor counted until it ends."""
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    server.ok("POST", jobs.path, job("j", node, podFailurePolicy={"rules": [rule]}))
    pod = jobs.bound_pod("j", node)
    jobs.finish(pod, "Running")
    path = f"{jobs.pods}/{pod['metadata']['name']}"
    server.ok("DELETE", f"{path}?gracePeriodSeconds=0")
    until("the Job sees it", lambda: server.ok("GET", f"{jobs.path}/j")["status"].get("terminating") == 1)
    assert server.ok("GET", path)["metadata"]["deletionTimestamp"]
    jobs.finish(pod, "Failed")
    jobs.ended("j", "Failed")
    until("the pod is gone", lambda: server.ask("GET", path).status == 404)


def test_a_terminating_pod_counts_as_failed_without_a_policy(server: Server, jobs: Jobs, node: str) -> None:
    """A plain delete burns the backoffLimit before the pod is gone."""
    server.ok("POST", jobs.path, job("j", node))
    pod = jobs.bound_pod("j", node)
    jobs.finish(pod, "Running")
    server.ok("DELETE", f"{jobs.pods}/{pod['metadata']['name']}")
    until("the Job is to fail", lambda: server.ok("GET", f"{jobs.path}/j")["status"].get("failed") == 1)


def test_a_disruption_is_not_counted_where_the_policy_ignores_it(
    server: Server, jobs: Jobs, node: str
) -> None:
    """podFailurePolicy Ignore on DisruptionTarget: the pod is replaced, nothing failed."""
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    server.ok("POST", jobs.path, job("j", node, podFailurePolicy={"rules": [rule]}))
    pod = jobs.bound_pod("j", node)
    name = pod["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    jobs.finish(pod, "Running")
    server.ok("POST", f"{jobs.pods}/{name}/eviction", eviction)
    jobs.finish(pod, "Failed")
    server.ok("DELETE", f"{jobs.pods}/{name}?gracePeriodSeconds=0")

    def replaced() -> bool:
        items = server.ok("GET", jobs.pods)["items"]
        return any(p["metadata"]["uid"] != pod["metadata"]["uid"] for p in items)

    until("a new pod", replaced, deadline_s=30)
    assert server.ok("GET", f"{jobs.path}/j")["status"].get("failed", 0) == 0


def test_a_job_that_is_deleted_takes_its_pods(server: Server, jobs: Jobs, node: str) -> None:
    """Background propagation; without one the answer warns that pods stay."""
    server.ok("POST", jobs.path, job("j", node))
    pod = jobs.bound_pod("j", node)
    server.ok("DELETE", f"{jobs.path}/j", {"propagationPolicy": "Background"})
    path = f"{jobs.pods}/{pod['metadata']['name']}"

    def let_go() -> bool:
        answer = server.ask("GET", path)
        if answer.status == 404:
            return True
        return "deletionTimestamp" in answer.body["metadata"] and "finalizers" not in answer.body["metadata"]

    until("the pod is being deleted and not held", let_go)
    server.ok("POST", jobs.path, job("k", node, suspend=True))
    assert "child pods are preserved by default" in server.ask("DELETE", f"{jobs.path}/k").warnings[0]


def test_a_pod_waits_for_a_node_that_takes_it(server: Server, pods: str, node: str) -> None:
    """PodScheduled=False while the node is cordoned; bound after the uncordon."""
    path = f"/api/v1/nodes/{node}"
    server.ok("PATCH", path, {"spec": {"unschedulable": True}}, content_type=MERGE)
    until("the cordon's taint", lambda: server.ok("GET", path)["spec"].get("taints"))
    spec = {"containers": CONTAINERS, "affinity": on(node)}
    server.ok("POST", pods, {"metadata": {"name": "p"}, "spec": spec})

    def refused() -> bool:
        conditions = server.ok("GET", f"{pods}/p")["status"].get("conditions", ())
        return any(c["type"] == "PodScheduled" and c["reason"] == "Unschedulable" for c in conditions)

    until("the pod is told why it waits", refused)
    server.ok("PATCH", path, {"spec": {"unschedulable": None}}, content_type=MERGE)
    until("the pod is bound", lambda: server.ok("GET", f"{pods}/p")["spec"].get("nodeName") == node)


def test_a_pod_waits_for_extended_resources(server: Server, pods: str, node: str) -> None:
    """More GPUs than the node has: unschedulable, naming the resource."""
    amounts = {"nvidia.com/gpu": "8"}
    body = {"status": {"allocatable": amounts, "capacity": amounts}}
    server.ok("PATCH", f"/api/v1/nodes/{node}/status", body, content_type=STRATEGIC)
    for name, gpus in (("fits", "8"), ("waits", "1")):
        container = {"name": "c", "image": "i:1", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
        spec = {"containers": [container], "affinity": on(node)}
        server.ok("POST", pods, {"metadata": {"name": name}, "spec": spec})
        if name == "fits":
            until("bound", lambda: server.ok("GET", f"{pods}/fits")["spec"].get("nodeName") == node)

    def told() -> bool:
        conditions = server.ok("GET", f"{pods}/waits")["status"].get("conditions", ())
        return any("Insufficient nvidia.com/gpu" in c.get("message", "") for c in conditions)

    until("the lack is told", told)


TAINTS = [
    ("Ready", "False", "not-ready"),
    ("Ready", "Unknown", "unreachable"),
    ("DiskPressure", "True", "disk-pressure"),
]


@pytest.mark.parametrize(("type_", "status", "taint"), TAINTS)
def test_conditions_become_taints(server: Server, node: str, type_: str, status: str, taint: str) -> None:
    """The node lifecycle controller's NoSchedule taints follow conditions."""
    body = {"status": {"conditions": [{"type": type_, "status": status}]}}
    server.ok("PATCH", f"/api/v1/nodes/{node}/status", body, content_type=STRATEGIC)

    def tainted() -> bool:
        taints = server.ok("GET", f"/api/v1/nodes/{node}")["spec"].get("taints", ())
        return (f"node.kubernetes.io/{taint}", "NoSchedule") in [(t["key"], t["effect"]) for t in taints]

    until("the taint", tainted)


def test_a_deployment_keeps_its_pods(server: Server, space: str, pods: str, node: str) -> None:
    """Pods of a ReplicaSet of the Deployment; a deleted one is replaced."""
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": CONTAINERS, "affinity": on(node)}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    path = f"/apis/apps/v1/namespaces/{space}/deployments"
    server.ok("POST", path, {"metadata": {"name": "web"}, "spec": spec})

    def bound() -> Any:
        items = server.ok("GET", pods)["items"]
        return items if len(items) == 2 and all(p["spec"].get("nodeName") for p in items) else None

    first = until("two pods are bound", bound)
    assert first[0]["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"
    server.ok("DELETE", f"{pods}/{first[0]['metadata']['name']}")
    until("a third pod", lambda: len(server.ok("GET", pods)["items"]) == 3)


def test_a_daemon_set_runs_on_a_cordoned_node(server: Server, space: str, pods: str, node: str) -> None:
    """Its pods tolerate the cordon by themselves."""
    server.ok("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}, content_type=MERGE)
    labels = {"app": "agent"}
    server.ok("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": {"on": node}}}, content_type=MERGE)
    spec = {"containers": CONTAINERS, "nodeSelector": {"on": node}}
    template = {"metadata": {"labels": labels}, "spec": spec}
    body = {
        "metadata": {"name": "agent"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    server.ok("POST", f"/apis/apps/v1/namespaces/{space}/daemonsets", body)

    def bound() -> bool:
        return [p["spec"].get("nodeName") for p in server.ok("GET", pods)["items"]] == [node]

    until("one pod on the node", bound)
