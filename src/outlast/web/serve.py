"""Runs the dashboard's HTTP server inside a running event loop, and stops it without a trace."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable, Iterator

import uvicorn

from outlast.web.app import Dashboard

_GOODBYE_S = 2
"""Live readers are told to go and have this long to do so."""


class PortTaken(Exception):
    """The address cannot be bound; `str()` says which and why."""


class _Server(uvicorn.Server):
    """A server that leaves signals to the process it lives in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """Take the address; port 0 lets the system choose. Raises PortTaken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
        taken.listen()  # a browser that comes before the server is up waits for it
    except OSError as error:
        taken.close()
        raise PortTaken(
            f"cannot serve on {host}:{port}: {error.strerror or error}; choose another --port"
        ) from error
    return taken


def url_of(taken: socket.socket) -> str:
    """The address to open in a browser."""
    host, port = taken.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


@contextlib.asynccontextmanager
async def serving(
    dashboard: Dashboard, taken: socket.socket, hosts: Iterable[str] = ()
) -> AsyncIterator[str]:
    """Serve while the block runs; yields the address."""
    config = uvicorn.Config(
        dashboard.application(hosts),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_GOODBYE_S,
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(sockets=[taken]))
        try:
            yield url_of(taken)
        finally:
            dashboard.hub.close()
            server.should_exit = True
