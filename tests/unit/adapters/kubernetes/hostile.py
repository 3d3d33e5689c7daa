"""A tiny HTTP server that does what no API server should: cut lines, hang, lie, talk nonsense.

Raw sockets, so that a test decides over each byte. A test gives one coroutine that answers every call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Call:
    """One request, and the ways to answer it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_watch(self) -> bool:
        return "watch" in self.query

    @property
    def is_streaming_list(self) -> bool:
        return "sendInitialEvents" in self.query

    async def answer(
        self, status: int, body: Any = b"", *, content_type: str = "application/json", **headers: str
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.raw(self._head(status, content_type, headers, f"Content-Length: {len(data)}\r\n") + data)

    async def start(self, status: int = 200) -> None:
        """Begin a chunked answer."""
        await self.raw(self._head(status, "application/json", {}, "Transfer-Encoding: chunked\r\n"))

    async def chunk(self, data: bytes) -> None:
        await self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def event(self, type_: str, item: dict[str, Any]) -> None:
        """One watch line."""
        await self.chunk(json.dumps({"type": type_, "object": item}).encode() + b"\n")

    async def finish(self) -> None:
        """End a chunked answer in order."""
        await self.raw(b"0\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def drop(self) -> None:
        """Cut the connection."""
        self.writer.transport.abort()

    async def hang(self) -> None:
        """Say nothing until the client goes away."""
        await self.closed.wait()

    @staticmethod
    def _head(status: int, content_type: str, headers: dict[str, str], length: str) -> bytes:
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\n{more}{length}\r\n".encode()


Answerer = Callable[[Call], Awaitable[None]]


class HostileServer:
    """Counts calls and hands each to the test's coroutine."""

    def __init__(self, answerer: Answerer) -> None:
        self.calls: list[Call] = []
        self.url = ""
        self._answerer = answerer

    @property
    def watches(self) -> list[Call]:
        return [call for call in self.calls if call.is_watch]

    @property
    def lists(self) -> list[Call]:
        return [call for call in self.calls if call.method == "GET" and not call.is_watch]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                call = await self._read(head, reader, writer)
                self.calls.append(call)
                async with asyncio.TaskGroup() as group:
                    gone = group.create_task(_until_closed(reader, call))
                    await self._answerer(call)
                    gone.cancel()
        except* (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _read(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Call:
        first, *lines = head.decode().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        parts = urlsplit(target)
        return Call(method, parts.path, dict(parse_qsl(parts.query)), headers, body, writer)


async def _until_closed(reader: asyncio.StreamReader, call: Call) -> None:
    """Notices a client that goes away while its answer is still being made."""
    while not reader.at_eof():
        await asyncio.sleep(0.002)
    call.closed.set()


@asynccontextmanager
async def hostile(answerer: Answerer) -> AsyncIterator[HostileServer]:
    """A running server; everything it does is cut when the block ends."""
    state = HostileServer(answerer)
    server = await asyncio.start_server(state.serve, "127.0.0.1", 0)
    state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield state
    finally:
        server.close()
        for call in state.calls:
            call.drop()
            call.closed.set()
        await server.wait_closed()


def status(code: int, reason: str = "", message: str = "", **details: Any) -> dict[str, Any]:
    """A Status object."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        **({"details": details} if details else {}),
    }


def node(name: str, version: int, uid: str = "", **labels: str) -> dict[str, Any]:
    """A Node as the API server shows it."""
    metadata = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version), "labels": labels}
    return {"kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": {}, "status": {}}


def node_list(version: int, *nodes: dict[str, Any], token: str = "") -> dict[str, Any]:
    """A NodeList page."""
    metadata = {"resourceVersion": str(version)} | ({"continue": token} if token else {})
    return {"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": list(nodes) or None}


def bookmark(version: int, *, ends_list: bool = False) -> dict[str, Any]:
    """The object of a BOOKMARK event."""
    annotations = {"k8s.io/initial-events-end": "true"} if ends_list else {}
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": str(version), "annotations": annotations},
    }
