"""Plays the kubelets: pods run and end, machines reboot, nodes report.

Nothing here decides anything about health. A repair Job's pod is carried out as `outlast act reboot`
would: it compares the boot id first, so that a second run of the same intent does nothing.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, Protocol

from outlast.model.names import (
    CHECKPOINT_DONE_ANNOTATION,
    CHECKPOINT_REQUEST_ANNOTATION,
    REPAIR_LABEL,
)
from outlast.ports.clock import Clock
from outlast.sim.apiserver import ApiError, Store, Writer
from outlast.sim.apiserver.resources import LEASES, NODES, PODS
from outlast.sim.apiserver.storage import Change
from outlast.sim.apiserver.store import Deletion, timestamp
from outlast.sim.world import objects
from outlast.sim.world.agenda import Agenda
from outlast.sim.world.machine import BOOT_S, SHUTDOWN_S, Machine

HEARTBEAT_S: Final = 300.0
"""A kubelet writes its node's status this often when nothing changes (nodeStatusReportFrequency). Its Lease
is renewed with it here, not every 10 s: nothing in the simulation judges a node by it."""
SILENCE_S: Final = 40.0
"""After this long without a word the control plane calls a node Unknown (node-monitor-grace-period)."""
START_S: Final = 2.0
STOP_S: Final = 6.0
CHECKPOINT_S: Final = (35.0, 80.0)
"""How long a job takes to make a checkpoint durable."""
ENDED_MAX: Final = 10_000
AGENT_START_S: Final = 8.0
"""From a kubelet that is up to the agent's container that runs."""
DRIVER_S: Final = 4.0
_KUBELET: Final = Writer(manager="kubelet")
_CONTROL_PLANE: Final = Writer(manager="kube-controller-manager")


class AgentSwitch(Protocol):
    """Starts and kills the agent process of a machine."""

    def start(self, machine: Machine) -> None:
        """The agent's container starts."""
        ...

    def kill(self, machine: Machine) -> None:
        """The agent's process is gone at once, without a word."""
        ...


class Kubelets:
    """All kubelets of the cluster."""

    def __init__(self, store: Store, agenda: Agenda, clock: Clock, rng: Random, agents: AgentSwitch) -> None:
        self._store = store
        self._agenda = agenda
        self._clock = clock
        self._rng = rng
        self._agents = agents
        self._machines: dict[str, Machine] = {}
        self._seen: dict[str, str] = {}
        """Pod uid -> the last thing begun for it."""
        self.reboots: Counter[str] = Counter()
        """How often each machine really rebooted."""
        self.ended: deque[str] = deque(maxlen=ENDED_MAX)
        """uids of the pods whose containers really ended, newest last."""
        store.storage.observe(self._on_change)

    def join(self, machine: Machine) -> None:
        """A machine's kubelet is up and its node registered."""
        self._machines[machine.name] = machine
        uid = self._store.get(NODES, machine.name)["metadata"]["uid"]
        lease = objects.node_lease(machine.name, uid, self._clock.now())
        self._store.create(LEASES, lease, objects.NODE_LEASES, _KUBELET)
        offset_s = self._rng.uniform(0, HEARTBEAT_S)
        self._agenda.every(HEARTBEAT_S, lambda: self._heartbeat(machine), first_s=offset_s)
        self._agenda.after(self._rng.uniform(0.5, AGENT_START_S), lambda: self._start_agent(machine))

    def power_off(self, machine: Machine) -> None:
        """The machine is gone for good; what ran on it has failed, as the pod garbage collector says."""
        machine.powered = False
        self._machines.pop(machine.name, None)
        self._agents.kill(machine)
        for pod in self._store.list(PODS, field_selector=f"spec.nodeName={machine.name}"):
            if pod["status"].get("phase") in ("Pending", "Running"):
                self._end(pod["metadata"], 137, "")
            self._remove(pod["metadata"])

    # -- pods -------------------------------------------------------------------------------

    def _on_change(self, kind: tuple[str, str], change: Change) -> None:
        if kind != PODS.key:
            return
        if change.type == "DELETED":
            self._seen.pop(change.entry.uid, None)
            return
        node_name = change.entry.fields.get("spec.nodeName", "")
        if node_name in self._machines:
            self._look(node_name, change.entry.decode())

    def _look(self, node_name: str, pod: Mapping[str, Any]) -> None:
        """Begin what this pod needs next, once."""
        meta, uid = pod["metadata"], pod["metadata"]["uid"]
        phase = pod["status"].get("phase")
        asked = (meta.get("annotations") or {}).get(CHECKPOINT_REQUEST_ANNOTATION, "")
        answered = (meta.get("annotations") or {}).get(CHECKPOINT_DONE_ANNOTATION, "")
        if meta.get("deletionTimestamp"):
            grace_s = min(meta.get("deletionGracePeriodSeconds", 0), STOP_S)
            self._once(uid, "stop", grace_s, lambda: self._finish(node_name, meta))
        elif phase == "Pending":
            self._once(uid, "start", START_S, lambda: self._run(node_name, meta))
        elif phase == "Running" and asked and asked != answered:
            work_s = self._rng.uniform(*CHECKPOINT_S)
            self._once(uid, f"save {asked}", work_s, lambda: self._saved(node_name, meta, asked))

    def _once(self, uid: str, what: str, delay_s: float, action: Callable[[], None]) -> None:
        if self._seen.get(uid) != what:
            self._seen[uid] = what
            self._agenda.after(delay_s, action)

    def _up(self, node_name: str) -> bool:
        machine = self._machines.get(node_name)
        return machine is not None and machine.powered

    def _run(self, node_name: str, meta: Mapping[str, Any]) -> None:
        if not self._up(node_name):
            return
        now = timestamp(self._clock.now())

        def mutate(pod: dict[str, Any]) -> dict[str, Any]:
            kept = [c for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled"]
            good = [
                {"type": t, "status": "True", "lastTransitionTime": now}
                for t in ("Initialized", "ContainersReady", "Ready")
            ]
            containers = [
                {
                    "name": c["name"],
                    "image": c["image"],
                    "imageID": "",
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": now}},
                }
                for c in pod["spec"]["containers"]
            ]
            pod["status"] |= {
                "phase": "Running",
                "startTime": now,
                "conditions": [*kept, *good],
                "containerStatuses": containers,
            }
            return pod

        entry = self._write_pod(meta, mutate)
        if (meta.get("labels") or {}).get(REPAIR_LABEL) is not None:
            self._agenda.after(1.0, lambda: self._act(node_name, entry.decode()))

    def _saved(self, node_name: str, meta: Mapping[str, Any], attempt: str) -> None:
        if not self._up(node_name):
            return

        def mutate(pod: dict[str, Any]) -> dict[str, Any]:
            pod["metadata"].setdefault("annotations", {})[CHECKPOINT_DONE_ANNOTATION] = attempt
            return pod

        self._store.update(
            PODS, meta["name"], mutate, meta["namespace"], writer=Writer(manager="training-job")
        )

    def _finish(self, node_name: str, meta: Mapping[str, Any]) -> None:
        """The containers have stopped: say how a pod of a Job ended before it goes, its Job counts that."""
        if not self._up(node_name):
            return
        pod = self._store.get(PODS, meta["name"], meta["namespace"])
        if pod["spec"].get("restartPolicy") == "Never" and pod["status"].get("phase") == "Running":
            self._end(meta, 143, "")
        else:
            self.ended.append(meta["uid"])
        self._remove(meta)

    def _remove(self, meta: Mapping[str, Any]) -> None:
        options = Deletion(uid=meta["uid"], grace_s=0)
        with contextlib.suppress(ApiError):  # its end was counted, and it went with its finalizer
            self._store.delete(PODS, meta["name"], meta["namespace"], options, _KUBELET)

    def _end(self, meta: Mapping[str, Any], exit_code: int, message: str) -> None:
        self.ended.append(meta["uid"])
        phase = "Succeeded" if exit_code == 0 else "Failed"
        now = timestamp(self._clock.now())
        ended = {
            "exitCode": exit_code,
            "reason": "Completed" if exit_code == 0 else "Error",
            "message": message,
            "startedAt": now,
            "finishedAt": now,
        }

        def mutate(pod: dict[str, Any]) -> dict[str, Any]:
            pod["status"]["phase"] = phase
            for condition in pod["status"].get("conditions", ()):
                if condition["type"] in ("Ready", "ContainersReady"):
                    condition["status"] = "False"
            for container in pod["status"].get("containerStatuses", ()):
                container |= {"ready": False, "started": False, "state": {"terminated": ended}}
            return pod

        self._write_pod(meta, mutate)

    def _write_pod(self, meta: Mapping[str, Any], mutate: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
        if self._store.entry(PODS, meta["name"], meta["namespace"]).uid != meta["uid"]:
            raise ApiError(409, "Conflict", "another pod has this name now")
        return self._store.update(
            PODS, meta["name"], mutate, meta["namespace"], subresource="status", writer=_KUBELET
        )

    # -- machines ---------------------------------------------------------------------------

    def _act(self, node_name: str, pod: Mapping[str, Any]) -> None:
        """The repair container does what its arguments say."""
        container = pod["spec"]["containers"][0]
        words = [*container.get("command", ()), *container.get("args", ())]
        machine = self._machines.get(node_name)
        if machine is None or not machine.powered:
            return
        if _option(words, "--if-boot-id") != machine.boot_id:
            self._end(pod["metadata"], 0, "the machine has booted since; nothing to do")
        elif "reboot" in words:
            self.reboots[node_name] += 1
            self._go_down(machine)
        else:
            self._end(pod["metadata"], 2, f"this machine cannot do: {' '.join(words)[:200]}")

    def _go_down(self, machine: Machine) -> None:
        machine.powered = False
        self._agents.kill(machine)
        self._agenda.after(SILENCE_S, lambda: self._call_unknown(machine))
        boot_s = BOOT_S + self._rng.uniform(-20, 40)
        self._agenda.after(SHUTDOWN_S + boot_s, lambda: self._come_up(machine))

    def _call_unknown(self, machine: Machine) -> None:
        if not machine.powered:
            self._condition(machine, objects.unknown(self._clock.now()), _CONTROL_PLANE)

    def _come_up(self, machine: Machine) -> None:
        if machine.name not in self._machines:
            return
        boot_id = machine.reboot()
        machine.powered = True

        def mutate(node: dict[str, Any]) -> dict[str, Any]:
            node["status"]["nodeInfo"]["bootID"] = boot_id
            return node

        self._store.update(NODES, machine.name, mutate, subresource="status", writer=_KUBELET)
        self._condition(machine, objects.ready(self._clock.now()), _KUBELET)
        for pod in self._store.list(PODS, field_selector=f"spec.nodeName={machine.name}"):
            self._after_boot(pod)
        self._agenda.after(DRIVER_S, machine.driver_is_up)
        self._agenda.after(AGENT_START_S, lambda: self._start_agent(machine))

    def _after_boot(self, pod: Mapping[str, Any]) -> None:
        """The containers died with the machine: some start again, the others have failed."""
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            self._agenda.after(START_S, lambda: self._remove(meta))
        elif pod["spec"].get("restartPolicy") == "Never" and pod["status"].get("phase") == "Running":
            self._agenda.after(START_S, lambda: self._end(meta, 255, ""))
        elif pod["status"].get("phase") == "Pending":
            self._agenda.after(START_S, lambda: self._run(pod["spec"]["nodeName"], meta))

    def _start_agent(self, machine: Machine) -> None:
        if machine.powered:
            self._agents.start(machine)

    def _heartbeat(self, machine: Machine) -> None:
        if machine.powered and machine.name in self._machines:
            self._condition(machine, objects.ready(self._clock.now()), _KUBELET)
            self._renew(machine)

    def _renew(self, machine: Machine) -> None:
        def mutate(lease: dict[str, Any]) -> dict[str, Any]:
            lease["spec"]["renewTime"] = objects.micro_time(self._clock.now())
            return lease

        # Whoever follows the demo with kubectl may delete it; nothing here depends on it.
        with contextlib.suppress(ApiError):
            self._store.update(LEASES, machine.name, mutate, objects.NODE_LEASES, writer=_KUBELET)

    def _condition(self, machine: Machine, condition: dict[str, Any], writer: Writer) -> None:
        """Set one condition; the time of the transition moves only with the status."""

        def mutate(node: dict[str, Any]) -> dict[str, Any]:
            conditions = node["status"].setdefault("conditions", [])
            old = next((c for c in conditions if c["type"] == condition["type"]), None)
            if old is None:
                conditions.append(condition)
                return node
            kept = old["lastTransitionTime"] if old["status"] == condition["status"] else None
            old.update(condition)
            if kept is not None:
                old["lastTransitionTime"] = kept
            return node

        self._store.update(NODES, machine.name, mutate, subresource="status", writer=writer)


def _option(words: list[str], name: str) -> str:
    """The value of `--name VALUE` or `--name=VALUE`."""
    for i, word in enumerate(words):
        if word == name and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""
