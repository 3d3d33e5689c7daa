"""Plays kubelets through the API: machines register, renew their leases, run pods, reboot and die.

Each pod bound to one of our nodes gets a task that does to it what a kubelet would; a callback decides
how the containers end, so a test (or a demo) can really execute a repair Job. Nothing else is faked:
scheduling, eviction, Job accounting and node monitoring stay with the real control plane.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from tests.controlplane.access import Access, Refused
from tests.controlplane.machines import Machine, condition, node_object, node_status, timestamp
from tests.controlplane.wire import Wire

HEARTBEAT_S = 10.0
"""As a kubelet renews its lease."""
RETRY_S = 0.2
WRITES_IN_FLIGHT = 32
WATCH_S = 300
EXIT_KILLED = 137
EXIT_LOST = 255
"""What the runtime reports for a container whose machine went down under it."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exit:
    """How a pod's container ended; the message is its termination log."""

    code: int = 0
    message: str = ""


RunPod = Callable[[Json, Machine], Awaitable[Exit | None]]
"""Called once a pod is Running. Returns its end; None means that it runs until deleted. It is cancelled
when the pod is deleted or its machine goes down."""


@dataclass(slots=True)
class _Node:
    machine: Machine
    up: bool = True
    pods: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Tasks by pod uid."""
    seen_running: set[str] = field(default_factory=set)
    """uids that this boot or an earlier one started."""


class Kubelets:
    """A set of machines on one API server; an async context manager."""

    def __init__(
        self,
        access: Access,
        *,
        run_pod: RunPod | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        shutdown_s: float = 0.05,
        rerun_after_reboot: bool = False,
    ) -> None:
        """`shutdown_s` is how long containers take to end; it never exceeds the pod's own grace.

        `rerun_after_reboot`: a pod with restartPolicy Never that ran when its machine went down is run
        again, as by a kubelet that lost the container's record; otherwise it has failed.
        """
        self._access = access
        self._wire = Wire(access)
        self._run_pod = run_pod
        self._heartbeat_s = heartbeat_s
        self.shutdown_s = shutdown_s
        self._rerun_after_reboot = rerun_after_reboot
        self._nodes: dict[str, _Node] = {}
        self._writes = asyncio.Semaphore(WRITES_IN_FLIGHT)
        self._tasks = asyncio.TaskGroup()
        self._own: list[asyncio.Task[None]] = []
        self._pods: dict[str, Json] = {}
        """Last seen pods of our nodes by uid."""

    async def __aenter__(self) -> Kubelets:
        await self._wire.__aenter__()
        await self._tasks.__aenter__()
        self._own = [
            self._tasks.create_task(self._follow_pods()),
            self._tasks.create_task(self._heartbeats()),
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in [*self._own, *(t for node in self._nodes.values() for t in node.pods.values())]:
            task.cancel()
        try:
            # A failed assertion in the body stays itself; a TaskGroup would wrap it into a group.
            cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
            await self._tasks.__aexit__(kind if cancelled else None, error if cancelled else None, trace)
        finally:
            await self._wire.__aexit__(kind, error, trace)

    # -- machines -------------------------------------------------------------------------------

    def machine(self, name: str) -> Machine:
        """The machine behind a node as it is now."""
        return self._nodes[name].machine

    async def add(self, name: str, **facts: Any) -> Machine:
        """Register one node, Ready; `facts` are fields of `Machine`."""
        machine = Machine(name, **facts)
        await self._register(machine)
        return machine

    async def add_many(self, names: Sequence[str], **facts: Any) -> None:
        """Register many nodes with the same facts, concurrently."""
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self.add(name, **facts))

    def fail(self, name: str) -> None:
        """The machine dies silently: no heartbeat, no pod is touched. The API shows its last word."""
        node = self._nodes[name]
        node.up = False
        for task in node.pods.values():
            task.cancel()
        node.pods.clear()

    async def recover(self, name: str, *, same_boot: bool = False, boot_id_late_s: float = 0.1) -> Machine:
        """The kubelet is back: Ready first, the new boot id a little later, as on real machines."""
        node = self._nodes[name]
        old_boot_id = node.machine.boot_id
        if not same_boot:
            node.machine = node.machine.rebooted()
        status: Json = {"conditions": [condition("Ready", "True", "KubeletReady")]}
        status["nodeInfo"] = {"bootID": old_boot_id}
        await self._patch_status(name, status)
        await self._renew(name)
        if not same_boot:
            await asyncio.sleep(boot_id_late_s)
            await self._patch_status(name, {"nodeInfo": {"bootID": node.machine.boot_id}})
        node.up = True
        for pod in list(self._pods.values()):
            self._take(pod)
        return node.machine

    def reboot(self, name: str, *, down_s: float = 0.3, shown_unknown: bool = True) -> None:
        """Reboot in the background: safe to call from a pod that runs on that machine and dies with it.

        `shown_unknown`: Ready goes Unknown meanwhile, which the node controller does after its grace.
        """
        self.fail(name)
        self._own.append(self._tasks.create_task(self._come_back(name, down_s, shown_unknown)))

    async def _come_back(self, name: str, down_s: float, shown_unknown: bool) -> None:
        if shown_unknown:
            unknown = condition(
                "Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."
            )
            await self._patch_status(name, {"conditions": [unknown]}, as_kubelet=False)
        await asyncio.sleep(down_s)
        await self.recover(name)

    async def wait_rebooted(self, name: str, old_boot_id: str, *, deadline_s: float = 30.0) -> Machine:
        """Return once the machine is up in another boot."""
        async with asyncio.timeout(deadline_s):
            while not (self._nodes[name].up and self._nodes[name].machine.boot_id != old_boot_id):
                await asyncio.sleep(0.02)
        return self._nodes[name].machine

    async def remove(self, name: str) -> None:
        """The machine and its Node object go, as when a provider terminates an instance."""
        self.fail(name)
        del self._nodes[name]
        with contextlib.suppress(Refused):
            await self._wire.request("DELETE", f"/api/v1/nodes/{name}")

    async def reregister(self, name: str, *, same_machine: bool = True) -> Machine:
        """Node deleted and registered anew under its name: new uid, no annotation, no taint of ours."""
        old = self._nodes[name].machine
        await self.remove(name)
        machine = old.rebooted() if same_machine else Machine(name, labels=old.labels)
        await self._register(machine)
        return machine

    # -- node objects ---------------------------------------------------------------------------

    async def _register(self, machine: Machine) -> None:
        async with self._writes:
            await self._wire.request("POST", "/api/v1/nodes", node_object(machine))
            await self._retrying(
                "PATCH", f"/api/v1/nodes/{machine.name}/status", {"status": node_status(machine)}
            )
            lease = {
                "metadata": {"name": machine.name, "namespace": "kube-node-lease"},
                "spec": self._lease_spec(machine.name),
            }
            with contextlib.suppress(Refused):
                await self._wire.request(
                    "POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", lease
                )
        # The node lifecycle controller taints new nodes until it has seen them Ready.
        self._nodes[machine.name] = _Node(machine)
        for pod in list(self._pods.values()):
            self._take(pod)

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            async with asyncio.TaskGroup() as group:
                for name in [name for name, node in self._nodes.items() if node.up]:
                    group.create_task(self._renew(name))

    async def _renew(self, name: str) -> None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}"
        async with self._writes:
            # A lost heartbeat is normal life; the next one follows.
            with contextlib.suppress(Refused, OSError, TimeoutError):
                await self._wire.request("PATCH", path, {"spec": self._lease_spec(name)}, as_kubelet=name)

    def _lease_spec(self, name: str) -> Json:
        return {
            "holderIdentity": name,
            "leaseDurationSeconds": 40,
            "renewTime": dt.datetime.now(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        }

    async def _patch_status(self, name: str, status: Json, *, as_kubelet: bool = True) -> None:
        await self._retrying(
            "PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, as_kubelet=name if as_kubelet else ""
        )

    async def _retrying(
        self, method: str, path: str, body: Json | None = None, *, as_kubelet: str = ""
    ) -> Any:
        """Until the server answers: it may be down for a while. 404 and 409 mean the object moved on."""
        while True:
            try:
                return await self._wire.request(method, path, body, as_kubelet=as_kubelet)
            except (OSError, TimeoutError):
                await asyncio.sleep(RETRY_S)
            except Refused as refused:
                if refused.answer.status in (404, 409):
                    return None
                if refused.answer.status not in (429, 500, 503, 504):
                    raise
                await asyncio.sleep(RETRY_S)

    # -- pods -----------------------------------------------------------------------------------

    async def _follow_pods(self) -> None:
        while True:
            try:
                listed = await self._wire.request("GET", "/api/v1/pods?fieldSelector=spec.nodeName!=")
                current = {pod["metadata"]["uid"] for pod in listed["items"]}
                for uid in [uid for uid in self._pods if uid not in current]:
                    self._gone(uid)
                for pod in listed["items"]:
                    self._seen(pod)
                version = listed["metadata"]["resourceVersion"]
                path = f"/api/v1/pods?watch=1&fieldSelector=spec.nodeName!=&timeoutSeconds={WATCH_S}"
                async for event in self._wire.watch(f"{path}&resourceVersion={version}"):
                    if event["type"] == "ERROR":
                        break
                    if event["type"] == "DELETED":
                        self._gone(event["object"]["metadata"]["uid"])
                    else:
                        self._seen(event["object"])
            except (OSError, TimeoutError, Refused):
                await asyncio.sleep(RETRY_S)

    def _seen(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        before = self._pods.get(uid)
        self._pods[uid] = pod
        deletion_is_new = "deletionTimestamp" in pod["metadata"] and (
            before is None or "deletionTimestamp" not in before["metadata"]
        )
        node = self._nodes.get(pod["spec"]["nodeName"])
        if deletion_is_new and node is not None and uid in node.pods:
            node.pods.pop(uid).cancel()
        self._take(pod)

    def _gone(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        node = self._nodes.get(pod["spec"]["nodeName"]) if pod else None
        if node is not None:
            node.seen_running.discard(uid)
            task = node.pods.pop(uid, None)
            if task is not None:
                task.cancel()

    def _take(self, pod: Json) -> None:
        """Give the pod a task when its machine is ours, up, and nothing handles it yet."""
        uid = pod["metadata"]["uid"]
        node = self._nodes.get(pod["spec"]["nodeName"])
        if node is None or not node.up or uid in node.pods:
            return
        node.pods[uid] = self._tasks.create_task(self._live(pod, node))

    async def _live(self, pod: Json, node: _Node) -> None:
        metadata = pod["metadata"]
        finished = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if "deletionTimestamp" in metadata:
            await self._terminate(pod, node, finished=finished)
            return
        if finished:
            return
        lost = metadata["uid"] in node.seen_running and pod["spec"].get("restartPolicy") == "Never"
        if lost and not self._rerun_after_reboot:
            await self._finish(pod, node, Exit(EXIT_LOST), reason="Unknown")
            return
        node.seen_running.add(metadata["uid"])
        await self._set_status(pod, node, running_status(pod))
        if self._run_pod is None:
            return
        ended = await self._run_pod(pod, node.machine)
        if ended is not None:
            await self._finish(pod, node, ended, reason="Completed" if ended.code == 0 else "Error")

    async def _terminate(self, pod: Json, node: _Node, *, finished: bool) -> None:
        grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        await asyncio.sleep(min(grace_s, self.shutdown_s))
        if not finished and pod["spec"].get("restartPolicy") == "Never":
            # The Job controller counts a pod only once it has a terminal phase.
            await self._finish(pod, node, Exit(EXIT_KILLED), reason="Error")
        metadata = pod["metadata"]
        await self._retrying(
            "DELETE",
            f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}",
            {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}},
            as_kubelet=node.machine.name,
        )

    async def _finish(self, pod: Json, node: _Node, ended: Exit, *, reason: str) -> None:
        await self._set_status(pod, node, ended_status(pod, ended, reason))

    async def _set_status(self, pod: Json, node: _Node, status: Json) -> None:
        metadata = pod["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        async with self._writes:
            await self._retrying("PATCH", path, body, as_kubelet=node.machine.name)


def running_status(pod: Json) -> Json:
    """What a kubelet reports for a pod whose containers all run."""
    now = timestamp()
    return {
        "phase": "Running",
        "startTime": now,
        "podIP": f"10.{uuid.UUID(pod['metadata']['uid']).int % 250}.0.1",
        "conditions": [
            condition(name, "True") for name in ("Initialized", "ContainersReady", "Ready", "PodScheduled")
        ],
        "containerStatuses": [
            _container(c, {"running": {"startedAt": now}}, ready=True) for c in pod["spec"]["containers"]
        ],
    }


def ended_status(pod: Json, ended: Exit, reason: str) -> Json:
    """What a kubelet reports for a pod whose containers have all ended."""
    terminated = {
        "exitCode": ended.code,
        "reason": reason,
        "message": ended.message,
        "startedAt": pod.get("status", {}).get("startTime") or timestamp(),
        "finishedAt": timestamp(),
    }
    return {
        "phase": "Succeeded" if ended.code == 0 else "Failed",
        "conditions": [condition(name, "False", "PodCompleted") for name in ("ContainersReady", "Ready")],
        "containerStatuses": [
            _container(c, {"terminated": terminated}, ready=False) for c in pod["spec"]["containers"]
        ],
    }


def _container(container: Json, state: Json, *, ready: bool) -> Json:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "restartCount": 0,
        "ready": ready,
        "started": ready,
        "state": state,
    }
