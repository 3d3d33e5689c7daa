"""What benchmarks of the real control plane share: an installation, many nodes, our processes, statistics.

Machines are Node and NodeHealth objects of realistic size. Whoever reads a figure has to know what was real:
etcd, kube-apiserver, kube-controller-manager and scheduler are; kubelets are not played, so the
controller-manager is told to be patient with silent machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tests.controlplane import binaries
from tests.controlplane.access import MERGE, Access
from tests.controlplane.installation import NAMESPACE, Installation
from tests.controlplane.machines import Machine, node_object, node_status
from tests.controlplane.plane import Plane, PlaneOptions
from tests.controlplane.processes import Program, Reaper
from tests.controlplane.wire import Wire

from outlast.model.health import (
    Evidence,
    Fault,
    FaultClass,
    Gpu,
    GpuIdentity,
    NodeHealthStatus,
    Scope,
    Subsystem,
    SubsystemVerdict,
    Verdict,
)

Json = dict[str, Any]
T = TypeVar("T")

IMAGES_PER_NODE = 21
"""Makes a Node 15 KB as JSON, as nodes of a real cloud are."""
GPUS = 8
IN_FLIGHT = 48
PATIENCE_S = 24 * 3600
"""The controller-manager waits this long for kubelets, of which there are none."""
HOME = "control"
"""The Node that our own pods are bound to; the garbage collector takes pods of no Node, and their tokens."""
POLICY = "bench"
SELECTOR = {"outlast.test/fleet": "bench"}
NODES = "/api/v1/nodes"
HEALTHS = "/apis/outlast.dev/v1alpha1/nodehealths"
INCIDENTS = "/apis/outlast.dev/v1alpha1/incidents"
POLICIES = "/apis/outlast.dev/v1alpha1/remediationpolicies"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest rank: the smallest value that at least `percent` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)]


@contextlib.contextmanager
def installed(*, controllers: bool = True) -> Iterator[Installation]:
    """A control plane with our CRDs, rights and admission policies in force."""
    options = PlaneOptions(controllers=controllers, node_monitor_grace_s=PATIENCE_S)
    with Plane(binaries.obtain(), options) as plane:
        installation = Installation(plane)
        installation.install()
        installation.node(HOME)
        yield installation


@contextlib.contextmanager
def reaper() -> Iterator[Reaper]:
    """Ends our processes when the benchmark is gone, however it went."""
    keeper = Reaper()
    try:
        yield keeper
    finally:
        keeper.close()


def outlast_process(
    name: str, arguments: Sequence[str], log: Path, keeper: Reaper, environment: Json | None = None
) -> Program:
    """`outlast ...` as a process of its own, not started yet."""
    variables = [f"{key}={value}" for key, value in (environment or {}).items()]
    prefix = ["/usr/bin/env", *variables] if variables else []
    return Program(name, [*prefix, sys.executable, "-m", "outlast", *arguments], log, keeper)


def controller_process(
    installation: Installation, pod_name: str, folder: Path, keeper: Reaper
) -> tuple[Program, Access]:
    """The production controller with the token of a pod of its own, and that identity."""
    access = installation.controller(pod_name, HOME)
    config = access.write_kubeconfig(folder / f"{pod_name}.kubeconfig")
    arguments = ["controller", "--kubeconfig", str(config), "--identity", pod_name]
    return outlast_process(pod_name, arguments, folder / f"{pod_name}.log", keeper), access


# -- objects ------------------------------------------------------------------------------------


def node(number: int, prefix: str = "node") -> Json:
    """A machine's Node of 15 KB, status included."""
    machine = Machine(f"{prefix}-{number:05d}", labels=dict(SELECTOR), padded=True)
    status = node_status(machine)
    status["images"] = status["images"][:IMAGES_PER_NODE]
    return {**node_object(machine), "status": status}


def policy(mode: str = "Enforce") -> Json:
    """Rules over the whole fleet; nothing but the storm rule limits what may be blocked at once."""
    return {
        "apiVersion": "outlast.dev/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "mode": mode,
            "nodeSelector": SELECTOR,
            "budgets": {"maxUnavailablePercent": 100},
            # There are no agents to renew leases; only their silence is excused.
            "agentSilentSeconds": 7 * 24 * 3600,
        },
    }


def identities() -> tuple[GpuIdentity, ...]:
    """The GPUs of one machine."""
    return tuple(
        GpuIdentity(
            pci_address=f"0000:{0x10 + 0x10 * i:02x}:1c.0",
            uuid=f"GPU-00000000-0000-0000-0000-{i:012d}",
            serial=f"16530220{i:05d}",
            index=i,
        )
        for i in range(GPUS)
    )


def healthy(node_uid: str, boot_id: str, now: datetime) -> NodeHealthStatus:
    """What an agent says of a fit machine."""
    verdicts = tuple(
        SubsystemVerdict(
            subsystem=subsystem,
            verdict=Verdict.HEALTHY,
            reason=f"{subsystem}Healthy",
            message=f"{GPUS} of {GPUS} answer, and no fault is open.",
            since=now,
        )
        for subsystem in Subsystem
    )
    return NodeHealthStatus(
        node_uid=node_uid,
        boot_id=boot_id,
        agent_version="0.1.0",
        started_at=now,
        checked_at=now,
        state="Healthy",
        gpus_found=GPUS,
        gpus_expected=GPUS,
        gpu_count=f"{GPUS}/{GPUS}",
        gpus=tuple(Gpu(identity=identity, model="NVIDIA H100 80GB HBM3") for identity in identities()),
        verdicts=verdicts,
    )


def faulty(before: NodeHealthStatus, now: datetime) -> NodeHealthStatus:
    """The same machine with one GPU off the bus."""
    gpu = before.gpus[5].identity
    line = f"NVRM: Xid (PCI:{gpu.pci_address[:-2]}): 79, pid=4711, GPU has fallen off the bus."
    fault = Fault(
        id=f"gpu/{gpu.serial}/xid-79",
        code="Xid 79",
        fault_class=FaultClass.REBOOT_CURES,
        subsystem=Subsystem.GPU,
        scope=Scope.GPU,
        summary=f"The GPU at {gpu.pci_address} fell off the bus.",
        opened_at=now,
        last_seen_at=now,
        gpu=gpu,
        clears_by="a new boot in which the GPU is present and answers",
        evidence=(Evidence(at=now, source="kernel log", text=line),),
    )
    verdicts = tuple(
        msgspec.structs.replace(v, verdict=Verdict.FAULTY, reason="GpuFellOffBus", since=now)
        if v.subsystem is Subsystem.GPU
        else v
        for v in before.verdicts
    )
    return msgspec.structs.replace(before, state="Faulty", verdicts=verdicts, faults=(fault,))


def agent_lease(node_name: str, now: datetime) -> Json:
    """The Lease an agent renews."""
    return {
        "metadata": {"name": f"outlast-agent-{node_name}", "namespace": NAMESPACE},
        "spec": {
            "holderIdentity": node_name,
            "leaseDurationSeconds": 180,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


# -- bulk ---------------------------------------------------------------------------------------


async def all_of(
    items: Iterable[T], work: Callable[[T], Awaitable[object]], in_flight: int = IN_FLIGHT, *, tries: int = 1
) -> None:
    """Do the work for every item, this many at once, in order; again where the server did not answer."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            for left in reversed(range(tries)):
                try:
                    await work(item)
                    break
                except (OSError, TimeoutError):
                    if not left:
                        raise

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(worker())


async def register(wire: Wire, count: int, *, leases: bool = True) -> dict[str, NodeHealthStatus]:
    """Create nodes, their NodeHealth objects and Leases; returns what each NodeHealth says."""
    said: dict[str, NodeHealthStatus] = {}

    async def one(number: int) -> None:
        body = node(number)
        created = await wire.request("POST", NODES, body)
        meta = created["metadata"]
        now = datetime.now(UTC)
        status = healthy(meta["uid"], body["status"]["nodeInfo"]["bootID"], now)
        said[meta["name"]] = status
        await wire.request("POST", HEALTHS, health_object(meta["name"]))
        await put_health(wire, meta["name"], status)
        if leases:
            await wire.request("POST", LEASES, agent_lease(meta["name"], now))

    await all_of(range(count), one)
    return said


def health_object(name: str) -> Json:
    """A NodeHealth as created; its status is written separately."""
    return {"apiVersion": "outlast.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": name}}


async def put_health(wire: Wire, name: str, status: NodeHealthStatus) -> None:
    """Write what an agent says, as an agent does: one merge patch of the status."""
    plain: Json = msgspec.to_builtins(status)
    body = {"status": {"faults": None, "faultsDropped": None} | plain}
    await wire.request("PATCH", f"{HEALTHS}/{name}/status", body, content_type=MERGE)


# -- processes ----------------------------------------------------------------------------------


def memory_mb(pid: int) -> dict[str, float]:
    """RSS, PSS and what is not shared with anybody, in MB, as the kernel counts them."""
    found: dict[str, float] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("Rss", "Pss", "Private_Clean", "Private_Dirty"):
            found[name.lower()] = int(value.split()[0]) * 1024 / 1e6
    return found


def peak_mb(pid: int) -> float:
    """The most RSS that a process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("the kernel tells no peak memory (VmHWM)")


def cpu_s(pid: int, *, with_dead_children: bool = False) -> float:
    """Processor time a process has used, in its own and the kernel's code."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = sum(int(fields[i]) for i in ((11, 12, 13, 14) if with_dead_children else (11, 12)))
    return ticks / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Living children of all threads of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found
