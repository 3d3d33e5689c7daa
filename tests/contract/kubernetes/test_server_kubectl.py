"""kubectl against both servers: what people type must work."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
import yaml

from tests.contract.kubernetes.conftest import Server, kubectl_program, until
from tests.controlplane.access import STRATEGIC

pytestmark = pytest.mark.kubectl


def manifest(name: str, **data: str) -> str:
    """A ConfigMap as YAML."""
    return yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})


def run_pod(server: Server, space: str, node: str, name: str, grace_s: int = 1) -> None:
    """A running pod."""
    pods = f"/api/v1/namespaces/{space}/pods"
    spec = {
        "nodeName": node,
        "containers": [{"name": "c", "image": "i:1"}],
        "terminationGracePeriodSeconds": grace_s,
    }
    server.ok("POST", pods, {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec})
    state = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    server.ok("PATCH", f"{pods}/{name}/status", {"status": state}, content_type=STRATEGIC)


def test_version_and_resources(server: Server) -> None:
    """`version` names the server, `api-resources` lists kinds with short names."""
    assert "Server Version: v1.37" in server.kubectl("version").stdout
    resources = server.kubectl("api-resources").stdout
    assert any(line.split()[:3] == ["nodes", "no", "v1"] for line in resources.splitlines())
    assert "poddisruptionbudgets" in resources


def test_get_nodes_is_a_table(server: Server, node: str) -> None:
    """Server-side columns, wide ones on demand."""
    head, row = server.kubectl("get", "node", node).stdout.splitlines()
    assert head.split() == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert row.split()[:3] == [node, "Ready", "<none>"]
    assert "KERNEL-VERSION" in server.kubectl("get", "no", node, "-o", "wide").stdout


KINDS = [
    "pods",
    "jobs",
    "leases",
    "events",
    "pdb",
    "deployments",
    "daemonsets",
    "replicasets",
    "configmaps",
    "secrets",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_listed(server: Server, space: str, kind: str) -> None:
    """An empty list is not an error."""
    assert server.kubectl("-n", space, "get", kind, "--ignore-not-found").returncode == 0


HEADS = {
    "pods": "NAME READY STATUS RESTARTS AGE",
    "namespaces": "NAME STATUS AGE",
    "pdb": "NAME MIN AVAILABLE MAX UNAVAILABLE ALLOWED DISRUPTIONS AGE",
    "leases": "NAME HOLDER AGE",
    "jobs": "NAME STATUS COMPLETIONS DURATION AGE",
    "events": "LAST SEEN TYPE REASON OBJECT MESSAGE",
    "configmaps": "NAME DATA AGE",
    "crd": "NAME CREATED AT",
}


def test_columns_are_those_of_kubernetes(server: Server, space: str, node: str) -> None:
    """The heads of the kinds that people look at."""
    run_pod(server, space, node, "p")
    base = f"/apis/{{}}/namespaces/{space}/{{}}"
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "p"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}}
    about = {"kind": "Node", "name": node, "namespace": space}
    for path, body in (
        (base.format("policy/v1", "poddisruptionbudgets"), {"metadata": {"name": "b"}, "spec": budget}),
        (base.format("coordination.k8s.io/v1", "leases"), {"metadata": {"name": "l"}}),
        (base.format("batch/v1", "jobs"), {"metadata": {"name": "j"}, "spec": {"template": template}}),
        (
            f"/api/v1/namespaces/{space}/events",
            {"metadata": {"name": "e"}, "involvedObject": about, "reason": "R"},
        ),
        (f"/api/v1/namespaces/{space}/configmaps", {"metadata": {"name": "c"}}),
    ):
        server.ok("POST", path, body)
    for kind, head in HEADS.items():
        if kind == "crd":
            continue
        found = server.kubectl("-n", space, "get", kind).stdout.splitlines()[0]
        assert found.split() == head.split(), kind


def test_describe_node_tells_conditions_pods_and_taints(server: Server, space: str, node: str) -> None:
    """The page people open first."""
    run_pod(server, space, node, "p")
    page = server.kubectl("describe", "node", node).stdout
    assert "Conditions:" in page
    assert f"{space}" in page
    assert "Unschedulable:      false" in page


def test_describe_pod_tells_its_events(server: Server, space: str, node: str) -> None:
    """Events are found by what they are about."""
    run_pod(server, space, node, "p")
    pod = server.ok("GET", f"/api/v1/namespaces/{space}/pods/p")
    about = {"kind": "Pod", "name": "p", "namespace": space, "uid": pod["metadata"]["uid"]}
    body = {
        "metadata": {"name": "e"}, "involvedObject": about, "reason": "Seen", "message": "with own eyes",
        "type": "Normal", "count": 1,
    }  # fmt: skip
    server.ok("POST", f"/api/v1/namespaces/{space}/events", body)
    page = server.kubectl("-n", space, "describe", "pod", "p").stdout
    assert "with own eyes" in page


def test_apply_creates_changes_and_leaves_alone(server: Server, space: str) -> None:
    """Client-side apply: created, configured, unchanged; a field left out is removed."""
    said = [
        server.kubectl("-n", space, "apply", "-f", "-", stdin=manifest("m", **data)).stdout.split()[-1]
        for data in ({"a": "1", "b": "2"}, {"a": "3"}, {"a": "3"})
    ]
    assert said == ["created", "configured", "unchanged"]
    assert server.ok("GET", f"/api/v1/namespaces/{space}/configmaps/m")["data"] == {"a": "3"}


def test_server_side_apply_reports_conflicts(server: Server, space: str) -> None:
    """--server-side applies, meets the owner of a field, and wins by --force-conflicts."""
    arguments = ["-n", space, "apply", "--server-side", "-f", "-"]
    server.kubectl(*arguments, "--field-manager=one", stdin=manifest("m", a="1"))
    other = server.kubectl(*arguments, "--field-manager=two", stdin=manifest("m", a="2"), check=False)
    assert other.returncode != 0
    assert 'conflict with "one"' in other.stderr
    server.kubectl(*arguments, "--field-manager=two", "--force-conflicts", stdin=manifest("m", a="2"))


def test_a_misspelt_field_is_refused(server: Server, space: str) -> None:
    """kubectl asks for strict validation."""
    body = manifest("m").replace("data: {}", "dota: {a: b}")
    answer = server.kubectl("-n", space, "apply", "-f", "-", stdin=body, check=False)
    assert answer.returncode != 0
    assert 'unknown field "dota"' in answer.stderr


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("json", '[{"op": "add", "path": "/data/k", "value": "v"}]'),
        ("merge", '{"data": {"k": "v"}}'),
        ("strategic", '{"data": {"k": "v"}}'),
    ],
)
def test_patch_of_each_type(server: Server, space: str, kind: str, patch: str) -> None:
    """--type json, merge and strategic."""
    server.kubectl("-n", space, "apply", "-f", "-", stdin=manifest("m", a="1"))
    server.kubectl("-n", space, "patch", "configmap", "m", f"--type={kind}", "-p", patch)
    assert server.ok("GET", f"/api/v1/namespaces/{space}/configmaps/m")["data"] == {"a": "1", "k": "v"}


def test_label_annotate_and_select(server: Server, node: str) -> None:
    """label, annotate, and -l; a label is removed with a dash."""
    server.kubectl("label", "node", node, "rack=r7")
    server.kubectl("annotate", "node", node, "note=seen")
    assert node in server.kubectl("get", "nodes", "-l", "rack=r7", "-o", "name").stdout
    server.kubectl("label", "node", node, "rack-")
    meta = server.ok("GET", f"/api/v1/nodes/{node}")["metadata"]
    assert ("rack" in meta["labels"], meta["annotations"]["note"]) == (False, "seen")


def test_cordon_and_uncordon(server: Server, node: str) -> None:
    """The cordon shows as SchedulingDisabled and as a taint, and leaves nothing behind."""
    path = f"/api/v1/nodes/{node}"
    server.kubectl("cordon", node)
    assert "Ready,SchedulingDisabled" in server.kubectl("get", "node", node).stdout
    taints = until("the cordon's taint", lambda: server.ok("GET", path)["spec"].get("taints"))
    assert [(t["key"], t["effect"]) for t in taints] == [("node.kubernetes.io/unschedulable", "NoSchedule")]
    server.kubectl("uncordon", node)
    until("no taint", lambda: server.ok("GET", path)["spec"] == {})


def test_taint_and_untaint(server: Server, node: str) -> None:
    """kubectl taint adds one and removes it."""
    server.kubectl("taint", "node", node, "a=b:PreferNoSchedule")
    assert server.ok("GET", f"/api/v1/nodes/{node}")["spec"]["taints"][0]["value"] == "b"
    server.kubectl("taint", "node", node, "a-")
    assert "taints" not in server.ok("GET", f"/api/v1/nodes/{node}")["spec"]


def test_drain_evicts_and_waits_until_pods_are_gone(server: Server, space: str, node: str) -> None:
    """Eviction, then the kubelet's confirmation, then the drain ends."""
    run_pod(server, space, node, "p")
    path = f"/api/v1/namespaces/{space}/pods/p"
    config = server.access.write_kubeconfig(server.folder / "kubeconfig-drain")
    arguments = [kubectl_program(), f"--kubeconfig={config}", "drain", node, "--force", "--ignore-daemonsets"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as drain:
        until("the eviction", lambda: "deletionTimestamp" in server.ok("GET", path)["metadata"])
        server.ok("DELETE", f"{path}?gracePeriodSeconds=0")
        output, _ = drain.communicate(timeout=30)
    assert drain.returncode == 0, output
    assert f"node/{node} drained" in output


def test_drain_waits_for_a_budget(server: Server, space: str, node: str) -> None:
    """A refused eviction is told and tried again until the time is over."""
    run_pod(server, space, node, "p")
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "p"}}}
    budgets = f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets"
    server.ok("POST", budgets, {"metadata": {"name": "b"}, "spec": spec})
    until(
        "the budget is counted", lambda: server.ok("GET", f"{budgets}/b")["status"].get("observedGeneration")
    )
    answer = server.kubectl("drain", node, "--force", "--timeout=2s", check=False)
    assert answer.returncode != 0
    assert "Cannot evict pod as it would violate the pod's disruption budget" in answer.stderr
    server.ok("DELETE", f"{budgets}/b")


def test_watch_prints_changes(server: Server, space: str) -> None:
    """get -w prints a row per change."""
    server.kubectl("-n", space, "apply", "-f", "-", stdin=manifest("m", a="1"))
    config = server.access.write_kubeconfig(server.folder / "kubeconfig-watch")
    arguments = [kubectl_program(), f"--kubeconfig={config}", "-n", space, "get", "configmap", "m", "-w"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().split() == ["NAME", "DATA", "AGE"]
        assert watching.stdout.readline().split()[:2] == ["m", "1"]
        server.ok(
            "PATCH",
            f"/api/v1/namespaces/{space}/configmaps/m",
            {"data": {"b": "2"}},
            content_type=STRATEGIC,
        )
        assert watching.stdout.readline().split()[:2] == ["m", "2"]
        watching.terminate()


def test_wait_follows_a_condition(server: Server, node: str) -> None:
    """kubectl wait --for=condition."""
    answer = server.kubectl("wait", f"node/{node}", "--for=condition=Ready", "--timeout=10s")
    assert "condition met" in answer.stdout


def test_delete_waits_until_it_is_gone(server: Server, space: str) -> None:
    """delete, and delete again with --ignore-not-found."""
    server.kubectl("-n", space, "apply", "-f", "-", stdin=manifest("m"))
    begun = time.monotonic()
    assert "deleted" in server.kubectl("-n", space, "delete", "configmap", "m").stdout
    assert time.monotonic() - begun < 20
    assert server.kubectl("-n", space, "delete", "configmap", "m", "--ignore-not-found").stdout == ""


def test_json_output_is_the_object(server: Server, node: str) -> None:
    """-o json and -o jsonpath."""
    assert json.loads(server.kubectl("get", "node", node, "-o", "json").stdout)["metadata"]["name"] == node
    path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    assert server.kubectl("get", "node", node, "-o", path).stdout == "True"


def test_permission_questions_are_answered(server: Server) -> None:
    """auth can-i for the administrator."""
    assert server.kubectl("auth", "can-i", "delete", "nodes").stdout.strip() == "yes"


def test_explain_tells_fields(server: Server) -> None:
    """explain finds a built-in kind."""
    assert "KIND:       Node" in server.kubectl("explain", "node").stdout


def test_events_command(server: Server, space: str) -> None:
    """`kubectl events` lists what happened to an object."""
    about = {"kind": "ConfigMap", "name": "m", "namespace": space, "apiVersion": "v1"}
    body = {
        "metadata": {"name": "e"}, "involvedObject": about, "reason": "Seen", "message": "something",
        "type": "Warning", "lastTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    server.ok("POST", f"/api/v1/namespaces/{space}/events", body)
    assert "something" in server.kubectl("-n", space, "events").stdout
