"""`outlast web`: the dashboard of a cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from outlast.cli import EXIT_OK, UserError
from outlast.cli.connection import Context, Kubeconfig, connected
from outlast.cli.reading import run

if TYPE_CHECKING:
    from outlast.ports.cluster import Cluster


def web(
    *,
    host: Annotated[
        str, Parameter(help="Address to listen on; loopback unless you say otherwise.")
    ] = "127.0.0.1",
    port: Annotated[int, Parameter(help="Port to listen on; 0 takes a free one.")] = 8080,
    allow_host: Annotated[
        tuple[str, ...], Parameter(help="Host names browsers may use, beside loopback; repeat for more.")
    ] = (),
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> int:
    """Serve the dashboard: fleet, incidents, policies, live. It only reads.

    Example: outlast web --port 8080
    """
    try:
        import jinja2
        import starlette
        import uvicorn
    except ImportError as error:
        raise UserError(
            f"the dashboard needs the package {error.name}: pip install 'outlast[web]'"
        ) from error
    del jinja2, starlette, uvicorn
    return run("web", _web(host, port, allow_host, kubeconfig, context))


async def _web(host: str, port: int, hosts: tuple[str, ...], kubeconfig: str, context: str) -> int:
    from outlast.cli.stopping import stop_event
    from outlast.web.serve import PortTaken, bind

    try:
        taken = bind(host, port)
    except PortTaken as error:
        raise UserError(str(error)) from error
    async with stop_event() as stopped, connected(kubeconfig, context) as cluster:
        await _serve(cluster, taken, hosts, stopped)
    return EXIT_OK


async def _serve(cluster: Cluster, taken: object, hosts: tuple[str, ...], stopped: asyncio.Event) -> None:
    import socket

    from outlast.adapters.clock import SystemClock
    from outlast.web.app import Dashboard
    from outlast.web.explained import explain_incident
    from outlast.web.follow import Follower
    from outlast.web.live import Hub
    from outlast.web.serve import serving

    assert isinstance(taken, socket.socket)
    hub, clock = Hub(), SystemClock()
    follower = Follower(cluster, hub, clock)
    dashboard = Dashboard(follower.state, explain_incident, hub, clock, clock)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(follower.run())
        async with serving(dashboard, taken, hosts) as url:
            print(f"outlast web: {url}", flush=True)
            await stopped.wait()
        following.cancel()
