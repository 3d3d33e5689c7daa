"""A page for Prometheus and a word on one's own life, over the smallest HTTP that both sides understand.

aiohttp's server would cost each node 1.2 MB of memory (measured) for two fixed pages. Here nothing of the
request is kept but its first line; size, time and number of connections are bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from outlast.model.metrics import CONTENT_TYPE
from outlast.ports.clock import Clock

log = structlog.get_logger("outlast.metrics")

REQUEST_BYTES_MAX: Final = 8192
REQUEST_DEADLINE_S: Final = 5.0
CONNECTIONS_MAX: Final = 16
BIND_RETRY_S: Final = 30.0
PLAIN: Final = "text/plain; charset=utf-8"

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, [HOST]:PORT or :PORT (all interfaces). Raises ValueError with one sentence."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(f"an address for metrics is HOST:PORT, such as 127.0.0.1:9477, not {text!r}")
    return host, int(port)


class MetricsPage:
    """`/metrics` and `/healthz` of a process.

    `page` makes the metrics; `health` says whether the process works, and the sentence that tells of it.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        clock: Clock,
        page: Callable[[], bytes],
        health: Callable[[], tuple[bool, str]],
    ) -> None:
        self._address = address
        self._clock = clock
        self._page = page
        self._health = health
        self._open = 0
        self.port = 0
        """Where it listens; 0 while it does not."""

    async def run(self) -> None:
        """Serve for ever. An address that cannot be had is tried again: metrics are worth no outage."""
        host, port = self._address
        complained = False
        while True:
            try:
                server = await asyncio.start_server(
                    self._serve, host or None, port, limit=REQUEST_BYTES_MAX, backlog=CONNECTIONS_MAX
                )
            except OSError as error:
                if not complained:
                    why = error.strerror or str(error)
                    log.warning("no metrics: cannot listen, will retry", host=host, port=port, why=why)
                complained = True
                await self._clock.sleep(BIND_RETRY_S)
                continue
            self.port = server.sockets[0].getsockname()[1]
            async with server:
                await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._open += 1
        try:
            async with asyncio.timeout(REQUEST_DEADLINE_S):
                writer.write(self._answer(await _head(reader)))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass
        finally:
            writer.transport.abort()
            self._open -= 1

    def _answer(self, head: bytes | None) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ") if head is not None else []
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(400, b"this is no HTTP request, or one that is too long\n")
        bodyless = words[0] == b"HEAD"
        if words[0] not in (b"GET", b"HEAD"):
            return _response(405, b"only GET and HEAD\n")
        path = words[1].partition(b"?")[0]
        if path == b"/metrics":
            return _response(200, self._page(), CONTENT_TYPE, bodyless=bodyless)
        if path == b"/healthz":
            well, text = self._health()
            return _response(200 if well else 503, text.encode(), bodyless=bodyless)
        return _response(404, b"there are /metrics and /healthz\n", bodyless=bodyless)


async def _head(reader: asyncio.StreamReader) -> bytes | None:
    """Everything before the empty line; None where that is too long or does not come."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None


def _response(status: int, body: bytes, content_type: str = PLAIN, *, bodyless: bool = False) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if bodyless else body)
