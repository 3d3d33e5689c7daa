"""`outlast quiesce`: have the agent of a node let go of the GPUs, and wait until it has.

NVML is a client of the GPU like any program, and `nvidia-smi --gpu-reset`, a change of the MIG layout or
unloading the driver fail while there is one.
"""

from __future__ import annotations

import asyncio
import getpass
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final
from uuid import uuid4

from cyclopts import Parameter, validators

from outlast.cli import EXIT_FAULT, EXIT_OK, EXIT_UNKNOWN, UserError
from outlast.cli.connection import Context, Kubeconfig, connected
from outlast.cli.reading import run
from outlast.model.quiesce import QUIESCE_MAX_S, TEXT_MAX

if TYPE_CHECKING:
    from outlast.model.cluster import Node
    from outlast.model.quiesce import QuiesceRequest
    from outlast.ports.cluster import Cluster

MINUTES_MAX: Final = QUIESCE_MAX_S / 60
POLL_S: Final = 0.5


def quiesce(
    node: Annotated[str, Parameter(help="The node.")],
    /,
    *,
    minutes: Annotated[
        float, Parameter(validator=validators.Number(gt=0, lte=MINUTES_MAX), help="For how long, at most.")
    ] = 10.0,
    by: Annotated[str, Parameter(help="Who asks, for others to read; default: your user name.")] = "",
    wait: Annotated[
        float, Parameter(validator=validators.Number(gt=0, lte=600), help="Seconds to wait for the agent.")
    ] = 60.0,
    off: Annotated[bool, Parameter(help="Take the request away: the agent looks again.")] = False,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> int:
    """Free the GPUs of a node from outlast's own agent. Cordons and drains nothing.

    Exit code 0: no process of the agent holds a GPU. 1: one hangs in the driver and cannot let go.
    3: the agent has not answered.

    Example: outlast quiesce gpu-0417 && ssh gpu-0417 nvidia-smi --gpu-reset -i 3
    """
    asker = (by or _user())[:TEXT_MAX]
    work = (
        _resume(node, kubeconfig, context)
        if off
        else _quiesce(node, timedelta(minutes=minutes), asker, wait, kubeconfig, context)
    )
    return run("quiesce", work)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a name
        return "outlast quiesce"


async def _quiesce(
    name: str, period: timedelta, by: str, wait_s: float, kubeconfig: str, context: str
) -> int:
    from outlast.adapters.clock import SystemClock
    from outlast.model.quiesce import QuiesceRequest, request_of
    from outlast.remediation.act.nodes import NodeAnswer
    from outlast.remediation.act.quiesce import ask

    async with connected(kubeconfig, context) as cluster:
        node = await _node(cluster, name)
        until = (SystemClock().now() + period).replace(microsecond=0)
        request = QuiesceRequest(id=uuid4().hex, by=by, until=until)
        answer, node = await ask(cluster, node, request, lambda: None)
        if answer is NodeAnswer.TAKEN and (standing := request_of(node)) is not None:
            raise UserError(
                f"{standing.by} has asked for the same until {standing.until:%H:%M:%S} UTC; "
                f"`outlast quiesce {name} --off` ends that."
            )
        return await _until_released(cluster, node, request, until, wait_s)


async def _until_released(
    cluster: Cluster, node: Node, request: QuiesceRequest, until: datetime, wait_s: float
) -> int:
    from outlast.adapters.clock import SystemClock
    from outlast.model.health import NODE_HEALTHS
    from outlast.ports.cluster import NotFound
    from outlast.remediation.act.quiesce import Quieted, progress

    name, said = node.metadata.name, (Quieted.WAITING, "")
    try:
        async with asyncio.timeout(wait_s):
            while said[0] is not Quieted.RELEASED:
                try:
                    said = progress(await cluster.get(NODE_HEALTHS, name), node, request)
                except NotFound:
                    said = Quieted.WAITING, ""
                await SystemClock().sleep(POLL_S)
    except TimeoutError:
        stays = f"The request stands until {until:%H:%M:%S} UTC; `outlast quiesce {name} --off` ends it."
        if said[0] is Quieted.HELD:
            print(f"{name}: the GPUs are not free: {said[1]}. {stays}", file=sys.stderr)
            return EXIT_FAULT
        print(f"{name}: its agent has not answered in {wait_s:g} s. {stays}", file=sys.stderr)
        return EXIT_UNKNOWN
    print(
        f"{name}: no process of outlast holds a GPU, until {until:%H:%M:%S} UTC. "
        f"`outlast quiesce {name} --off` when you are done."
    )
    return EXIT_OK


async def _resume(name: str, kubeconfig: str, context: str) -> int:
    from outlast.model.quiesce import request_of
    from outlast.remediation.act.nodes import NodeAnswer
    from outlast.remediation.act.quiesce import withdraw

    async with connected(kubeconfig, context) as cluster:
        node = await _node(cluster, name)
        standing = request_of(node)
        if standing is None:
            print(f"{name}: nobody has asked for its GPUs.")
            return EXIT_OK
        answer, _ = await withdraw(cluster, node, standing.id, lambda: None)
        if answer is not NodeAnswer.DONE:
            print(f"{name}: somebody else changed the request at the same time; try again.", file=sys.stderr)
            return EXIT_UNKNOWN
    print(f"{name}: the agent looks at the GPUs again.")
    return EXIT_OK


async def _node(cluster: Cluster, name: str) -> Node:
    from outlast.model.cluster import NODES
    from outlast.ports.cluster import NotFound

    try:
        return await cluster.get(NODES, name)
    except NotFound:
        raise UserError(f"there is no node called {name!r}.") from None
