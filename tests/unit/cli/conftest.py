"""A Kubernetes API in a thread of its own, for commands that run an event loop of theirs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.model.cluster import NODES
from outlast.model.health import NODE_HEALTHS
from outlast.model.incident import INCIDENTS
from outlast.model.policy import REMEDIATION_POLICIES
from outlast.schema.crds import definitions
from outlast.sim.apiserver import ApiServer, Store
from outlast.sim.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS
from outlast.web.state import FleetState

STOP_S = 10


class ServedStore:
    """The store behind a running API server; it is only touched while no command runs."""

    def __init__(self, server: ApiServer, kubeconfig: Path) -> None:
        self.store: Store = server.store
        self.kubeconfig = kubeconfig

    def fill(self, state: FleetState) -> None:
        """Put these objects in, status included."""
        for node in state.nodes.values():
            self.store.create(NODES, msgspec.json.decode(msgspec.json.encode(node)))
        for kind, objects in (
            (NODE_HEALTHS, state.healths),
            (INCIDENTS, state.incidents),
            (REMEDIATION_POLICIES, state.policies),
        ):
            for name, obj in objects.items():
                body = {
                    "apiVersion": kind.api_version,
                    "kind": kind.name,
                    **msgspec.json.decode(msgspec.json.encode(obj)),
                }
                if kind is INCIDENTS:
                    body["spec"]["nodeUID"] = self.store.entry(NODES, obj.spec.node_name).uid
                self.store.create(kind, body)
                self.store.update(kind, name, _with_status(body), subresource="status")


def _with_status(body: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda stored: {**stored, "status": body["status"]}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    """An embedded API server with our kinds, and a kubeconfig that points there."""
    loop = asyncio.new_event_loop()
    server = ApiServer()
    for definition in definitions():
        server.store.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(STOP_S)
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        yield ServedStore(server, kubeconfig)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(STOP_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_S)
        loop.close()
