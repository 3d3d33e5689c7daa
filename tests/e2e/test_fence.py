"""The fence on the controller's Lease: only its holder can disrupt anything, whatever others believe.

Tried on a real API server with the pod-bound tokens of two replicas. Each act of a controller is a test
by name: refused to the replica that does not hold the Lease, let through for the one that does.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.controlplane.access import JSON, JSON_PATCH, MERGE, STRATEGIC, Access, Answer
from tests.controlplane.installation import CONTROLLER, LEADER_LEASE, NAMESPACE, Installation
from tests.controlplane.processes import wait_until

Json = dict[str, Any]

NODE, LEADER, FOLLOWER = "fenced-node", "ctl-0", "ctl-1"
VICTIM = f"/api/v1/namespaces/{NAMESPACE}/pods/fence-victim"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
INCIDENTS = "/apis/outlast.dev/v1alpha1/incidents"
NODECLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
EVENTS = "/api/v1/namespaces/default/events"
FENCE = "ValidatingAdmissionPolicy 'outlast-controller-fence'"
TAKE_OVER_DEADLINE_S = 10.0
WRITES_IN_FLIGHT = 8
WATCH_LAG_MAX_S = 1.0
"""Between a Lease write and the policy's own view of it; milliseconds on an idle machine."""
_unique = itertools.count(1)


def job(name: str) -> Json:
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
    return {"metadata": {"name": name}, "spec": {"suspend": True, "template": {"spec": spec}}}


def incident(name: str) -> Json:
    spec = {"nodeName": NODE, "nodeUID": "u", "openedAt": "2026-01-02T03:04:05Z"}
    return {
        "apiVersion": "outlast.dev/v1alpha1",
        "kind": "Incident",
        "metadata": {"name": name},
        "spec": spec,
    }


def eviction() -> Json:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "fence-victim"}}


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a controller does."""

    method: str
    path: str
    body: Any = None
    content_type: str = JSON

    def by(self, who: Access, *, dry_run: bool) -> Answer:
        path = self.path + ("?dryRun=All" if dry_run else "")
        return who.ask(self.method, path, self.body, content_type=self.content_type)


CORDON = [
    {"op": "test", "path": "/spec/unschedulable", "value": None},
    {"op": "add", "path": "/metadata/annotations/outlast.dev~1cordon", "value": "{}"},
    {"op": "add", "path": "/spec/unschedulable", "value": True},
]
HANDOVER = {"status": {"conditions": [{"type": "AcceleratedHardwareReady", "status": "False"}]}}
DISRUPTION = {"status": {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}}

ACTS: dict[str, Act] = {
    "cordon a node": Act("PATCH", f"/api/v1/nodes/{NODE}", CORDON, JSON_PATCH),
    "hand a node over": Act("PATCH", f"/api/v1/nodes/{NODE}/status", HANDOVER, STRATEGIC),
    "evict a pod": Act("POST", f"{VICTIM}/eviction", eviction()),
    "delete a pod": Act("DELETE", VICTIM),
    "ask a pod for a checkpoint": Act("PATCH", VICTIM, {"metadata": {"annotations": {"x": "y"}}}, MERGE),
    "mark a pod disrupted": Act("PATCH", f"{VICTIM}/status", DISRUPTION, STRATEGIC),
    "create a repair Job": Act("POST", JOBS, job("fence-new")),
    "resume a repair Job": Act("PATCH", f"{JOBS}/fence-job", {"spec": {"suspend": False}}, MERGE),
    "delete a repair Job": Act("DELETE", f"{JOBS}/fence-job"),
    "open an Incident": Act("POST", INCIDENTS, incident("fence-new")),
    "write an Incident": Act("PATCH", f"{INCIDENTS}/fence", {"metadata": {"labels": {"x": "y"}}}, MERGE),
    "write the status of an Incident": Act(
        "PATCH", f"{INCIDENTS}/fence/status", {"status": {"epoch": 1}}, MERGE
    ),
    "delete an Incident": Act("DELETE", f"{INCIDENTS}/fence"),
    "delete a NodeClaim": Act("DELETE", f"{NODECLAIMS}/fence"),
}


@dataclass(frozen=True, slots=True)
class Replicas:
    """Two replicas of the controller; `elect` says which one the Lease names."""

    installation: Installation
    leader: Access
    follower: Access

    @property
    def admin(self) -> Access:
        return self.installation.admin

    def elect(self, holder: str | None) -> None:
        """Write the Lease and wait until the API server's own cache has it."""
        self.admin.request("PATCH", LEADER_LEASE, {"spec": {"holderIdentity": holder}}, content_type=MERGE)
        if holder in (LEADER, FOLLOWER):
            chosen = self.leader if holder == LEADER else self.follower
            self.wait(lambda: ACTS["cordon a node"].by(chosen, dry_run=True).ok)
        else:
            self.wait(lambda: not ACTS["cordon a node"].by(self.leader, dry_run=True).ok)

    @staticmethod
    def wait(condition: Any) -> None:
        wait_until(condition, deadline_s=TAKE_OVER_DEADLINE_S, what="the fence to follow the Lease")


@pytest.fixture(scope="module")
def replicas(installation: Installation) -> Iterator[Replicas]:
    """A node, a pod, a Job, an Incident and a NodeClaim to act on, and two replicas."""
    admin = installation.admin
    installation.node(NODE)
    leader, follower = installation.controller(LEADER, NODE), installation.controller(FOLLOWER, NODE)
    installation.pod("fence-victim", "outlast-repair", NODE)
    admin.request("POST", JOBS, job("fence-job"))
    admin.request("POST", INCIDENTS, incident("fence"))
    claim = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "fence"}}
    admin.request("POST", NODECLAIMS, claim)
    yield Replicas(installation, leader, follower)
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    things = [VICTIM, f"{pods}/{LEADER}", f"{pods}/{FOLLOWER}", f"{JOBS}/fence-job", f"{INCIDENTS}/fence"]
    for path in [*things, f"{NODECLAIMS}/fence", f"/api/v1/nodes/{NODE}"]:
        admin.ask("DELETE", path)
    admin.ask("PATCH", LEADER_LEASE, {"spec": {"holderIdentity": None}}, content_type=MERGE)


@pytest.fixture
def elected(replicas: Replicas) -> Replicas:
    """ctl-0 holds the Lease."""
    replicas.elect(LEADER)
    return replicas


def assert_fenced(answer: Answer, words: str) -> None:
    assert (answer.status, answer.reason) == (403, "Forbidden"), answer.message
    assert FENCE in answer.message
    assert words in answer.message


@pytest.mark.parametrize("dry_run", [True, False], ids=["dry run", "for real"])
@pytest.mark.parametrize("name", ACTS)
def test_a_replica_without_the_lease_cannot(elected: Replicas, name: str, dry_run: bool) -> None:
    """403 by the fence, which names the replica and the holder; dry runs are refused alike."""
    answer = ACTS[name].by(elected.follower, dry_run=dry_run)
    assert_fenced(answer, f"fenced: {FOLLOWER} is not the leader, {LEADER} is")


@pytest.mark.parametrize("name", ACTS)
def test_the_holder_of_the_lease_can(elected: Replicas, name: str) -> None:
    """The same act by the holder goes through, so nothing else refused it above."""
    answer = ACTS[name].by(elected.leader, dry_run=True)
    assert answer.ok, answer.message


def test_a_token_that_is_bound_to_no_pod_is_fenced(elected: Replicas) -> None:
    """A long-lived token of the ServiceAccount cannot pass for any replica."""
    unbound = elected.installation.token(CONTROLLER)
    for act in ACTS.values():
        assert_fenced(act.by(unbound, dry_run=True), "a token without a pod is not the leader")


def test_a_take_over_turns_the_fence_around(elected: Replicas) -> None:
    """Once the other replica holds the Lease, it may write and the old one may not."""
    elected.elect(FOLLOWER)
    assert_fenced(ACTS["evict a pod"].by(elected.leader, dry_run=True), f"{LEADER} is not the leader")
    for act in ACTS.values():
        assert act.by(elected.follower, dry_run=True).ok


def test_a_replica_takes_over_by_writing_the_lease_itself(elected: Replicas) -> None:
    """Leases are outside the fence, or nobody could ever become the leader."""
    taken = {"spec": {"holderIdentity": FOLLOWER}}
    assert elected.follower.ask("PATCH", LEADER_LEASE, taken, content_type=MERGE).ok
    elected.wait(lambda: ACTS["cordon a node"].by(elected.follower, dry_run=True).ok)


def test_a_deposed_leader_in_full_flight_is_stopped(elected: Replicas) -> None:
    """It goes on writing as if nothing had happened; nothing it begins after the take-over gets through."""
    over, begun_and_let_through = threading.Event(), list[float]()

    def write_on() -> None:
        while not over.is_set():
            begun = time.monotonic()
            if ACTS["evict a pod"].by(elected.leader, dry_run=True).ok:
                begun_and_let_through.append(begun)

    with ThreadPoolExecutor(WRITES_IN_FLIGHT) as pool:
        writers = [pool.submit(write_on) for _ in range(WRITES_IN_FLIGHT)]
        wait_until(lambda: len(begun_and_let_through) > 20, deadline_s=10, what="the leader to write")
        elected.follower.request(
            "PATCH", LEADER_LEASE, {"spec": {"holderIdentity": FOLLOWER}}, content_type=MERGE
        )
        taken_over = time.monotonic()
        elected.wait(lambda: ACTS["cordon a node"].by(elected.follower, dry_run=True).ok)
        wait_until(
            lambda: time.monotonic() > taken_over + 2 * WATCH_LAG_MAX_S, deadline_s=10, what="late writes"
        )
        over.set()
        for writer in writers:
            writer.result()
    assert max(begun_and_let_through) < taken_over + WATCH_LAG_MAX_S


@pytest.mark.parametrize("holder", [None, "", "somebody-else"])
def test_nobody_writes_while_no_replica_holds_the_lease(elected: Replicas, holder: str | None) -> None:
    """Before the first election the Lease has no holder: the fence refuses, and does not break."""
    elected.elect(holder)
    words = f"is not the leader, {holder or 'nobody'} is"
    for act in ACTS.values():
        assert_fenced(act.by(elected.leader, dry_run=True), words)


def test_a_missing_lease_locks_nobody_out(elected: Replicas) -> None:
    """Somebody deletes the Lease: kubelets, people and the controllers of the cluster go on writing."""
    admin = elected.admin
    saved = admin.get(LEADER_LEASE)
    admin.request("DELETE", LEADER_LEASE)
    try:
        follower, cordon = elected.follower, ACTS["cordon a node"]
        elected.wait(lambda: cordon.by(follower, dry_run=True).ok)
        for who in (admin, admin.as_kubelet(NODE)):
            ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
            act = Act("PATCH", f"/api/v1/nodes/{NODE}/status", ready, STRATEGIC)
            assert act.by(who, dry_run=True).ok
        assert ACTS["evict a pod"].by(admin, dry_run=True).ok
        assert ACTS["create a repair Job"].by(admin, dry_run=True).ok
    finally:
        body = {"metadata": {"name": "outlast-controller"}, "spec": saved.get("spec", {})}
        admin.request("POST", LEASES, body)


def test_people_and_kubelets_are_never_fenced(elected: Replicas) -> None:
    """The fence looks at our controller's ServiceAccount only."""
    for act in ACTS.values():
        assert act.by(elected.admin, dry_run=True).ok
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    act = Act("PATCH", f"/api/v1/nodes/{NODE}/status", ready, STRATEGIC)
    assert act.by(elected.admin.as_kubelet(NODE), dry_run=True).ok


def test_events_and_leases_are_outside_the_fence(elected: Replicas) -> None:
    """A follower campaigns and says what it does; neither disrupts anything."""
    note = {
        "metadata": {"name": f"fence-{next(_unique)}"},
        "involvedObject": {"kind": "Node", "name": NODE},
        "reason": "Test",
        "message": "test",
    }
    assert Act("POST", EVENTS, note).by(elected.follower, dry_run=True).ok
    renewed = {"spec": {"leaseDurationSeconds": 15}}
    assert Act("PATCH", LEADER_LEASE, renewed, MERGE).by(elected.follower, dry_run=True).ok


def test_a_follower_reads_everything_it_needs(elected: Replicas) -> None:
    """Caches stay warm in both replicas, so that a take-over starts from current state."""
    paths = ["/api/v1/nodes", "/api/v1/pods", INCIDENTS, "/apis/outlast.dev/v1alpha1/nodehealths"]
    paths += ["/apis/outlast.dev/v1alpha1/remediationpolicies", "/apis/policy/v1/poddisruptionbudgets"]
    for path in [*paths, LEASES, NODECLAIMS, "/apis/batch/v1/jobs"]:
        assert elected.follower.ask("GET", path).ok, path


@pytest.mark.parametrize(
    "act",
    [
        Act("POST", "/apis/batch/v1/namespaces/default/jobs", job("elsewhere")),
        Act("DELETE", f"/api/v1/nodes/{NODE}"),
        Act("PATCH", "/apis/outlast.dev/v1alpha1/nodehealths/x/status", {"status": {}}, MERGE),
        Act("GET", "/api/v1/secrets"),
        Act("PATCH", "/api/v1/nodes/x/proxy", {}, MERGE),
    ],
    ids=["a Job elsewhere", "deleting a node", "an agent's NodeHealth", "reading secrets", "a kubelet's API"],
)
def test_even_the_leader_has_no_right_to(elected: Replicas, act: Act) -> None:
    """Least privilege holds for the controller too: RBAC refuses, before any fence."""
    answer = act.by(elected.leader, dry_run=act.method != "GET")
    assert (answer.status, answer.reason) == (403, "Forbidden")
    assert FENCE not in answer.message
