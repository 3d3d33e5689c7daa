"""`outlast controller`: the leader-elected process. Flags and environment only; wiring is in controller/."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from outlast.adapters.event_log import write_events_to_stderr
from outlast.cli import UserError
from outlast.model.names import CONTROLLER_LEASE, SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from outlast.adapters.kubernetes import Access, LeaseTimes
    from outlast.controller.main import Controller


def controller(
    *,
    kubeconfig: Annotated[Path | None, Parameter(env_var="OUTLAST_KUBECONFIG")] = None,
    context: str = "",
    namespace: Annotated[str, Parameter(env_var="OUTLAST_NAMESPACE")] = SYSTEM_NAMESPACE,
    identity: Annotated[str, Parameter(env_var="POD_NAME")] = "",
    repair_image: Annotated[str, Parameter(env_var="OUTLAST_REPAIR_IMAGE")] = "",
    repair_command: Annotated[str, Parameter(env_var="OUTLAST_REPAIR_COMMAND")] = "",
    lease_duration: Annotated[float, Parameter(env_var="OUTLAST_LEASE_DURATION")] = 15.0,
    renew_deadline: Annotated[float, Parameter(env_var="OUTLAST_RENEW_DEADLINE")] = 10.0,
    retry_period: Annotated[float, Parameter(env_var="OUTLAST_RETRY_PERIOD")] = 2.0,
    metrics_address: Annotated[str, Parameter(env_var="OUTLAST_METRICS_ADDRESS")] = "",
) -> int:
    """Decide what is to be done about sick nodes, and do what policies allow.

    Example: outlast controller --kubeconfig ~/.kube/config

    Parameters
    ----------
    kubeconfig
        Cluster to work on; default: KUBECONFIG, ~/.kube/config, or the pod's service account.
    context
        Context of the kubeconfig to use.
    namespace
        Where the Leases and the repair Jobs live.
    identity
        Name of this replica in the election: its pod's name, which the server-side fence compares.
    repair_image
        Image of repair Jobs; default: the released image of this version.
    repair_command
        For tests: what a repair Job's container runs instead of `outlast act reboot`.
    lease_duration
        Seconds that other replicas wait after the last renewal they saw before one takes over.
    renew_deadline
        Seconds without a successful renewal after which the leader stops writing.
    retry_period
        Seconds between two tries to renew or to take over.
    metrics_address
        HOST:PORT to serve /metrics (Prometheus) and /healthz on, such as :9478; default: nowhere.
    """
    write_events_to_stderr()
    from outlast.adapters.kubernetes import KubeconfigError, LeaseTimes, find_access

    try:
        access = find_access(kubeconfig, context=context)
        times = LeaseTimes(lease_s=lease_duration, renew_deadline_s=renew_deadline, retry_s=retry_period)
    except KubeconfigError as error:
        raise UserError(str(error)) from error
    except ValueError as error:
        raise UserError(f"these election times cannot be safe together: {error}") from error
    if metrics_address:
        from outlast.adapters.metrics_page import parse_address

        try:
            parse_address(metrics_address)
        except ValueError as error:
            raise UserError(f"--metrics-address: {error}.") from error
    name = identity or f"{os.uname().nodename}-{os.getpid()}"
    return asyncio.run(_run(access, name, namespace, repair_image, repair_command, times, metrics_address))


async def _run(
    access: Access,
    identity: str,
    namespace: str,
    image: str,
    command: str,
    times: LeaseTimes,
    metrics_address: str,
) -> int:
    from outlast.adapters.clock import SystemClock
    from outlast.adapters.kubernetes import KubernetesCluster, LeaderElection, QueuedEvents
    from outlast.controller.main import Controller
    from outlast.controller.options import ControllerOptions
    from outlast.remediation.act import RepairOptions

    repair = RepairOptions(namespace=namespace)
    if image:
        repair = replace(repair, image=image)
    if command:
        repair = replace(repair, command=tuple(command.split()))
    options = ControllerOptions(namespace=namespace, repair=repair)
    clock, rng = SystemClock(), Random()  # noqa: S311 - spreads retries
    async with KubernetesCluster(access, clock=clock, rng=rng) as cluster:
        recorder = QueuedEvents(cluster, clock=clock, rng=rng, host=identity)
        elector = LeaderElection(
            cluster,
            clock=clock,
            rng=rng,
            namespace=namespace,
            identity=identity,
            name=CONTROLLER_LEASE,
            # A write lasts as long as this client lets it; the fence has to keep that much in hand.
            times=replace(times, request_deadline_s=cluster.request_deadline_s),
        )
        process = Controller(cluster, elector, recorder, clock, rng, options)
        also = [recorder.run()]
        if metrics_address:
            from outlast.controller.metrics import served

            also.append(served(metrics_address, process, clock).run())
        await _until_stopped(process, also)
    return 0


async def _until_stopped(process: Controller, also: list[Coroutine[Any, Any, None]]) -> None:
    """Run until SIGINT or SIGTERM; the lease is given back on the way out."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with asyncio.TaskGroup() as group:
        work = [group.create_task(process.run()), *(group.create_task(other) for other in also)]
        await stopped.wait()
        for task in work:
            task.cancel()
