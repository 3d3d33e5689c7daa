"""One suite, two servers: the embedded API server and a real kube-apiserver.

Each test takes `server` and runs against both; a difference is a bug of the embedded one. The
embedded server runs in a thread of its own, so that tests block like any client.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from outlast.sim.apiserver import ApiServer
from tests.controlplane import binaries
from tests.controlplane.access import Access
from tests.controlplane.versions import PROGRAMS
from tests.left_out import leave_out

WAIT_DEADLINE_S = 15.0
KUBECTL_DEADLINE_S = 60.0
WATCH_DEADLINE_S = 20.0
_numbers = itertools.count(1)


def until(what: str, look: Callable[[], Any], deadline_s: float = WAIT_DEADLINE_S) -> Any:
    """Return what `look` finds as soon as it is true; AssertionError at the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        time.sleep(0.05)


class EmbeddedThread:
    """The embedded server on an event loop in a thread."""

    def __init__(self, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server: ApiServer = self.call(self._make, options)

    async def _make(self, options: dict[str, Any]) -> ApiServer:
        server = ApiServer(**options)
        await server.start()
        return server

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a coroutine function on the server's loop."""
        return asyncio.run_coroutine_threadsafe(function(*arguments), self._loop).result(WAIT_DEADLINE_S)

    async def compact(self) -> None:
        """Forget the past."""
        self.server.compact()

    def stop(self) -> None:
        """End the server and its loop."""
        self.call(self.server.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_DEADLINE_S)
        self._loop.close()


@dataclass
class Server:
    """What a test needs of a server."""

    name: str
    access: Access
    embedded: EmbeddedThread | None = None
    folder: Path = field(default_factory=Path)

    def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """One request, whatever the answer."""
        return self.access.ask(method, path, body, **options)

    def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """One request that must succeed; the body."""
        answer = self.access.ask(method, path, body, **options)
        assert answer.ok, f"{method} {path}: {answer.status} {answer.message}"
        return answer.body

    def compact(self) -> None:
        """Make the embedded server forget the past."""
        assert self.embedded is not None
        self.embedded.call(self.embedded.compact)

    def watch(self, path: str) -> Watching:
        """Open a watch."""
        return Watching(self.access, path)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> Any:
        """Run kubectl on this server; the finished process."""
        program = kubectl_program()
        config = self.access.write_kubeconfig(self.folder / f"kubeconfig-{self.name}", namespace="default")
        answer = subprocess.run(
            [program, f"--kubeconfig={config}", *arguments],
            input=stdin,
            env={"HOME": str(self.folder), "PATH": os.environ.get("PATH", "")},
            capture_output=True,
            text=True,
            timeout=KUBECTL_DEADLINE_S,
            check=False,
        )
        assert not check or answer.returncode == 0, f"kubectl {' '.join(arguments)}: {answer.stderr}"
        return answer


class Watching:
    """A watch read line by line from a socket of its own."""

    def __init__(self, access: Access, path: str) -> None:
        host, port = access.url.split("://", 1)[1].split(":")
        raw = socket.create_connection((host, int(port)), timeout=WATCH_DEADLINE_S)
        context = access.ssl_context()
        self._socket = context.wrap_socket(raw, server_hostname=host) if context else raw
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}:{port}", "Accept: application/json"]
        lines += [f"{name}: {value}" for name, value in access.headers()]
        self._socket.sendall(("\r\n".join([*lines, "", ""])).encode())
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.chunked = False
        while (line := self._file.readline()) not in (b"\r\n", b""):
            self.chunked |= line.lower().startswith(b"transfer-encoding: chunked")
        self._buffer = b""

    def line(self) -> dict[str, Any] | None:
        """The next event; None at the end of the stream."""
        while b"\n" not in self._buffer:
            size = int(self._file.readline().strip() or b"0", 16)
            if size == 0:
                return None
            self._buffer += self._file.read(size)
            self._file.readline()
        line, self._buffer = self._buffer.split(b"\n", 1)
        event: dict[str, Any] = json.loads(line)
        return event

    def events(self, count: int) -> list[tuple[str, str]]:
        """Type and object name of the next events, bookmarks left out."""
        found: list[tuple[str, str]] = []
        while len(found) < count:
            event = self.line()
            assert event is not None, f"the watch ended after {found}"
            if event["type"] != "BOOKMARK":
                found.append((event["type"], event["object"]["metadata"]["name"]))
        return found

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def kubectl_program() -> str:
    """kubectl of the reference's release, else the one on PATH."""
    wanted = next(p for p in PROGRAMS if p.name == "kubectl")
    found = binaries.find(wanted)
    program = str(found) if found else shutil.which("kubectl")
    if not program:
        leave_out("the kubectl tests", "python -m tests.controlplane.binaries")
    return program


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The embedded server, shared by the session as the real one is."""
    thread = EmbeddedThread()
    yield Server("embedded", Access(thread.server.url), thread, tmp_path_factory.mktemp("embedded"))
    thread.stop()


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.controlplane)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Server:
    """Each of the two servers in turn."""
    if request.param == "embedded":
        found: Server = request.getfixturevalue("embedded")
        return found
    plane = request.getfixturevalue("controlplane")
    return Server("real", plane.admin, folder=tmp_path)


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"t{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def space(server: Server, unique: str) -> Iterator[str]:
    """A namespace of this test."""
    server.ok("POST", "/api/v1/namespaces", {"metadata": {"name": unique}})
    # What the controller-manager puts into every new namespace, so that no test sees it arrive.
    for furniture in (
        () if server.name == "embedded" else ("serviceaccounts/default", "configmaps/kube-root-ca.crt")
    ):
        path = f"/api/v1/namespaces/{unique}/{furniture}"
        until(furniture, lambda path=path: server.ask("GET", path).ok)
    yield unique
    server.ask("DELETE", f"/api/v1/namespaces/{unique}")


@pytest.fixture
def node(server: Server, unique: str) -> Iterator[str]:
    """A ready Node of this test that has no kubelet; its name."""
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    amounts = {"pods": "110", "cpu": "8", "memory": "16Gi"}
    status = {"conditions": [ready], "allocatable": amounts, "capacity": amounts}
    server.ok(
        "POST", "/api/v1/nodes", {"metadata": {"name": unique, "labels": {"of": "test"}}, "status": status}
    )
    until(
        "the controllers have looked at the node",
        lambda: _settled(server.ok("GET", f"/api/v1/nodes/{unique}")),
    )
    yield unique
    server.ask("DELETE", f"/api/v1/nodes/{unique}")


def _settled(node: dict[str, Any]) -> bool:
    return "annotations" in node["metadata"] and not node["spec"].get("taints")


@pytest.fixture
def maps(server: Server, space: str) -> str:
    """The path of the ConfigMaps in a namespace of this test."""
    return f"/api/v1/namespaces/{space}/configmaps"
