"""`outlast agent` as a process: a FIFO as kernel log, a /sys tree, NVIDIA's bindings on a fake library."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from outlast.adapters.clock import SystemClock
from outlast.adapters.kubernetes import KubernetesCluster, access_with_token
from outlast.model.cluster import NODES, Condition
from outlast.model.health import NODE_HEALTHS, Fault, NodeHealthStatus
from outlast.model.names import GPU_FABRIC_READY, GPU_MONITOR_READY, GPU_READY, RDMA_READY
from outlast.ports.cluster import NotFound
from outlast.schema.crds import definitions
from outlast.sim.apiserver import ApiServer
from tests.nvml import FakeNvml
from tests.sysfs import FakeSysfs
from tests.unit.agent.rig import CRDS

NAME = "gpu-node"
BOOT = "0d1cfb9c-4d0e-4a36-9d38-7d0a4c1f7a01"
WAIT_S = 30.0
EIGHT_GPUS = ("--expected-gpus", "8", "--expected-efa", "0")
T = TypeVar("T")
SAMPLES = Path(__file__).parents[1] / "data" / "kmsg-samples.tsv"


ROOTS_OF_THE_COLLECTION = {
    "0000:0f:00.0": "xid/64",
    "0000:02:00.0": "xid/79",
    "0000:3f:00.0": "xid/46",
    "0000:9b:00.0": "gsp/silent",
    "0000:01:00.0": "xid/62",
    "": "gsp/silent",
    "0019:01:00.0": "xid/149",
    "0000:10:1c.0": "xid/63",
    "0009:01:00.0": "recovery/reset",
    "0000:71:00.0": "recovery/reboot",
    "0000:cb:00.0": "xid/109",
}
"""GPUs that the collected lines name, and the code that each one's trouble began with."""


class Place:
    """A machine in a folder, and a cluster to write to."""

    def __init__(self, folder: Path, server: ApiServer, cluster: KubernetesCluster) -> None:
        self.server = server
        self.cluster = cluster
        self.nvml = FakeNvml(folder).machine("H100", gpus=8)
        self.sysfs = FakeSysfs(folder / "host")
        for address in self.nvml.addresses():
            self.sysfs.add_gpu(address)
        self.sysfs.set_proc("sys/kernel/random/boot_id", f"{BOOT}\n")
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(server.kubeconfig())
        self.state = folder / "state"
        self.proc_root = self.sysfs.root / "proc"
        """Without processes: what other tests have left asleep on this machine is not ours."""
        self.environment: dict[str, str] = {}
        """For the next agent, beside what it needs to load the fake library."""
        self.wrapper: tuple[str, ...] = ()
        """A command that starts the agent in its place."""
        self.fifo = self.kernel_log = folder / "kmsg"
        os.mkfifo(self.fifo)
        self._pipe = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK)
        self._log = (folder / "agent.log").open("ab")
        self.log_path = folder / "agent.log"
        self._sequence = 0

    def start(self, *extra: str) -> subprocess.Popen[bytes]:
        """The agent, as its container would start it."""
        command = [sys.executable, "-m", "outlast", "agent", "--node-name", NAME]
        command += ["--kubeconfig", str(self.kubeconfig), "--kernel-log", str(self.kernel_log)]
        command += [
            "--host-root",
            str(self.sysfs.root),
            "--proc-root",
            str(self.proc_root),
            "--state-dir",
            str(self.state),
        ]
        command += ["--poll-interval", "0.3", *(extra or EIGHT_GPUS)]
        environment = {**os.environ, **self.nvml.environment, **self.environment}
        return subprocess.Popen(
            [*self.wrapper, *command], env=environment, stdout=self._log, stderr=self._log
        )

    def line(self, text: str) -> None:
        """One record, in the words of the driver."""
        self._sequence += 1
        self.raw(f"4,{self._sequence},{self._sequence * 1000},c;{text}\n".encode())

    def raw(self, content: bytes) -> None:
        """Bytes, whatever they are."""
        while content:
            try:
                content = content[os.write(self._pipe, content) :]
            except BlockingIOError:
                time.sleep(0.01)

    def xid(self, index: int, code: int, text: str = "text") -> None:
        """The driver prints a Xid."""
        self.line(f"NVRM: Xid (PCI:{self.nvml.address(index)[:-2]}): {code}, {text}")

    async def condition(self, type_: str) -> Condition | None:
        """A condition of our Node."""
        return (await self.cluster.get(NODES, NAME)).condition(type_)

    async def health(self) -> NodeHealthStatus:
        """What NodeHealth says."""
        try:
            return (await self.cluster.get(NODE_HEALTHS, NAME)).status
        except NotFound:
            return NodeHealthStatus()

    async def until(self, type_: str, status: str, reason: str = "") -> Condition:
        """Wait for a condition."""

        async def so() -> Condition | None:
            here = await self.condition(type_)
            return here if here and here.status == status and reason in ("", here.reason) else None

        return await eventually(so)

    def close(self) -> None:
        """Give everything back."""
        os.close(self._pipe)
        self._log.close()


async def eventually(what: Callable[[], Awaitable[T | None]]) -> T:
    """The first true answer."""
    async with asyncio.timeout(WAIT_S):
        while not (answer := await what()):
            await asyncio.sleep(0.01)
    return answer


def _client(server: ApiServer) -> KubernetesCluster:
    return KubernetesCluster(access_with_token(server.url, "test"), clock=SystemClock(), rng=Random(1))


@asynccontextmanager
async def place(folder: Path) -> AsyncIterator[Place]:
    """A registered node."""
    async with (
        ApiServer() as server,
        KubernetesCluster(
            access_with_token(server.url, "test"), clock=SystemClock(), rng=Random(1)
        ) as cluster,
    ):
        for crd in definitions():
            await cluster.create(CRDS, crd)
        await cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}})
        there = Place(folder, server, cluster)
        try:
            yield there
        finally:
            there.close()


@asynccontextmanager
async def running(there: Place, *extra: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """The agent runs inside the block."""
    process = there.start(*extra)
    try:
        yield process
    finally:
        process.kill()
        await asyncio.to_thread(process.wait, 10)


def ended_within(process: subprocess.Popen[bytes], seconds: float) -> float:
    """SIGTERM; how long it took."""
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(seconds) == 0
    return time.monotonic() - start


@pytest.mark.asyncio
async def test_a_kernel_line_becomes_a_condition_and_survives_kill(tmp_path: Path) -> None:
    """From the FIFO to the API server; after kill -9 the fault is still there under its id."""
    async with place(tmp_path) as there:
        async with running(there):
            await there.until(GPU_READY, "True")
            await eventually(lambda: _counts(there, "8/8"))
            there.xid(5, 79, "GPU has fallen off the bus.")
            first = await there.until(GPU_READY, "False", "GpuFellOffBus")

            async def saved() -> bool:
                file = there.state / "judge.json"
                return file.exists() and b"xid/79" in file.read_bytes()

            await eventually(saved)
            await eventually(lambda: _faults(there, 1))
            [fault] = (await there.health()).faults
            assert fault.gpu is not None
            assert fault.gpu.pci_address == there.nvml.address(5)
        async with running(there):
            there.xid(1, 48)
            await eventually(lambda: _faults(there, 2))
            again = await there.until(GPU_READY, "False")
            assert again.last_transition_time == first.last_transition_time
            assert fault.id in {known.id for known in (await there.health()).faults}


async def _counts(there: Place, count: str) -> bool:
    return (await there.health()).gpu_count == count


async def _faults(there: Place, count: int) -> bool:
    return len((await there.health()).faults) == count


@pytest.mark.asyncio
async def test_garbage_in_the_kernel_log_harms_nobody(tmp_path: Path) -> None:
    """Binary, truncated and huge records, user records and all collected lines; then a real fault is seen."""
    async with place(tmp_path) as there, running(there):
        await there.until(GPU_READY, "True")
        there.raw(b"\x00\xff\xfe\n4,1\n4,2,3\n;;;;\n\n 4,x,y,z;NVRM: Xid (PCI:0000:10:1c): 79\n")
        there.raw(b"4,7,7,-;" + b"NVRM: Xid (" * 100_000 + b"\n")
        there.raw(b"12,8,8,-;NVRM: Xid (PCI:0000:10:1c): 79, from user space\n")
        for sequence, row in enumerate(SAMPLES.read_bytes().splitlines()[1:], 9):
            kind, _, _, line = row.split(b"\t", 3)
            if kind == b"negative":
                there.raw(b"4,%d,%d,-;" % (sequence, sequence) + line + b"\n")
        there._sequence = 1000
        there.xid(0, 13, "an application")
        there.xid(2, 79)
        # The log is read in order: once the last line is judged, all before it were.
        await there.until(GPU_READY, "False", "GpuFellOffBus")

        async def said() -> tuple[Fault, ...]:
            return (await there.health()).faults

        faults = await eventually(said)
        assert [(f.code, f.gpu.pci_address if f.gpu else "") for f in faults] == [
            ("xid/79", there.nvml.address(2))
        ]


@pytest.mark.asyncio
async def test_every_collected_line_goes_through_the_kernel_log_to_its_fault(tmp_path: Path) -> None:
    """All collected lines of NVIDIA's drivers, byte for byte and in one burst: each GPU's fault has the root
    that its lines name, with these very lines as evidence, and programs' errors open none."""
    collected = [row.split(b"\t", 3)[3] for row in SAMPLES.read_bytes().splitlines()[1:]]
    # Together with those about the host they are more faults than one NodeHealth shows.
    lines = [line for line in collected if b"NVRM" in line or b"nvswitch" in line]
    assert len(lines) >= 35
    async with place(tmp_path) as there, running(there):
        await there.until(GPU_READY, "True")
        for number, line in enumerate(lines, 1):
            there.raw(line + b"\n" if line.startswith(b"4,") else b"4,%d,%d,-;%b\n" % (number, number, line))
        last = lines.index(next(line for line in lines if b"Xid (PCI:0000:cb:00): 109" in line))
        await eventually(lambda: _evidence(there, lines[last]))
        faults = (await there.health()).faults
        roots = {f.gpu.pci_address if f.gpu else f.device: f.code for f in faults}
        assert roots == ROOTS_OF_THE_COLLECTION
        said = {b" ".join(line.split()) for line in lines}
        for text in (seen.text.encode() for fault in faults for seen in fault.evidence):
            assert any(line.endswith(text) for line in said), text
        fabric = await there.until(GPU_FABRIC_READY, "False", "NvLinkError")
        assert "149" in fabric.message
        assert (await there.condition(GPU_MONITOR_READY) or fabric).status == "True"


async def _evidence(there: Place, line: bytes) -> bool:
    found = [seen.text for fault in (await there.health()).faults for seen in fault.evidence]
    return any(line.endswith(text.encode()) for text in found)


@pytest.mark.asyncio
async def test_sigterm_ends_the_agent_at_once_while_nvml_hangs(tmp_path: Path) -> None:
    """A call that never returns holds neither the kernel log nor the exit."""
    async with place(tmp_path) as there, running(there) as process:
        await there.until(GPU_MONITOR_READY, "True")
        there.nvml.action("nvmlDeviceGetUUID", "hang", gpu=3)
        there.xid(0, 48)
        await there.until(GPU_READY, "False", "UncorrectableMemoryError")
        await there.until(GPU_MONITOR_READY, "False", "DiagnosticsHung")
        await eventually(lambda: _faults(there, 2))
        [hung] = [f for f in (await there.health()).faults if f.code == "monitor/hung"]
        assert there.nvml.address(3) in hung.evidence[0].text
        took_s = await asyncio.to_thread(ended_within, process, 5)
        assert took_s < 1.5


@pytest.mark.asyncio
async def test_a_second_agent_stays_silent_until_the_first_ends(tmp_path: Path) -> None:
    """Two agents on one machine would fight; the second waits for the lock and then takes over."""
    async with place(tmp_path) as there, running(there) as first:
        await there.until(GPU_READY, "True")
        await eventually(lambda: _counts(there, "8/8"))
        started = (await there.health()).started_at
        async with running(there):

            async def waits() -> bool:
                return "DuplicateAgent" in there.log_path.read_text()

            await eventually(waits)
            assert (await there.health()).started_at == started
            await asyncio.to_thread(ended_within, first, 5)

            async def took_over() -> bool:
                return (await there.health()).started_at != started

            await eventually(took_over)


@pytest.mark.asyncio
async def test_devices_that_vanish_from_sysfs_are_missed(tmp_path: Path) -> None:
    """A GPU that is no longer listed is a fault of the node, without any line in the log."""
    async with place(tmp_path) as there:
        for slot in range(4):
            there.sysfs.add_efa(f"0000:a{slot}:00.0")
        async with running(there, "--expected-gpus", "8", "--expected-efa", "4"):
            await there.until(GPU_READY, "True")
            await there.until(RDMA_READY, "True")
            there.sysfs.unplug(there.nvml.address(6))
            there.sysfs.unplug("0000:a2:00.0")
            await there.until(GPU_READY, "False", "GpuMissing")
            await there.until(RDMA_READY, "False", "EfaMissing")
            await eventually(lambda: _counts(there, "7/8"))


@pytest.mark.asyncio
async def test_the_agent_is_small(tmp_path: Path) -> None:
    """With everything loaded and connected it stays below its budget of 45 MB; the NVML worker is apart."""
    async with place(tmp_path) as there, running(there) as process:
        await there.until(GPU_READY, "True")
        there.xid(0, 79)
        await there.until(GPU_READY, "False")
        assert resident_mb(process.pid) < 45


def resident_mb(pid: int) -> float:
    """Memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["VmRSS"].split()[0]) / 1024


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--node-name", "n", "--kubeconfig", "/nonexistent"], "/nonexistent"),
        ([], "NODE_NAME"),
        (["--node-name", "n", "--poll-interval", "-1"], "poll-interval"),
        (
            ["--node-name", "n", "--kubeconfig", "KUBECONFIG", "--catalogue", "/nonexistent"],
            "/nonexistent",
        ),
    ],
)
def test_a_wrong_start_is_one_sentence_and_exit_code_2(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    """No traceback for what the user can set right."""
    config = tmp_path / "kubeconfig"
    config.write_text(
        "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
        "current-context: x\n"
    )
    command = [sys.executable, "-m", "outlast", "agent"]
    command += [str(config) if argument == "KUBECONFIG" else argument for argument in arguments]
    environment = {name: value for name, value in os.environ.items() if name != "NODE_NAME"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
