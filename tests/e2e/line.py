"""The whole line on a real control plane: agent and controller as processes, machines played around them.

A `Line` has nodes with a kernel log (a FIFO in /dev/kmsg format), a PCI tree and an NVML library of our
own; the agent of each node and the controller run as separate OS processes with pod-bound tokens of their
own ServiceAccounts, so every right and fence of deploy/ is in force. A repair Job's pod really runs
`outlast act`, whose reboot command makes the machine go down and come back in another boot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.controlplane.access import Access
from tests.controlplane.installation import MANIFESTS, NAMESPACE, Installation
from tests.controlplane.kubelet import Exit, Kubelets
from tests.controlplane.machines import Machine
from tests.nvml import FakeNvml
from tests.sysfs import FakeSysfs

Json = dict[str, Any]

DEADLINE_S = 60.0
POLL_S = 0.05
EFA_DEVICES = 4


async def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """The first true answer of a condition that may block; fails with what was waited for."""
    last: object = None
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                try:
                    last = await asyncio.to_thread(condition)
                except OSError as error:
                    last = error
                else:
                    if last:
                        return last
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s:g} s: {what}; last seen: {last!r}") from None


@dataclass
class Process:
    """One of our processes, with its log on disk."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log: Path
    started: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it; its output is appended to its log."""
        with self.log.open("ab") as out:
            self.started = await asyncio.create_subprocess_exec(
                *self.argv,
                env=self.env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )

    async def end(self, how: signal.Signals, deadline_s: float = 10.0) -> int:
        """Signal it and wait; returns its exit code. A process that has ended already keeps its code."""
        running = self.started
        assert running is not None, f"{self.name} was never started"
        with contextlib.suppress(ProcessLookupError):
            running.send_signal(how)
        async with asyncio.timeout(deadline_s):
            code = await running.wait()
        self.started = None
        return code

    def tail(self, lines: int = 40) -> str:
        """The end of its log, for a failure message."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


@dataclass
class Box:
    """One machine's hardware and its agent."""

    name: str
    folder: Path
    sysfs: FakeSysfs
    nvml: FakeNvml
    agent: Process
    sequence: int = 0
    uptime_us: int = 5_000_000
    kernel_log: int = -1
    boots: list[str] = field(default_factory=list)

    @property
    def fifo(self) -> Path:
        """Where its kernel writes."""
        return self.folder / "kmsg"

    @property
    def boot_id_file(self) -> Path:
        """Where its kernel tells the boot id."""
        return self.folder / "proc/sys/kernel/random/boot_id"

    def write(self, *records: bytes) -> None:
        """Give raw bytes to the kernel log, one record a line."""
        for record in records:
            os.write(self.kernel_log, record + b"\n")

    def say(self, text: str, *, priority: int = 4, flags: str = "c") -> None:
        """Print one kernel message now."""
        self.sequence += 1
        self.uptime_us += 1000
        header = f"{priority},{self.sequence},{self.uptime_us},{flags};"
        self.write(header.encode() + text.encode())

    def boot(self, boot_id: str) -> None:
        """A new boot: another id, an empty kernel log counting from zero."""
        self.boots.append(boot_id)
        self.boot_id_file.parent.mkdir(parents=True, exist_ok=True)
        self.boot_id_file.write_text(f"{boot_id}\n")
        self.sequence = 0
        self.uptime_us = 5_000_000
        if self.kernel_log >= 0:
            os.close(self.kernel_log)
            self.fifo.unlink()
        os.mkfifo(self.fifo)
        # Read-write, so that opening does not wait for the agent and its leaving is no end of file.
        self.kernel_log = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK)

    def close(self) -> None:
        """Let go of the kernel log."""
        if self.kernel_log >= 0:
            os.close(self.kernel_log)


class Line:
    """Nodes, agents and a controller on one installation; an async context manager."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        self.installation = installation
        self.admin = installation.admin
        self.folder = folder
        self.boxes: dict[str, Box] = {}
        self.kubelets = Kubelets(self.admin, run_pod=self._run_pod, heartbeat_s=1.0)
        self.controller: Process | None = None
        self.repairs: list[Json] = []
        """Every repair pod that was run, in order."""
        self.reboots: list[tuple[str, str]] = []
        """(node, boot id it went down from), each time a machine really rebooted."""
        self._controllers = 0
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Line:
        await self.kubelets.__aenter__()
        await self._tasks.__aenter__()
        daemon_set = MANIFESTS / "workloads" / "agent.yaml"
        await asyncio.to_thread(self.installation.plane.kubectl, "apply", "-f", str(daemon_set))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await asyncio.to_thread(self._tell)
        await self.kill_processes()
        for box in self.boxes.values():
            box.close()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            await self.kubelets.__aexit__(kind, error, trace)

    def _tell(self) -> None:
        """For a failure message: what the API and our processes say."""
        for path in ("apis/outlast.dev/v1alpha1/incidents", "apis/outlast.dev/v1alpha1/nodehealths"):
            for found in self.admin.ask("GET", f"/{path}").body.get("items", []):
                found["metadata"].pop("managedFields", None)
                print(json.dumps(found, indent=1))
        for process in self.processes():
            print(f"\n--- {process.name} ---\n{process.tail()}")

    def processes(self) -> list[Process]:
        """All our processes, running or not."""
        own = [box.agent for box in self.boxes.values()]
        return [*own, self.controller] if self.controller is not None else own

    async def kill_processes(self) -> None:
        """kill -9 for all of ours that run."""
        for process in self.processes():
            if process.started is not None:
                await process.end(signal.SIGKILL)

    # -- machines -------------------------------------------------------------------------------

    async def add_node(self, name: str, *, gpus: int = 8, agent: bool = True, **facts: Any) -> Box:
        """Register a machine and start its agent."""
        labels = {"nvidia.com/gpu.present": "true", **facts.pop("labels", {})}
        machine = await self.kubelets.add(name, gpus=gpus, labels=labels, **facts)
        folder = self.folder / name
        folder.mkdir()
        nvml = FakeNvml(folder).machine("H100", gpus=gpus)
        sysfs = FakeSysfs(folder)
        for address in nvml.addresses():
            sysfs.add_gpu(address)
        for number in range(EFA_DEVICES):
            sysfs.add_efa(f"0000:9{number}:00.0")
        pod = await until(lambda: self._agent_pod(name), f"the DaemonSet has a pod on {name}")
        box = Box(name, folder, sysfs, nvml, await asyncio.to_thread(self._agent, pod, folder, nvml))
        self.boxes[name] = box
        box.boot(machine.boot_id)
        if agent:
            await box.agent.start()
        return box

    def _agent_pod(self, node: str) -> Json | None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        query = f"?labelSelector=app.kubernetes.io/name=outlast-agent&fieldSelector=spec.nodeName={node}"
        found = self.admin.get(path + query)["items"]
        return found[0] if found else None

    def _agent(self, pod: Json, folder: Path, nvml: FakeNvml) -> Process:
        name = pod["spec"]["nodeName"]
        access = self.installation.token("outlast-agent", pod)
        argv = [
            *(sys.executable, "-m", "outlast", "agent"),
            *("--node-name", name),
            *("--kubeconfig", str(self._kubeconfig(access, f"agent-{name}"))),
            *("--kernel-log", str(folder / "kmsg")),
            *("--host-root", str(folder)),
            *("--state-dir", str(folder / "state")),
            *("--poll-interval", "1"),
            *("--lease-renew", "5"),
        ]
        env = {**os.environ, **nvml.environment}
        return Process(f"agent of {name}", argv, env, self.folder / f"agent-{name}.log")

    def _kubeconfig(self, access: Access, name: str) -> Path:
        return access.write_kubeconfig(self.folder / f"{name}.kubeconfig")

    # -- the controller -------------------------------------------------------------------------

    async def start_controller(self, *, node: str = "control") -> Process:
        """Start a controller with a pod and a token of its own."""
        self._controllers += 1
        pod_name = f"outlast-controller-{self._controllers}"
        pod = await asyncio.to_thread(self.installation.pod, pod_name, "outlast-controller", node)
        access = await asyncio.to_thread(self.installation.token, "outlast-controller", pod)
        argv = [
            *(sys.executable, "-m", "outlast", "controller"),
            *("--kubeconfig", str(self._kubeconfig(access, pod_name))),
            *("--lease-duration", "6"),
            *("--renew-deadline", "5"),
            *("--retry-period", "0.5"),
        ]
        env = {**os.environ, "POD_NAME": pod_name, "POD_NAMESPACE": NAMESPACE}
        self.controller = Process(pod_name, argv, env, self.folder / f"{pod_name}.log")
        await self.controller.start()
        return self.controller

    # -- repair Jobs ----------------------------------------------------------------------------

    async def _run_pod(self, pod: Json, machine: Machine) -> Exit | None:
        labels = pod["metadata"].get("labels", {})
        if "outlast.dev/repair" not in labels:
            return None
        self.repairs.append(pod)
        container = pod["spec"]["containers"][0]
        arguments = [*container.get("command", []), *container.get("args", [])]
        if arguments and arguments[0] == "outlast":
            arguments = arguments[1:]
        box = self.boxes[machine.name]
        message = box.folder / f"termination-{len(self.repairs)}"
        mark = box.folder / f"reboot-{len(self.repairs)}"
        env = {
            **os.environ,
            **{e["name"]: e["value"] for e in container.get("env", []) if "value" in e},
            "OUTLAST_BOOT_ID_FILE": str(box.boot_id_file),
            "OUTLAST_SYSRQ_FILE": str(box.folder / "sysrq"),
            "OUTLAST_REBOOT_FORCE_AFTER": "0",
            "OUTLAST_REBOOT_COMMAND": f"touch {mark}",
            "OUTLAST_TERMINATION_LOG": str(message),
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "outlast", *arguments),
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
        )
        code = await process.wait()
        if mark.exists():
            await self._go_down(machine, box)
        return Exit(code, message.read_text() if message.exists() else "")

    async def _go_down(self, machine: Machine, box: Box) -> None:
        """The machine goes down with this pod and its agent, and comes back with all GPUs answering."""
        self.reboots.append((machine.name, machine.boot_id))
        if box.agent.started is not None:
            await box.agent.end(signal.SIGKILL)
        self.kubelets.reboot(machine.name)
        self._tasks.create_task(self._agent_returns(machine, box))
        await asyncio.Event().wait()

    async def _agent_returns(self, machine: Machine, box: Box) -> None:
        back = await self.kubelets.wait_rebooted(machine.name, machine.boot_id)
        box.boot(back.boot_id)
        await self.on_boot(box)
        await box.agent.start()

    async def on_boot(self, box: Box) -> None:
        """What a reboot did to the hardware; a test may replace it. Default: it cured everything."""
        box.nvml.machine("H100", gpus=len(box.nvml.addresses()))

    # -- looks ----------------------------------------------------------------------------------

    def node(self, name: str) -> Json:
        """The Node as it is."""
        found: Json = self.admin.get(f"/api/v1/nodes/{name}")
        return found

    def condition(self, name: str, type_: str) -> Json | None:
        """One condition of a node."""
        conditions = self.node(name)["status"].get("conditions", [])
        return next((c for c in conditions if c["type"] == type_), None)

    def incidents(self, node: str) -> list[Json]:
        """Incidents of a node, oldest first."""
        found = self.admin.get("/apis/outlast.dev/v1alpha1/incidents")["items"]
        mine = [i for i in found if i["spec"]["nodeName"] == node]
        return sorted(mine, key=lambda i: i["metadata"]["creationTimestamp"])

    def pods(self, node: str) -> list[Json]:
        """Pods bound to a node that are not finished and not ours."""
        found = self.admin.get(f"/api/v1/pods?fieldSelector=spec.nodeName={node}")["items"]
        return [
            p
            for p in found
            if p["metadata"]["namespace"] != NAMESPACE
            and p["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    async def outlast(self, *arguments: str) -> tuple[int, str, str]:
        """Run a verb as an administrator; returns exit code, output, errors."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "outlast", *arguments),
            *("--kubeconfig", str(self._kubeconfig(self.admin, "admin"))),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    async def apply(self, *objects: Json) -> None:
        """Apply objects with kubectl, as a person would."""
        text = "\n---\n".join(json.dumps(o) for o in objects)
        await asyncio.to_thread(self.installation.plane.kubectl, "apply", "-f", "-", stdin=text)
