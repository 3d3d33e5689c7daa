"""A small fleet on virtual time: machines with faults that reboots cure or do not, agents, kubelets.

Everything the controller sees comes from here through the store: nodes, health, leases, pods; and what
it asks for (evictions, repair Jobs, hand-overs) is carried out as machines would, with their delays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any

import msgspec

from outlast.controller.main import Controller
from outlast.controller.options import ControllerOptions
from outlast.model.health import NODE_HEALTHS, Fault, FaultClass, FaultState, GpuIdentity, Scope, Subsystem
from outlast.model.incident import INCIDENTS, Incident
from outlast.model.names import ACCELERATED_HARDWARE_READY, AGENT_LEASE_PREFIX, REPAIR_LABEL, SYSTEM_NAMESPACE
from outlast.model.policy import REMEDIATION_POLICIES, RemediationPolicy
from outlast.ports.cluster import EventNote
from outlast.schema.crds import definitions
from outlast.sim.apiserver import Store, Writer
from outlast.sim.apiserver.controllers import Controllers
from outlast.sim.apiserver.errors import ApiError
from outlast.sim.apiserver.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DAEMONSETS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PDBS,
    PODS,
)
from outlast.sim.apiserver.store import Deletion
from outlast.sim.direct import DirectCluster, Gate
from outlast.sim.virtual_time import VirtualClock

KARPENTER_TOLERATION_S = 60
"""600 on AWS; nothing here depends on how long it is."""
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


@dataclass
class Machine:
    """The truth about one machine."""

    name: str
    boot: int = 1
    broken: FaultClass | None = None
    code: str = "xid/79"
    cured_by_reboot: bool = True
    reboots: int = 0
    up: bool = True
    agent_alive: bool = True
    opened_at: datetime | None = None
    recovers_alone: bool = False
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def boot_id(self) -> str:
        """The kernel's random boot id."""
        return f"{self.name}-boot-{self.boot}"


class AlwaysLeader:
    """A fence that is always open, until it is told otherwise."""

    def __init__(self) -> None:
        self.open = True

    def may_write(self) -> bool:
        return self.open

    async def run(self, lead: Any) -> None:
        await lead()


class Notes:
    """Keeps what was told."""

    def __init__(self) -> None:
        self.all: list[EventNote] = []

    def record(self, note: EventNote) -> None:
        self.all.append(note)

    def reasons(self) -> list[str]:
        return [note.reason for note in self.all]


class Playground:
    """The fleet and the store it lives in."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = Store(self.clock.now)
        self.controllers = Controllers(self.store)
        self.machines: dict[str, Machine] = {}
        self.notes = Notes()
        self.evicted: list[str] = []
        self.writer = Writer(manager="kubelet")
        self._group: asyncio.TaskGroup | None = None
        for definition in definitions():
            self.store.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
        for namespace in (SYSTEM_NAMESPACE, "ml"):
            self.store.create(NAMESPACES, {"metadata": {"name": namespace}})

    # -- setting up ------------------------------------------------------------------------

    def add_policy(self, name: str = "gpu", **spec: Any) -> None:
        """A policy that enforces unless told otherwise."""
        self.store.create(
            REMEDIATION_POLICIES,
            {
                "apiVersion": "outlast.dev/v1alpha1",
                "kind": "RemediationPolicy",
                "metadata": {"name": name},
                "spec": {"mode": "Enforce", **spec},
            },
        )

    def add_machine(self, name: str, **labels: str) -> Machine:
        """A healthy machine whose node is Ready and whose agent has checked it."""
        machine = Machine(name, labels=labels)
        self.machines[name] = machine
        self._register(machine)
        lease = {"metadata": {"name": AGENT_LEASE_PREFIX + name}, "spec": {"holderIdentity": name}}
        self.store.create(LEASES, lease, SYSTEM_NAMESPACE)
        self.store.create(
            NODE_HEALTHS,
            {"apiVersion": "outlast.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": name}},
        )
        self.publish(machine)
        return machine

    def _register(self, machine: Machine) -> None:
        self.store.create(
            NODES,
            {
                "metadata": {
                    "name": machine.name,
                    "labels": {"nvidia.com/gpu.present": "true", **machine.labels},
                },
                "spec": {"providerID": f"machine://{machine.name}"},
                "status": {"nodeInfo": {"bootID": machine.boot_id}, "allocatable": {"pods": "110"}},
            },
        )
        self._kubelet_says(machine)

    def _kubelet_says(self, machine: Machine) -> None:
        ready = {"type": "Ready", "status": "True" if machine.up else "Unknown", "reason": "Kubelet"}
        status: dict[str, Any] = {"conditions": [ready], "nodeInfo": {"bootID": machine.boot_id}}
        self._patch(NODES, machine.name, {"status": status}, STRATEGIC)

    def _patch(self, kind: Any, name: str, body: Any, how: str = MERGE, namespace: str = "") -> None:
        self.store.patch(kind, name, how, body, namespace, subresource="status", writer=self.writer)

    def publish(self, machine: Machine, *, checked: bool = True) -> None:
        """What the agent says of its machine."""
        now = self.clock.now()
        faults = [self._fault(machine)] if machine.broken is not None else []
        faulty = {fault.subsystem for fault in faults}
        unknown = "Unknown" if not checked else "Healthy"
        verdicts = [
            {"subsystem": s.value, "verdict": "Faulty" if s in faulty else unknown, "reason": "Playground"}
            for s in Subsystem
        ]
        body = {
            "bootID": machine.boot_id,
            "checkedAt": now if checked else None,
            "state": "Faulty" if faults else unknown,
            "verdicts": verdicts,
            "faults": msgspec.to_builtins(faults),
        }
        self._patch(NODE_HEALTHS, machine.name, msgspec.json.decode(msgspec.json.encode({"status": body})))

    def _fault(self, machine: Machine) -> Fault:
        assert machine.broken is not None and machine.opened_at is not None
        return Fault(
            id=f"{machine.code}@0000:b3:00.0",
            code=machine.code,
            fault_class=machine.broken,
            subsystem=Subsystem.MONITOR if machine.broken is FaultClass.MONITOR_HUNG else Subsystem.GPU,
            scope=Scope.GPU,
            summary=f"GPU 5 of {machine.name} is broken",
            opened_at=machine.opened_at,
            last_seen_at=machine.opened_at,
            boot_id=machine.boot_id,
            state=FaultState.OPEN,
            gpu=GpuIdentity(pci_address="0000:b3:00.0", serial=f"serial-{machine.name}"),
            clears_by="a clean check",
        )

    def break_down(
        self,
        name: str,
        fault_class: FaultClass = FaultClass.REBOOT_CURES,
        code: str = "xid/79",
        *,
        cured: bool = True,
    ) -> None:
        """A machine falls sick."""
        machine = self.machines[name]
        machine.broken, machine.code, machine.cured_by_reboot = fault_class, code, cured
        machine.opened_at = self.clock.now()
        self.publish(machine)

    def recover(self, name: str) -> None:
        """A machine heals by itself, proven by a check."""
        machine = self.machines[name]
        machine.broken = None
        self.publish(machine)

    def add_pod(
        self, name: str, node: str, *, labels: dict[str, str] | None = None, daemon: bool = False
    ) -> None:
        """A running pod."""
        owner = self._daemon_set() if daemon else None
        meta: dict[str, Any] = {"name": name, "labels": labels or {"app": name}}
        if owner is not None:
            meta["ownerReferences"] = [owner]
        self.store.create(
            PODS,
            {"metadata": meta, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}},
            "ml",
        )
        ready = {"type": "Ready", "status": "True"}
        self._patch(PODS, name, {"status": {"phase": "Running", "conditions": [ready]}}, STRATEGIC, "ml")

    def _daemon_set(self) -> dict[str, Any]:
        """A DaemonSet that owns pods; garbage collection takes pods whose owner does not exist."""
        labels = {"app": "ds"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        body = {
            "metadata": {"name": "ds"},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }
        uid = self.store.create(DAEMONSETS, body, "ml").uid
        return {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "uid": uid, "controller": True}

    def add_budget(self, name: str, app: str, min_available: int) -> None:
        """A PodDisruptionBudget."""
        spec = {"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}}
        self.store.create(PDBS, {"metadata": {"name": name}, "spec": spec}, "ml")

    # -- living ----------------------------------------------------------------------------

    async def live(self) -> None:
        """Kubelets, agents and Karpenter, for ever."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self.controllers.run())
            while True:
                self._beat()
                await self.clock.sleep(1.0)

    def _beat(self) -> None:
        now = self.clock.now()
        if int(self.clock.monotonic()) % 10 == 0:
            stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            for machine in self.machines.values():
                if machine.up and machine.agent_alive:
                    body = {"spec": {"renewTime": stamp}}
                    self.store.patch(LEASES, AGENT_LEASE_PREFIX + machine.name, MERGE, body, SYSTEM_NAMESPACE)
        for entry in list(self.store.entries(PODS)):
            self._run_pod(entry.decode())
        self._karpenter()

    def _run_pod(self, pod: dict[str, Any]) -> None:
        meta, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
        machine = self.machines.get(spec.get("nodeName", ""))
        if machine is None or not machine.up:
            return
        if meta.get("deletionTimestamp"):
            if meta["namespace"] == "ml":
                self.evicted.append(meta["name"])
            self.store.delete(PODS, meta["name"], meta["namespace"], Deletion(grace_s=0))
        elif status.get("phase", "Pending") == "Pending":
            self._patch(PODS, meta["name"], {"status": {"phase": "Running"}}, MERGE, meta["namespace"])
            if REPAIR_LABEL in meta.get("labels", {}):
                self._repair(machine, pod)

    def _repair(self, machine: Machine, pod: dict[str, Any]) -> None:
        """What `outlast act reboot` does: compare the boot id, then reboot."""
        command = pod["spec"]["containers"][0]["command"]
        expected = command[command.index("--if-boot-id") + 1]
        if expected == machine.boot_id:
            assert self._group is not None
            self._group.create_task(self._reboot(machine))
        else:
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            self._patch(PODS, name, {"status": {"phase": "Succeeded"}}, MERGE, namespace)

    async def _reboot(self, machine: Machine) -> None:
        machine.up, machine.reboots = False, machine.reboots + 1
        await self.clock.sleep(20)
        self._kubelet_says(machine)
        await self.clock.sleep(50)
        machine.boot += 1
        machine.up = True
        if machine.cured_by_reboot:
            machine.broken = None
        elif machine.broken is not None:
            machine.opened_at = self.clock.now()
        for entry in list(self.store.entries(PODS, field_selector=f"spec.nodeName={machine.name}")):
            if REPAIR_LABEL in entry.labels:
                self._patch(PODS, entry.name, {"status": {"phase": "Failed"}}, MERGE, entry.namespace)
        try:
            self._kubelet_says(machine)
            self.publish(machine, checked=False)
            await self.clock.sleep(20)
            self.publish(machine)
        except ApiError:
            return  # the node was deleted meanwhile

    def _karpenter(self) -> None:
        for entry in list(self.store.entries(NODES)):
            node = entry.decode()
            for condition in node.get("status", {}).get("conditions", ()):
                if condition["type"] == ACCELERATED_HARDWARE_READY and condition["status"] == "False":
                    self._replace(node["metadata"]["name"], condition)

    def _replace(self, name: str, condition: dict[str, Any]) -> None:
        since = datetime.fromisoformat(condition["lastTransitionTime"].replace("Z", "+00:00"))
        if (self.clock.now() - since).total_seconds() < KARPENTER_TOLERATION_S:
            return
        self.store.delete(NODES, name)
        self.store.delete(NODE_HEALTHS, name)
        self.store.delete(LEASES, AGENT_LEASE_PREFIX + name, SYSTEM_NAMESPACE)
        del self.machines[name]

    # -- looking ---------------------------------------------------------------------------

    def node(self, name: str) -> dict[str, Any]:
        """The Node as stored."""
        return self.store.get(NODES, name)

    def incidents(self) -> list[Incident]:
        """All incidents, oldest first."""
        found = [msgspec.json.decode(e.raw, type=Incident) for e in self.store.entries(INCIDENTS)]
        return sorted(found, key=lambda i: i.spec.opened_at)

    def policies(self) -> list[RemediationPolicy]:
        """All policies."""
        entries = self.store.entries(REMEDIATION_POLICIES)
        return [msgspec.json.decode(entry.raw, type=RemediationPolicy) for entry in entries]

    def change_policy(self, name: str, spec: dict[str, Any]) -> None:
        """A human edits a policy."""
        self.store.patch(REMEDIATION_POLICIES, name, MERGE, {"spec": spec})

    def annotate_incident(self, name: str, body: dict[str, Any]) -> None:
        """A human annotates an incident."""
        self.store.patch(INCIDENTS, name, MERGE, body)

    def jobs(self) -> list[str]:
        """Names of repair Jobs."""
        return [entry.name for entry in self.store.entries(JOBS, SYSTEM_NAMESPACE)]

    async def until(self, true: Any, within_s: float = 7200.0, what: str = "it") -> None:
        """Let virtual time pass until something holds."""
        deadline = self.clock.monotonic() + within_s
        while not true():
            assert self.clock.monotonic() < deadline, f"{what} did not come true within {within_s} s"
            await self.clock.sleep(1.0)

    def controller(self, gate: Gate | None = None, fence: AlwaysLeader | None = None) -> Controller:
        """A controller on this store."""
        cluster = DirectCluster(self.store, gate=gate) if gate is not None else DirectCluster(self.store)
        return Controller(
            cluster, fence or AlwaysLeader(), self.notes, self.clock, Random(1), ControllerOptions()
        )


@asynccontextmanager
async def running(*works: Any) -> AsyncIterator[None]:
    """Coroutines that run beside the test."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
