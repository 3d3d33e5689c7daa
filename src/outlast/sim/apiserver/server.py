"""The server as one object: start, stop, and the handles that tests and the simulator hold."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import yaml
from aiohttp import web

from outlast.ports.clock import Clock
from outlast.sim.apiserver.app import Frontend
from outlast.sim.apiserver.controllers import Controllers
from outlast.sim.apiserver.faults import Faults
from outlast.sim.apiserver.store import Store

SHUTDOWN_TIMEOUT_S = 0.5


class ApiServer:
    """A Kubernetes API on loopback. `tokens` maps bearer tokens to user names; empty lets everybody in.

    Object timestamps come from `clock`; protocol time-outs follow the event loop.
    """

    def __init__(self, clock: Clock | None = None, *, tokens: Mapping[str, str] | None = None) -> None:
        now = clock.now if clock is not None else _wall_clock
        self.store = Store(now)
        self.faults = Faults()
        self.url = ""
        self._tokens = dict(tokens or {})
        self._controllers = Controllers(self.store)
        self._runner: web.ServerRunner | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen; the URL that clients use. OSError where the address is taken."""
        frontend = Frontend(self.store, self.faults, self._tokens)
        server = web.Server(frontend.handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
        await self._runner.setup()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError:
            listener.close()
            await self._runner.cleanup()
            raise
        await web.SockSite(self._runner, listener).start()
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{listener.getsockname()[1]}"
        loop = asyncio.get_running_loop()
        self._running = loop.create_task(self._controllers.run(), name="embedded-controllers")
        return self.url

    async def stop(self) -> None:
        """End all watches and stop listening."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
            self._running = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> ApiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def compact(self) -> None:
        """Forget the past, as etcd does every five minutes: older watches are answered 410."""
        self.store.storage.compact()

    def kubeconfig(self, token: str = "", namespace: str = "default") -> str:
        """A kubeconfig that points kubectl here."""
        user: dict[str, Any] = {"token": token} if token else {}
        context = {"cluster": "outlast", "user": "outlast", "namespace": namespace}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "outlast", "cluster": {"server": self.url}}],
            "users": [{"name": "outlast", "user": user}],
            "contexts": [{"name": "outlast", "context": context}],
            "current-context": "outlast",
        }
        return yaml.safe_dump(document, sort_keys=False)


def _wall_clock() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the default where no Clock is given
