"""The manifests in `deploy/`, applied to a real API server, scheduler and controller-manager."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import outlast
from outlast.model import names
from tests.controlplane.installation import MANIFESTS, NAMESPACE, Installation
from tests.controlplane.kubelet import Kubelets

Json = dict[str, Any]
WAIT_S = 40.0
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
GPU = {"nvidia.com/gpu.present": "true"}
PARTS = ("crds", "rights", "workloads")
PROFILES = (".", "unprivileged")
"""Both are the whole installation, to be applied with -k; the first has the default profile."""

FILES = sorted(
    str(path.relative_to(MANIFESTS))
    for part in PARTS
    for path in (MANIFESTS / part).glob("*.yaml")
    if path.name != "kustomization.yaml"
)


def documents(file: str) -> list[Json]:
    return [d for d in yaml.safe_load_all((MANIFESTS / file).read_text()) if d]


async def until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(WAIT_S):
        while not (value := await asyncio.to_thread(condition)):
            await asyncio.sleep(0.1)
    return value


@pytest.mark.parametrize("file", FILES)
def test_the_server_takes_it_to_the_letter(installation: Installation, file: str) -> None:
    """No unknown field, no deprecated version, no warning."""
    path = str(MANIFESTS / file)
    installation.plane.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", path
    )


def built(kubectl: Path, profile: str) -> dict[tuple[str, str], Json]:
    """What `kubectl apply -k` would apply."""
    text = subprocess.run(
        [kubectl, "kustomize", MANIFESTS / profile], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    found = [d for d in yaml.safe_load_all(text) if d]
    assert len({(d["kind"], d["metadata"]["name"]) for d in found}) <= len(found)
    return {(d["kind"], f"{d['metadata'].get('namespace', '')}/{d['metadata']['name']}"): d for d in found}


def agent_of(kubectl: Path, profile: str) -> Json:
    return built(kubectl, profile)["DaemonSet", f"{NAMESPACE}/outlast-agent"]


@pytest.mark.parametrize("profile", PROFILES)
def test_each_kustomization_is_the_whole_installation(kubectl: Path, profile: str) -> None:
    """Every manifest of crds, rights and workloads, once."""
    written = {
        (d["kind"], f"{d['metadata'].get('namespace', '')}/{d['metadata']['name']}")
        for f in FILES
        for d in documents(f)
    }
    assert set(built(kubectl, profile)) == written


@pytest.mark.parametrize("profile", PROFILES)
def test_the_server_takes_each_installation_to_the_letter(
    installation: Installation, kubectl: Path, profile: str
) -> None:
    """Built as `apply -k` builds it, patches and all: no unknown field, no warning."""
    text = yaml.safe_dump_all(built(kubectl, profile).values())
    arguments = ("apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-")
    installation.plane.kubectl(*arguments, stdin=text)


def test_the_agent_profiles_differ_in_privilege_only(kubectl: Path) -> None:
    """Profile B is profile A with fewer rights, and with another way to the kernel log."""
    a, b = (agent_of(kubectl, profile) for profile in PROFILES)
    pod_a, pod_b = a["spec"]["template"]["spec"], b["spec"]["template"]["spec"]
    (main_a,), (main_b,) = pod_a["containers"], pod_b["containers"]
    assert main_a.pop("securityContext") == {
        "privileged": True,
        "runAsUser": 0,
        "readOnlyRootFilesystem": True,
    }
    assert main_b.pop("securityContext") == {
        "allowPrivilegeEscalation": False,
        "runAsUser": 0,
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "capabilities": {"drop": ["ALL"], "add": ["SYSLOG", "SYS_PTRACE"]},
    }
    notes = []
    for main in (main_a, main_b):
        values = {e["name"]: e.get("value") for e in main["env"]}
        notes.append((values["OUTLAST_NOTE"], values.get("OUTLAST_KERNEL_LOG")))
        apart = ("OUTLAST_NOTE", "OUTLAST_KERNEL_LOG")
        main["env"] = sorted((e for e in main["env"] if e["name"] not in apart), key=lambda e: e["name"])
    assert notes == [
        ("privilege profile A", None),
        ("privilege profile B (unprivileged)", "syslog"),
    ]
    main_a["volumeMounts"] = [m for m in main_a["volumeMounts"] if m["name"] != "kmsg"]
    pod_a["volumes"] = [v for v in pod_a["volumes"] if v["name"] != "kmsg"]
    assert a == b


@pytest.mark.parametrize("profile", PROFILES)
def test_the_agent_writes_to_its_own_folder_only_and_is_restarted_for_no_hung_driver(
    kubectl: Path, profile: str
) -> None:
    """Every mount but its state and /tmp is read-only, and there is no liveness probe."""
    pod = agent_of(kubectl, profile)["spec"]["template"]["spec"]
    (main,) = pod["containers"]
    writable = {m["mountPath"] for m in main["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"/var/lib/outlast", "/tmp"}
    assert pod["hostPID"] is True
    assert "livenessProbe" not in main
    assert main["readinessProbe"]["httpGet"]["path"] == "/healthz"
    described = (Path(outlast.__file__).parents[2] / "docs/mechanisms/rights.md").read_text()
    assert all(f"`{m['mountPath']}`" in described for m in main["volumeMounts"])


@pytest.mark.asyncio
@pytest.mark.parametrize("profile", PROFILES)
async def test_every_gpu_node_gets_an_agent_however_sick(
    installation: Installation, kubectl: Path, tmp_path: Path, profile: str
) -> None:
    """Cordoned and tainted GPU nodes too; nodes without GPUs get none. Its token writes its own node only."""
    admin, plane = installation.admin, installation.plane
    path = str(tmp_path / "agent.yaml")
    text = yaml.safe_dump(await asyncio.to_thread(agent_of, kubectl, profile))
    await asyncio.to_thread((tmp_path / "agent.yaml").write_text, text)
    sick = ({"key": "outlast.test/sick", "effect": "NoExecute"},)
    async with Kubelets(admin) as kubelets:
        await kubelets.add("manifest-gpu", labels=GPU)
        await kubelets.add("manifest-sick", labels=GPU, taints=sick)
        await kubelets.add("manifest-cpu", gpus=0)
        await asyncio.to_thread(plane.kubectl, "cordon", "manifest-sick")
        await asyncio.to_thread(plane.kubectl, "apply", "-f", path)

        def agents() -> dict[str, Json]:
            listed = admin.get(f"{PODS}?labelSelector=app.kubernetes.io/name=outlast-agent")["items"]
            return {p["spec"].get("nodeName", ""): p for p in listed if p["status"]["phase"] == "Running"}

        def on_both() -> dict[str, Json] | None:
            found = agents()
            return found if {"manifest-gpu", "manifest-sick"} <= set(found) else None

        found = await until(on_both)
        assert "manifest-cpu" not in found
        token = await asyncio.to_thread(installation.token, "outlast-agent", found["manifest-sick"])
        body = {"status": {"conditions": [{"type": "GPUReady", "status": "True"}]}}
        strategic = "application/strategic-merge-patch+json"

        def publish(node: str) -> int:
            return token.ask("PATCH", f"/api/v1/nodes/{node}/status", body, content_type=strategic).status

        assert await asyncio.to_thread(publish, "manifest-sick") == 200
        assert await asyncio.to_thread(publish, "manifest-gpu") == 403
        await asyncio.to_thread(plane.kubectl, "delete", "-f", path, "--wait=false")
        await until(lambda: not agents())
        for name in ("manifest-gpu", "manifest-sick", "manifest-cpu"):
            await kubelets.remove(name)


@pytest.mark.asyncio
async def test_two_controllers_run_apart_and_off_the_gpu_nodes(installation: Installation) -> None:
    """The pod name that the Lease will hold is the one in the pod's token; replicas do not share a node."""
    admin, plane = installation.admin, installation.plane
    path = str(MANIFESTS / "workloads/controller.yaml")
    nodes = {"manifest-1": {}, "manifest-2": {}, "manifest-3": GPU}
    async with Kubelets(admin) as kubelets:
        for name, labels in nodes.items():
            await kubelets.add(name, labels=labels)
        # Nodes that other tests left have no kubelet to run anything.
        listed = await asyncio.to_thread(admin.get, "/api/v1/nodes")
        others = [n["metadata"]["name"] for n in listed["items"] if not n["spec"].get("unschedulable")]
        others = [name for name in others if name not in nodes]
        for name in others:
            await asyncio.to_thread(plane.kubectl, "cordon", name)
        await asyncio.to_thread(plane.kubectl, "apply", "-f", path)

        def running() -> list[Json]:
            listed = admin.get(f"{PODS}?labelSelector=app.kubernetes.io/name=outlast-controller")["items"]
            return [p for p in listed if p["status"]["phase"] == "Running"]

        pods = await until(lambda: found if len(found := running()) == 2 else None)
        assert {p["spec"]["nodeName"] for p in pods} == {"manifest-1", "manifest-2"}
        await asyncio.to_thread(plane.kubectl, "delete", "-f", path, "--wait=false")
        await until(lambda: not running())
        for name in others:
            await asyncio.to_thread(plane.kubectl, "uncordon", name)
        for name in nodes:
            await kubelets.remove(name)


def test_the_manifests_and_the_code_use_the_same_names() -> None:
    """A policy with other conditions than the agent writes would refuse the agent, or miss an attack."""
    rights = {
        (d["kind"], d["metadata"]["name"]): d for f in FILES if f.startswith("rights/") for d in documents(f)
    }
    policy = rights["ValidatingAdmissionPolicy", "outlast-agent-node"]
    variables = {v["name"]: v["expression"] for v in policy["spec"]["variables"]}
    assert yaml.safe_load(variables["ours"]) == list(names.AGENT_CONDITIONS)
    objects = rights["ValidatingAdmissionPolicy", "outlast-agent-objects"]["spec"]["variables"]
    assert any(f"'{names.AGENT_LEASE_PREFIX}'" in v["expression"] for v in objects)
    fence = rights["ValidatingAdmissionPolicyBinding", "outlast-controller-fence"]["spec"]["paramRef"]
    assert (fence["namespace"], fence["name"]) == (names.SYSTEM_NAMESPACE, names.CONTROLLER_LEASE)
    assert ("Lease", names.CONTROLLER_LEASE) in rights


def test_one_image_runs_everything() -> None:
    """Agent, controller and repair Jobs are one program in one version; changing one image changes all."""
    files = ("workloads/agent.yaml", "workloads/controller.yaml")
    workloads = [d for f in files for d in documents(f) if d["kind"] in ("DaemonSet", "Deployment")]
    containers = [c for d in workloads for c in d["spec"]["template"]["spec"]["containers"]]
    repair = [e["value"] for c in containers for e in c["env"] if e["name"] == "OUTLAST_REPAIR_IMAGE"]
    assert len(repair) == 1
    assert {c["image"] for c in containers} | set(repair) == {f"outlast:{outlast.__version__}"}


def test_the_environment_in_the_manifests_is_the_one_the_verbs_read() -> None:
    """A variable that nobody reads is a setting that does nothing."""
    verbs = Path(outlast.__file__).parent / "cli"
    for file in ("workloads/agent.yaml", "unprivileged/agent-patch.yaml", "workloads/controller.yaml"):
        workload = documents(file)[0]
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        source = (verbs / f"{container['name']}.py").read_text()
        for variable in container["env"]:
            name = variable["name"]
            assert name.startswith("NVIDIA_") or f'env_var="{name}"' in source, f"{file}: {name}"


def test_the_policies_and_the_lease_come_with_the_rights() -> None:
    """Nothing in `rights` can be applied without its policy: one folder, applied as a whole."""
    kinds = [d["kind"] for file in FILES if file.startswith("rights/") for d in documents(file)]
    assert kinds.count("ValidatingAdmissionPolicy") == kinds.count("ValidatingAdmissionPolicyBinding") == 4
    assert kinds.count("Lease") == 1
    assert Path(MANIFESTS / "rights" / "00-namespace.yaml").exists()
