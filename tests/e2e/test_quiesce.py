"""Quiesce on a real API server: the agent's process with its pod's token, NVIDIA's bindings on a fake."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.cli import EXIT_FAULT, EXIT_OK, EXIT_UNKNOWN, EXIT_USAGE, run
from outlast.model.names import GPU_MONITOR_READY, GPU_READY, QUIESCE_ANNOTATION
from tests.controlplane.access import STRATEGIC
from tests.controlplane.installation import NAMESPACE, Installation
from tests.controlplane.processes import Program, Reaper
from tests.nvml import FakeNvml
from tests.nvml.frozen import frozen_mount, why_not
from tests.sysfs import FakeSysfs

NODE = "quiesce-node"
WAIT_S = 40.0


class Site:
    """One machine with eight GPUs and its agent."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        self.installation = installation
        installation.node(NODE)
        self.nvml = FakeNvml(folder).machine("H100", gpus=8)
        sysfs = FakeSysfs(folder / "host")
        for address in self.nvml.addresses():
            sysfs.add_gpu(address)
        sysfs.set_proc("sys/kernel/random/boot_id", "0d1cfb9c-4d0e-4a36-9d38-7d0a4c1f7a01\n")
        kernel_log = folder / "kmsg"
        kernel_log.write_text("")
        self.access = installation.agent(NODE)
        config = self.access.write_kubeconfig(folder / "kubeconfig")
        self.human = installation.admin.write_kubeconfig(folder / "admin")
        self.reaper = Reaper()
        argv = ["env", *(f"{name}={value}" for name, value in self.nvml.environment.items())]
        argv += [sys.executable, "-m", "outlast", "agent", "--node-name", NODE, "--kubeconfig", str(config)]
        argv += ["--kernel-log", str(kernel_log), "--state-dir", str(folder / "state")]
        self.proc_root = sysfs.root / "proc"
        """Without processes: what other tests have left asleep on this machine is not ours."""
        argv += ["--host-root", str(sysfs.root), "--proc-root", str(self.proc_root), "--poll-interval", "0.5"]
        argv += ["--expected-gpus", "8", "--expected-efa", "0", "--dcgm", "off"]
        self.agent = Program("agent", argv, folder / "agent.log", self.reaper)

    def status(self, type_: str) -> str:
        """Status and reason of a condition."""
        found = self.installation.admin.get(f"/api/v1/nodes/{NODE}")["status"].get("conditions", [])
        return next((f"{c['status']} {c['reason']}" for c in found if c["type"] == type_), "")

    def until(self, type_: str, said: str) -> None:
        """Wait for a condition."""
        self.agent.wait_ready(lambda: self.status(type_) == said, deadline_s=WAIT_S)

    def workers(self) -> list[int]:
        """NVML workers that this agent started and that are there."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes()
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except (OSError, ValueError, IndexError):
                    continue
                if parent == self.agent.pid and b"nvml/worker.py" in words:
                    found.append(int(entry.name))
        return found

    def outlast(self, *words: str) -> int:
        """A person at a terminal."""
        return run(["quiesce", NODE, *words, "--kubeconfig", str(self.human)])


@pytest.fixture
def site(installation: Installation, tmp_path: Path) -> Iterator[Site]:
    made = Site(installation, tmp_path)
    made.agent.start()
    try:
        yield made
    except BaseException:
        print(made.agent.log_tail())
        raise
    finally:
        made.agent.stop()
        made.reaper.close()
        for path in (
            f"/api/v1/nodes/{NODE}",
            f"/api/v1/namespaces/{NAMESPACE}/pods/outlast-agent-{NODE}",
            f"/apis/outlast.dev/v1alpha1/nodehealths/{NODE}",
        ):
            installation.admin.ask("DELETE", path)


def test_a_person_gets_the_gpus_and_gives_them_back(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked: the worker's process is gone before the command returns. An agent that starts meanwhile starts
    none. Withdrawn: the GPUs are vouched for again."""
    site.until(GPU_READY, "True GpusHealthy")
    assert len(site.workers()) == 1

    assert site.outlast("--by", "the lab", "--minutes", "5") == EXIT_OK

    assert site.workers() == []
    assert "no process of outlast holds a GPU" in capsys.readouterr().out
    site.until(GPU_MONITOR_READY, "Unknown Maintenance")
    site.until(GPU_READY, "Unknown Maintenance")
    health = site.installation.admin.get(f"/apis/outlast.dev/v1alpha1/nodehealths/{NODE}")["status"]
    assert (health["quiesce"]["by"], health["quiesce"]["released"]) == ("the lab", True)
    assert "faults" not in health
    assert site.outlast("--by", "somebody else") == EXIT_USAGE
    assert "the lab has asked" in capsys.readouterr().err

    started = health["startedAt"]
    site.agent.kill()
    site.agent.start()

    def answered() -> bool:
        found = site.installation.admin.get(f"/apis/outlast.dev/v1alpha1/nodehealths/{NODE}")["status"]
        assert site.workers() == []
        return bool(found["startedAt"] != started and found.get("quiesce", {}).get("released"))

    site.agent.wait_ready(answered, deadline_s=WAIT_S)
    assert site.status(GPU_READY) == "Unknown Maintenance"

    assert site.outlast("--off") == EXIT_OK
    site.until(GPU_READY, "True GpusHealthy")
    site.until(GPU_MONITOR_READY, "True MonitorHealthy")
    assert len(site.workers()) == 1


def test_it_ends_by_itself_and_an_agent_that_is_gone_is_named(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request of twelve seconds is over after them; nobody answers for an agent that does not run."""
    site.until(GPU_READY, "True GpusHealthy")
    assert site.outlast("--minutes", "0.2", "--by", "a script") == EXIT_OK
    site.until(GPU_READY, "True GpusHealthy")
    site.agent.kill()
    assert site.outlast("--minutes", "1", "--by", "a script", "--wait", "1") == EXIT_UNKNOWN
    assert "has not answered" in capsys.readouterr().err


def test_an_agent_may_not_ask_for_itself(site: Site) -> None:
    """The request is an annotation, which the admission policy refuses to agents, in either resource."""
    access = site.access
    body = {"metadata": {"annotations": {QUIESCE_ANNOTATION: "{}"}}}
    for path in (f"/api/v1/nodes/{NODE}", f"/api/v1/nodes/{NODE}/status"):
        assert access.ask("PATCH", path, body, content_type=STRATEGIC).status == 403


def test_a_worker_asleep_in_the_driver_is_not_called_released(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In true uninterruptible sleep it goes on holding the GPU; the person is told, and again when over."""
    if reason := why_not():
        pytest.skip(reason)
    site.until(GPU_READY, "True GpusHealthy")
    with frozen_mount(tmp_path) as mount:
        site.nvml.action("nvmlDeviceGetUUID", f"dstate:{mount.trap}", gpu=0)
        site.until(GPU_MONITOR_READY, "False DiagnosticsHung")
        for pid in site.workers():
            (site.proc_root / str(pid)).symlink_to(f"/proc/{pid}")
        assert site.outlast("--by", "the lab", "--wait", "8") == EXIT_FAULT
        assert "hangs in the driver" in capsys.readouterr().err
        mount.thaw()
        site.nvml.action("nvmlDeviceGetUUID", "")
        assert site.outlast("--by", "the lab", "--wait", "30") == EXIT_OK
    assert site.workers() == []
