"""pods/eviction, every answer of it, and the accounting of budgets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.kubernetes.conftest import Server, until
from tests.controlplane.access import MERGE, STRATEGIC, Answer


class Workload:
    """Pods of one namespace on a node without a kubelet, and budgets over them."""

    def __init__(self, server: Server, space: str, node: str) -> None:
        self.server = server
        self.node = node
        self.pods = f"/api/v1/namespaces/{space}/pods"
        self.budgets = f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets"

    def replica_set(self, name: str, replicas: int) -> None:
        """A ReplicaSet that adopts the pods."""
        template = {
            "metadata": {"labels": {"app": "w"}},
            "spec": {"nodeName": self.node, "containers": [{"name": "c", "image": "i:1"}]},
        }
        path = self.pods.replace("/api/v1/", "/apis/apps/v1/").replace("/pods", "/replicasets")
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "w"}}, "template": template}
        self.server.ok("POST", path, {"metadata": {"name": name}, "spec": spec})

    def run(self, *names: str, ready: bool = True) -> None:
        """Running pods."""
        for name in names:
            spec = {"nodeName": self.node, "containers": [{"name": "c", "image": "i:1"}]}
            meta = {"name": name, "labels": {"app": "w"}}
            self.server.ok("POST", self.pods, {"metadata": meta, "spec": spec})
            self.be(name, ready=ready)

    def be(self, name: str, *, ready: bool = True, phase: str = "Running") -> None:
        """Set a pod's state."""
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        body = {"status": {"phase": phase, "conditions": [condition]}}
        self.server.ok("PATCH", f"{self.pods}/{name}/status", body, content_type=STRATEGIC)

    def budget(self, name: str, allowed: int, **spec: Any) -> None:
        """A budget, when its controller has counted."""
        selector = {"matchLabels": {"app": "w"}}
        body = {"metadata": {"name": name}, "spec": {"selector": selector, **spec}}
        self.server.ok("POST", self.budgets, body)
        self.allows(name, allowed)

    def allows(self, name: str, allowed: int) -> None:
        """Wait until a budget allows so many evictions."""

        def counted() -> bool:
            budget = self.server.ok("GET", f"{self.budgets}/{name}")
            status = budget.get("status") or {}
            seen = status.get("observedGeneration") == budget["metadata"]["generation"]
            return seen and status.get("disruptionsAllowed") == allowed

        until(f"{name} allows {allowed}", counted)

    def evict(self, name: str, **options: Any) -> Answer:
        """Ask for an eviction."""
        body: dict[str, Any] = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        if options:
            body["deleteOptions"] = options
        answer: Answer = self.server.ask("POST", f"{self.pods}/{name}/eviction", body)
        return answer

    def pod(self, name: str) -> dict[str, Any]:
        """A pod."""
        found: dict[str, Any] = self.server.ok("GET", f"{self.pods}/{name}")
        return found


@pytest.fixture
def workload(server: Server, space: str, node: str) -> Workload:
    """An empty workload."""
    return Workload(server, space, node)


def test_an_accepted_eviction_is_a_marked_deletion(workload: Workload) -> None:
    """201; DisruptionTarget=True by EvictionByEvictionAPI, and a deletionTimestamp."""
    workload.run("a")
    answer = workload.evict("a")
    assert (answer.status, answer.body["status"]) == (201, "Success")
    pod = workload.pod("a")
    (mark,) = [c for c in pod["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert (mark["status"], mark["reason"]) == ("True", "EvictionByEvictionAPI")
    assert pod["metadata"]["deletionTimestamp"]


def test_evicting_a_terminating_pod_again_is_accepted(workload: Workload) -> None:
    """201, whatever the budget says."""
    workload.run("a")
    workload.budget("b", 0, minAvailable=1)
    workload.server.ok("DELETE", f"{workload.pods}/a")
    assert workload.evict("a").status == 201


def test_a_budget_that_is_spent_refuses(workload: Workload) -> None:
    """429 in JSON with cause DisruptionBudget and no Retry-After time; the pod is untouched."""
    workload.run("a", "b")
    workload.budget("pdb", 1, minAvailable=1)
    assert workload.evict("a").status == 201
    answer = workload.evict("b")
    assert (answer.status, answer.reason) == (429, "TooManyRequests")
    (cause,) = answer.body["details"]["causes"]
    assert cause["reason"] == "DisruptionBudget"
    assert "needs 1 healthy pods and has 1 currently" in cause["message"]
    assert "retryAfterSeconds" not in answer.body["details"]
    assert "deletionTimestamp" not in workload.pod("b")["metadata"]


@pytest.mark.parametrize("spec", [{"minAvailable": "50%"}, {"maxUnavailable": 1}], ids=str)
def test_a_relative_budget_over_bare_pods_allows_nothing(workload: Workload, spec: dict[str, Any]) -> None:
    """Shares and maxUnavailable are of what a controller wants to run; bare pods have none."""
    workload.run("a", "b", "c")
    workload.budget("pdb", 0, **spec)


@pytest.mark.parametrize(
    ("spec", "allowed"), [({"minAvailable": "50%"}, 2), ({"maxUnavailable": 1}, 1)], ids=str
)
def test_a_relative_budget_counts_what_the_controller_wants(
    workload: Workload, spec: dict[str, Any], allowed: int
) -> None:
    """Half of four must stay; one of four may be away."""
    workload.run("a", "b", "c", "d")
    workload.replica_set("rs", 4)
    workload.budget("pdb", allowed, **spec)


def test_an_evicted_pod_of_a_replica_set_is_replaced(workload: Workload) -> None:
    """The controller makes a new one as soon as the old one is terminating."""
    workload.run("a")
    workload.replica_set("rs", 1)
    until("the pod is adopted", lambda: "ownerReferences" in workload.pod("a")["metadata"])
    assert workload.evict("a").status == 201
    until("a replacement", lambda: len(workload.server.ok("GET", workload.pods)["items"]) == 2)


def test_a_budget_opens_again_when_pods_come_back(workload: Workload) -> None:
    """A replacement that is ready gives the disruption back."""
    workload.run("a", "b")
    workload.budget("pdb", 1, minAvailable=1)
    workload.evict("a")
    workload.allows("pdb", 0)
    workload.server.ok("DELETE", f"{workload.pods}/a?gracePeriodSeconds=0")
    workload.run("c")
    workload.allows("pdb", 1)
    assert workload.evict("b").status == 201


def test_two_budgets_are_an_error(workload: Workload) -> None:
    """500 that tells of more than one budget, with no reason."""
    workload.run("a")
    for name in ("one", "two"):
        workload.budget(name, 1, minAvailable=0)
    answer = workload.evict("a")
    assert answer.status == 500
    assert "more than one PodDisruptionBudget" in answer.message
    assert answer.reason == ""


def test_another_pod_of_the_name_is_not_evicted(workload: Workload) -> None:
    """409 where the uid differs; 404 where there is no pod."""
    workload.run("a")
    answer = workload.evict("a", preconditions={"uid": "other"})
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert "deletionTimestamp" not in workload.pod("a")["metadata"]
    assert workload.evict("nobody").status == 404


def test_a_wrong_uid_spends_the_budget_all_the_same(workload: Workload) -> None:
    """The budget is decremented before the uid is looked at: the next eviction is refused."""
    workload.run("a", "b")
    workload.budget("pdb", 1, minAvailable=1)
    assert workload.evict("a", preconditions={"uid": "other"}).status == 409
    assert workload.evict("b").status == 429
    assert list(workload.server.ok("GET", f"{workload.budgets}/pdb")["status"]["disruptedPods"]) == ["a"]


def test_a_finished_pod_is_not_asked_about(workload: Workload) -> None:
    """201 whatever the budget says, and gone at once."""
    workload.run("a", "b")
    workload.budget("pdb", 0, minAvailable=2)
    workload.be("a", phase="Succeeded")
    assert workload.evict("a").status == 201
    assert workload.server.ask("GET", f"{workload.pods}/a").status == 404


def test_an_unready_pod_waits_for_its_budget_unless_the_policy_lets_it_go(workload: Workload) -> None:
    """429 while the budget is not met; AlwaysAllow accepts."""
    workload.run("a", ready=False)
    workload.budget("pdb", 0, minAvailable=1)
    assert workload.evict("a").status == 429
    always = {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}}
    workload.server.ok("PATCH", f"{workload.budgets}/pdb", always, content_type=MERGE)
    workload.allows("pdb", 0)
    assert workload.evict("a").status == 201


def test_a_dry_run_evicts_nothing_and_spends_nothing(workload: Workload) -> None:
    """201 and all as before."""
    workload.run("a", "b")
    workload.budget("pdb", 1, minAvailable=1)
    assert workload.evict("a", dryRun=["All"]).status == 201
    assert "deletionTimestamp" not in workload.pod("a")["metadata"]
    workload.allows("pdb", 1)


def test_grace_0_removes_the_record_at_once(workload: Workload) -> None:
    """The trap of a zero grace: the object is gone while the process may live."""
    workload.run("a")
    assert workload.evict("a", gracePeriodSeconds=0).status == 201
    assert workload.server.ask("GET", f"{workload.pods}/a").status == 404
