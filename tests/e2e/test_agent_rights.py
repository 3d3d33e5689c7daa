"""What one agent can do to the cluster, tried on a real API server with the tokens its pods have.

Each attack is a test by name. It is refused by the rule that is meant to refuse it; and an account with
the same RBAC rights that the policies do not cover succeeds with it, so none is refused by accident.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest

from tests.controlplane.access import APPLY, JSON, JSON_PATCH, MERGE, STRATEGIC, Access, Answer
from tests.controlplane.installation import AGENT, LEADER_LEASE, NAMESPACE, Installation

Json = dict[str, Any]

OWN, OTHER = "rights-a", "rights-b"
"""The node of the agent under test, and another one that it must not touch."""

NODE_POLICY, OBJECT_POLICY, EVENT_POLICY = (
    "outlast-agent-node",
    "outlast-agent-objects",
    "outlast-agent-events",
)
NODES = "/api/v1/nodes"
STATUS = f"{NODES}/{OWN}/status"
HEALTHS = "/apis/outlast.dev/v1alpha1/nodehealths"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
EVENTS = "/api/v1/namespaces/default/events"
NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
UNPOLICED = "unpoliced-agent"
TIME = "2026-01-02T03:04:05Z"


@dataclass(frozen=True, slots=True)
class Write:
    """One request as an attacker would send it."""

    method: str
    path: str
    body: Any
    content_type: str = JSON

    def sent_by(self, who: Access, *, dry_run: bool = False) -> Answer:
        path = self.path
        if dry_run:
            path += ("&" if "?" in path else "?") + "dryRun=All"
        return who.ask(self.method, path, self.body, content_type=self.content_type)


def strategic(body: Json, path: str = STATUS) -> Write:
    return Write("PATCH", path, body, STRATEGIC)


def merge(body: Json, path: str = STATUS) -> Write:
    return Write("PATCH", path, body, MERGE)


def json_patch(*operations: Json) -> Write:
    return Write("PATCH", STATUS, list(operations), JSON_PATCH)


def applied(body: Json, *, force: bool = False) -> Write:
    whole = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OWN}}
    for key, value in body.items():
        whole[key] = {**whole.get(key, {}), **value} if isinstance(value, dict) else value  # type: ignore[dict-item]
    return Write("PATCH", f"{STATUS}?fieldManager=attacker&force={str(force).lower()}", whole, APPLY)


def condition(type_: str = "GPUReady", status: str = "True", **more: str) -> Json:
    return {"type": type_, "status": status, "reason": "Test", "lastTransitionTime": TIME, **more}


def conditions(*items: Json) -> Json:
    return {"status": {"conditions": list(items)}}


def metadata(**fields: Any) -> Json:
    return {"metadata": fields}


def appended(*items: Json) -> Write:
    return json_patch(*({"op": "add", "path": "/status/conditions/-", "value": item} for item in items))


def health(**meta: Any) -> Json:
    return {"apiVersion": "outlast.dev/v1alpha1", "kind": "NodeHealth", "metadata": meta}


def lease(**meta: Any) -> Json:
    return {"metadata": meta, "spec": {"holderIdentity": "attacker"}}


def event(kind: str = "Node", name: str = OWN, message: str = "test", **meta: Any) -> Json:
    about = {"kind": kind, "name": name}
    return {"metadata": meta or {"generateName": "x-"}, "involvedObject": about, "reason": "Test"} | {
        "message": message,
        "type": "Normal",
        "source": {"component": "test"},
    }


def new_event(name: str, note: str = "test") -> Json:
    return {
        "metadata": {"generateName": "x-"},
        "regarding": {"kind": "Node", "name": name},
        "reason": "Test",
        "note": note,
        "type": "Normal",
        "eventTime": "2026-01-02T03:04:05.000000Z",
        "action": "Test",
        "reportingController": "outlast.dev/agent",
        "reportingInstance": OWN,
    }


OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}
READY_FALSE = condition("Ready", "False")
TAKEN = f"{LEASES}/outlast-agent-{OTHER}"
"""The other agent's Lease; exists."""

METADATA = "may not change the metadata"
FIELDS = "but conditions"
FOREIGN = "only change its own five conditions"
NOT_YOURS = f"may not write node {OTHER}"
ONLY_OWN = "may only write"
SIZES = "at most 128 characters"

ATTACKS: dict[str, tuple[Write, str, str]] = {
    # metadata through the status subresource
    "labels its node": (strategic(metadata(labels={"x": "y"})), NODE_POLICY, METADATA),
    "removes a label by merge": (merge(metadata(labels={"role": None})), NODE_POLICY, METADATA),
    "removes all labels by merge": (merge(metadata(labels=None)), NODE_POLICY, METADATA),
    "annotates its node": (merge(metadata(annotations={"x": "y"})), NODE_POLICY, METADATA),
    "sets a finalizer": (merge(metadata(finalizers=["outlast.dev/x"])), NODE_POLICY, METADATA),
    "sets an owner": (merge(metadata(ownerReferences=[OWNER])), NODE_POLICY, METADATA),
    "labels its node by apply": (applied(metadata(labels={"x": "y"})), NODE_POLICY, METADATA),
    "labels its node by json patch": (
        json_patch({"op": "add", "path": "/metadata/labels/x", "value": "y"}),
        NODE_POLICY,
        METADATA,
    ),
    # other fields of the status
    "sets allocatable": (merge({"status": {"allocatable": {"nvidia.com/gpu": "0"}}}), NODE_POLICY, FIELDS),
    "sets capacity": (merge({"status": {"capacity": {"example.com/x": "9"}}}), NODE_POLICY, FIELDS),
    "removes capacity": (merge({"status": {"capacity": None}}), NODE_POLICY, FIELDS),
    "sets declaredFeatures": (merge({"status": {"declaredFeatures": ["X"]}}), NODE_POLICY, FIELDS),
    "sets bootID": (merge({"status": {"nodeInfo": {"bootID": "x"}}}), NODE_POLICY, FIELDS),
    "sets addresses": (
        merge({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}),
        NODE_POLICY,
        FIELDS,
    ),
    "sets images": (merge({"status": {"images": [{"names": ["x"]}]}}), NODE_POLICY, FIELDS),
    "sets volumesAttached": (
        merge({"status": {"volumesAttached": [{"name": "x", "devicePath": "x"}]}}),
        NODE_POLICY,
        FIELDS,
    ),
    "empties the status": (merge({"status": None}), NODE_POLICY, FOREIGN),
    # conditions of others
    "sets Ready": (strategic(conditions(READY_FALSE)), NODE_POLICY, FOREIGN),
    "sets Ready by apply with force": (applied(conditions(READY_FALSE), force=True), NODE_POLICY, FOREIGN),
    "touches only the message of Ready": (
        strategic(conditions({"type": "Ready", "message": "x"})),
        NODE_POLICY,
        FOREIGN,
    ),
    "sets AcceleratedHardwareReady": (
        strategic(conditions(condition("AcceleratedHardwareReady", "False"))),
        NODE_POLICY,
        FOREIGN,
    ),
    "sets a condition of a new type": (strategic(conditions(condition("Mine"))), NODE_POLICY, FOREIGN),
    "sets a new type by apply without force": (applied(conditions(condition("Mine"))), NODE_POLICY, FOREIGN),
    "replaces all conditions with patch replace": (
        strategic(conditions({"$patch": "replace"}, condition())),
        NODE_POLICY,
        FOREIGN,
    ),
    "deletes Ready with patch delete": (
        strategic(conditions({"$patch": "delete", "type": "Ready"})),
        NODE_POLICY,
        FOREIGN,
    ),
    "drops the conditions of others by merge": (merge(conditions(condition())), NODE_POLICY, FOREIGN),
    "removes a foreign condition by json patch": (
        json_patch({"op": "remove", "path": "/status/conditions/0"}),
        NODE_POLICY,
        FOREIGN,
    ),
    "reorders the conditions of others": (
        json_patch({"op": "move", "from": "/status/conditions/0", "path": "/status/conditions/-"}),
        NODE_POLICY,
        FOREIGN,
    ),
    "appends a second Ready": (appended(condition("Ready")), NODE_POLICY, FOREIGN),
    # its own conditions, malformed
    "duplicates its own condition by json patch": (
        appended(condition(), condition()),
        NODE_POLICY,
        "may appear only once",
    ),
    "sets a status that is none": (
        strategic(conditions(condition(status="Maybe"))),
        NODE_POLICY,
        "True, False",
    ),
    "sets an oversized reason": (strategic(conditions(condition(reason="x" * 129))), NODE_POLICY, SIZES),
    "sets an oversized message": (strategic(conditions(condition(message="x" * 1025))), NODE_POLICY, SIZES),
    # other nodes
    "sets its condition on another node": (
        strategic(conditions(condition()), f"{NODES}/{OTHER}/status"),
        NODE_POLICY,
        NOT_YOURS,
    ),
    "labels another node": (
        merge(metadata(labels={"x": "y"}), f"{NODES}/{OTHER}/status"),
        NODE_POLICY,
        NOT_YOURS,
    ),
    # NodeHealth
    "creates the NodeHealth of another node": (
        Write("POST", HEALTHS, health(name="rights-c")),
        OBJECT_POLICY,
        ONLY_OWN,
    ),
    "creates a NodeHealth by generateName": (
        Write("POST", HEALTHS, health(generateName="rights-")),
        OBJECT_POLICY,
        ONLY_OWN,
    ),
    "writes the NodeHealth of another node": (
        merge({"status": {"state": "Faulty"}}, f"{HEALTHS}/{OTHER}/status"),
        OBJECT_POLICY,
        ONLY_OWN,
    ),
    "creates a NodeHealth with a finalizer": (
        Write("POST", HEALTHS, health(name=OWN, finalizers=["outlast.dev/x"])),
        OBJECT_POLICY,
        "no finalizer",
    ),
    "creates a NodeHealth with a foreign owner": (
        Write("POST", HEALTHS, health(name=OWN, ownerReferences=[OWNER])),
        OBJECT_POLICY,
        "no owner but its Node",
    ),
    # Leases
    "creates the Lease of another agent": (
        Write("POST", LEASES, lease(name="outlast-agent-rights-c")),
        OBJECT_POLICY,
        ONLY_OWN,
    ),
    "creates a Lease by generateName": (
        Write("POST", LEASES, lease(generateName="outlast-agent-")),
        OBJECT_POLICY,
        ONLY_OWN,
    ),
    "creates a Lease named as its node": (Write("POST", LEASES, lease(name=OWN)), OBJECT_POLICY, ONLY_OWN),
    "renews the Lease of another agent": (
        merge({"spec": {"holderIdentity": "x"}}, TAKEN),
        OBJECT_POLICY,
        ONLY_OWN,
    ),
    "takes the controller's Lease": (
        merge({"spec": {"holderIdentity": "x"}}, LEADER_LEASE),
        OBJECT_POLICY,
        ONLY_OWN,
    ),
    # Events
    "writes an Event about another node": (
        Write("POST", EVENTS, event(name=OTHER)),
        EVENT_POLICY,
        "about that node",
    ),
    "writes an Event about a pod": (
        Write("POST", EVENTS, event(kind="Pod", name=OWN) | {"metadata": {"generateName": "x-"}}),
        EVENT_POLICY,
        "about that node",
    ),
    "writes a new-style Event about another node": (
        Write("POST", NEW_EVENTS, new_event(OTHER)),
        EVENT_POLICY,
        "about that node",
    ),
    "rewrites an Event about another node": (
        merge({"message": "forged"}, f"{EVENTS}/about-other"),
        EVENT_POLICY,
        "about that node",
    ),
    "writes an oversized Event": (
        Write("POST", EVENTS, event(message="x" * 1025)),
        EVENT_POLICY,
        "at most 1024 characters",
    ),
}

REFUSED_BY_RBAC: dict[str, Write] = {
    "cordons its node": merge({"spec": {"unschedulable": True}}, f"{NODES}/{OWN}"),
    "labels its node directly": merge(metadata(labels={"x": "y"}), f"{NODES}/{OWN}"),
    "deletes its node": Write("DELETE", f"{NODES}/{OWN}", None),
    "deletes its NodeHealth": Write("DELETE", f"{HEALTHS}/{OTHER}", None),
    "labels a NodeHealth": merge(metadata(labels={"x": "y"}), f"{HEALTHS}/{OTHER}"),
    "deletes the controller's Lease": Write("DELETE", LEADER_LEASE, None),
    "renews the kubelet's Lease": merge(
        {"spec": {"holderIdentity": "x"}},
        f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{OWN}",
    ),
    "opens an Incident": Write("POST", "/apis/outlast.dev/v1alpha1/incidents", {"metadata": {"name": "x"}}),
    "reads Incidents": Write("GET", "/apis/outlast.dev/v1alpha1/incidents", None),
    "evicts a pod": Write("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/outlast-agent-{OTHER}/eviction", {}),
    "reads secrets": Write("GET", "/api/v1/secrets", None),
    "reads pods": Write("GET", "/api/v1/pods", None),
    "creates a Job": Write(
        "POST", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", {"metadata": {"name": "x"}}
    ),
    "proxies to a kubelet": Write("GET", f"{NODES}/{OWN}/proxy/pods", None),
    "loosens the policy": Write(
        "DELETE", f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{NODE_POLICY}", None
    ),
}


@dataclass(frozen=True, slots=True)
class Cast:
    """Who is who."""

    installation: Installation
    agent: Access
    """The agent's pod on OWN."""
    unpoliced: Access
    """An account with the agent's RBAC rights, on the same node, that no policy covers."""

    @property
    def admin(self) -> Access:
        return self.installation.admin

    def node(self, name: str = OWN) -> Json:
        """What an attack could change of a node: everything but bookkeeping and heartbeats."""
        node: Json = self.admin.get(f"{NODES}/{name}")
        for key in ("managedFields", "resourceVersion"):
            node["metadata"].pop(key, None)
        return node


@pytest.fixture(scope="module")
def cast(installation: Installation) -> Iterator[Cast]:
    """Two nodes with an agent each; what the other agent owns already exists."""
    admin = installation.admin
    for name in (OWN, OTHER):
        installation.node(name)
        admin.request("PATCH", f"{NODES}/{name}", metadata(labels={"role": "gpu"}), content_type=MERGE)
    agent, other = installation.agent(OWN), installation.agent(OTHER)
    other.request("POST", HEALTHS, health(name=OTHER))
    other.request("POST", LEASES, lease(name=f"outlast-agent-{OTHER}"))
    other.request("POST", EVENTS, event(name=OTHER) | {"metadata": {"name": "about-other"}})
    subject = {"kind": "ServiceAccount", "name": UNPOLICED, "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": AGENT}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    admin.request(
        "POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": UNPOLICED}}
    )
    binding = {"metadata": {"name": UNPOLICED}, "roleRef": role, "subjects": [subject]}
    admin.request("POST", f"{rbac}/clusterrolebindings", binding)
    binding["roleRef"] = role | {"kind": "Role"}
    admin.request("POST", f"{rbac}/namespaces/{NAMESPACE}/rolebindings", binding)
    unpoliced = installation.token(UNPOLICED, installation.pod(UNPOLICED, UNPOLICED, OWN))
    yield Cast(installation, agent, unpoliced)
    for name in (OWN, OTHER):
        admin.ask("DELETE", f"{HEALTHS}/{name}")
        admin.ask("DELETE", f"{LEASES}/outlast-agent-{name}")
        admin.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/outlast-agent-{name}")
        admin.ask("DELETE", f"{NODES}/{name}")
    admin.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{UNPOLICED}")
    admin.ask("DELETE", f"{EVENTS}/about-other")


def named(attacks: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("name", attacks)


# -- attacks ------------------------------------------------------------------------------------


@named(ATTACKS)
def test_the_agent_is_refused_when_it(cast: Cast, name: str) -> None:
    """Each attack is answered 403 by the policy and the rule that are meant for it."""
    attack, policy, rule = ATTACKS[name]
    answer = attack.sent_by(cast.agent)
    assert (answer.status, answer.reason) == (403, "Forbidden"), answer.message
    assert f"ValidatingAdmissionPolicy '{policy}'" in answer.message
    assert rule in answer.message


@named(ATTACKS)
def test_without_the_policies_it_succeeds_when_it(cast: Cast, name: str) -> None:
    """RBAC alone lets each attack through, so the refusal above is the policy's doing."""
    attack, _, _ = ATTACKS[name]
    answer = attack.sent_by(cast.unpoliced, dry_run=True)
    assert answer.ok, answer.message
    if attack.path.startswith(NODES):
        target = OTHER if OTHER in attack.path else OWN
        after = answer.body
        for key in ("managedFields", "resourceVersion"):
            after["metadata"].pop(key, None)
        assert after != cast.node(target), "the attack changes nothing, so it proves nothing"


@named(REFUSED_BY_RBAC)
def test_the_agent_has_no_right_to_what(cast: Cast, name: str) -> None:
    """Verbs that an agent never needs are not granted at all."""
    answer = REFUSED_BY_RBAC[name].sent_by(cast.agent)
    assert (answer.status, answer.reason) == (403, "Forbidden"), answer.message
    assert "ValidatingAdmissionPolicy" not in answer.message


def test_the_agent_cannot_replace_a_whole_status(cast: Cast) -> None:
    """PUT is not granted: a whole object written back reverts other writers."""
    node = cast.admin.get(f"{NODES}/{OWN}")
    answer = cast.agent.ask("PUT", STATUS, node)
    assert (answer.status, answer.reason) == (403, "Forbidden")


def test_a_token_that_is_bound_to_no_pod_writes_nothing(cast: Cast) -> None:
    """A token without a node could be anywhere, so it may write nowhere."""
    unbound = cast.installation.token(AGENT)
    writes = [
        strategic(conditions(condition())),
        Write("POST", HEALTHS, health(name=OWN)),
        Write("POST", LEASES, lease(name=f"outlast-agent-{OWN}")),
        Write("POST", EVENTS, event()),
    ]
    for write in writes:
        answer = write.sent_by(unbound)
        assert answer.status == 403
        assert "not bound to a pod on a node" in answer.message


def test_a_token_dies_with_its_pod(cast: Cast) -> None:
    """A token taken from a pod is worthless once that pod is gone (one used just before, 10 s later)."""
    pod = cast.installation.pod("short-lived", AGENT, OWN)
    used, stolen = cast.installation.token(AGENT, pod), cast.installation.token(AGENT, pod)
    assert strategic(conditions(condition())).sent_by(used, dry_run=True).ok
    cast.admin.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/short-lived?gracePeriodSeconds=0")
    assert strategic(conditions(condition())).sent_by(stolen).status == 401


def test_a_spec_change_through_the_status_does_nothing(cast: Cast) -> None:
    """The status subresource drops the spec: answered 200, and the node is as before."""
    before = cast.node()
    answer = strategic(
        {"spec": {"unschedulable": True, "taints": [{"key": "x", "effect": "NoExecute"}]}}
    ).sent_by(cast.agent)
    assert answer.ok, answer.message
    assert cast.node()["spec"] == before["spec"]


def test_labels_through_the_status_of_a_nodehealth_do_nothing(cast: Cast) -> None:
    """On custom resources the status subresource drops metadata too."""
    cast.agent.ask("POST", HEALTHS, health(name=OWN))
    body = {"metadata": {"labels": {"x": "y"}, "finalizers": ["outlast.dev/x"]}, "status": {}}
    merge(body, f"{HEALTHS}/{OWN}/status").sent_by(cast.agent)
    after = cast.admin.get(f"{HEALTHS}/{OWN}")["metadata"]
    assert "labels" not in after
    assert "finalizers" not in after


# -- what must still work -----------------------------------------------------------------------


def test_the_agent_publishes_its_conditions(cast: Cast) -> None:
    """By strategic merge with the uid; flips, heartbeats and removal included; others stay as they are."""
    uid = cast.node()["metadata"]["uid"]
    foreign = [
        c for c in cast.node()["status"]["conditions"] if not c["type"].startswith(("GPU", "RDMA", "Host"))
    ]
    ours = ("GPUReady", "GPUFabricReady", "RDMAReady", "GPUMonitorReady", "HostReady")
    for status in ("Unknown", "True", "False"):
        body = {"metadata": {"uid": uid}} | conditions(
            *(condition(t, status, message="m" * 1024) for t in ours)
        )
        assert strategic(body).sent_by(cast.agent).ok
    shown = {c["type"]: c["status"] for c in cast.node()["status"]["conditions"]}
    assert [shown[t] for t in ours] == ["False"] * 5
    removed = conditions({"$patch": "delete", "type": "RDMAReady"})
    assert strategic(removed).sent_by(cast.agent).ok
    after = cast.node()["status"]["conditions"]
    assert "RDMAReady" not in {c["type"] for c in after}
    assert [c for c in after if c in foreign] == foreign


def test_the_agent_publishes_on_a_node_with_foreign_conditions_and_a_finalizer(cast: Cast) -> None:
    """The rules compare before with after; what others put there is no obstacle."""
    cast.admin.request("PATCH", f"{NODES}/{OWN}", metadata(finalizers=["example.com/x"]), content_type=MERGE)
    theirs = conditions(condition("KernelDeadlock", "False"), condition("AcceleratedHardwareReady"))
    cast.admin.request("PATCH", STATUS, theirs, content_type=STRATEGIC)
    answer = strategic(conditions(condition())).sent_by(cast.agent)
    cast.admin.request("PATCH", f"{NODES}/{OWN}", metadata(finalizers=None), content_type=MERGE)
    assert answer.ok, answer.message


def test_the_agent_owns_its_nodehealth(cast: Cast) -> None:
    """It creates it (again is 409), writes its status and reads it, owned by its Node."""
    cast.admin.ask("DELETE", f"{HEALTHS}/{OWN}")
    uid = cast.node()["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": OWN, "uid": uid}
    create = Write("POST", HEALTHS, health(name=OWN, ownerReferences=[owner]))
    assert create.sent_by(cast.agent).status == 201
    assert create.sent_by(cast.agent).status == 409
    assert merge({"status": {"state": "Healthy"}}, f"{HEALTHS}/{OWN}/status").sent_by(cast.agent).ok
    assert cast.agent.get(f"{HEALTHS}/{OWN}")["status"]["state"] == "Healthy"


def test_the_agent_renews_its_lease(cast: Cast) -> None:
    """Create, read, patch and update of outlast-agent-<node>."""
    path = f"{LEASES}/outlast-agent-{OWN}"
    assert Write("POST", LEASES, lease(name=f"outlast-agent-{OWN}")).sent_by(cast.agent).status == 201
    assert merge({"spec": {"renewTime": "2026-01-02T03:04:05.000000Z"}}, path).sent_by(cast.agent).ok
    whole = cast.agent.get(path)
    assert Write("PUT", path, whole).sent_by(cast.agent).ok


@pytest.mark.parametrize("kind", ["Node", "NodeHealth"])
def test_the_agent_writes_events_about_its_node(cast: Cast, kind: str) -> None:
    """In both API groups, and counts them up with a patch."""
    made = Write("POST", EVENTS, event(kind=kind)).sent_by(cast.agent)
    assert made.ok, made.message
    name = made.body["metadata"]["name"]
    assert merge({"count": 2}, f"{EVENTS}/{name}").sent_by(cast.agent).ok
    assert Write("POST", NEW_EVENTS, new_event(OWN)).sent_by(cast.agent).ok


def test_the_agent_watches_its_own_node(cast: Cast) -> None:
    """A watch by name, so that it sees when another writer reverts its conditions."""
    selector = quote(f"metadata.name={OWN}")
    path = f"{NODES}?watch=1&timeoutSeconds=1&fieldSelector={selector}"
    answer = cast.agent.ask("GET", path)
    assert answer.ok
    lines = [answer.body] if isinstance(answer.body, dict) else map(json.loads, answer.body.splitlines())
    assert {line["object"]["metadata"]["name"] for line in lines} == {OWN}


def test_a_kubelet_is_not_affected(cast: Cast) -> None:
    """Its own node's Ready, capacity, boot id and labels stay the kubelet's to write."""
    kubelet = cast.admin.as_kubelet(OWN)
    writes = [
        strategic(conditions(condition("Ready"))),
        merge({"status": {"capacity": {"example.com/x": "9"}, "nodeInfo": {"bootID": "next"}}}),
        merge(metadata(annotations={"example.com/x": "y"}), f"{NODES}/{OWN}"),
        Write("POST", EVENTS, event(name=OWN)),
    ]
    for write in writes:
        answer = write.sent_by(kubelet, dry_run=True)
        assert answer.ok, answer.message


def test_a_human_is_not_affected(cast: Cast) -> None:
    """An administrator may do all of it, to any node."""
    human = cast.admin.as_user("erika", ("system:masters",))
    human.ask("DELETE", f"{HEALTHS}/{OWN}")
    for name, (attack, _, _) in ATTACKS.items():
        answer = attack.sent_by(human, dry_run=True)
        assert answer.ok, f"{name}: {answer.message}"


def test_the_policies_have_no_type_warnings(cast: Cast) -> None:
    """The server type-checks the rules against the real schemas; a warning is a rule that may never match."""
    root = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    ours = [p for p in cast.admin.get(root)["items"] if p["metadata"]["name"].startswith("outlast-")]
    assert len(ours) == 4
    for policy in ours:
        assert policy["status"]["typeChecking"] == {}, policy["metadata"]["name"]
