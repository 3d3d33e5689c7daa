"""The smallest HTTP: right for Prometheus and probes, bounded for everybody else."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from outlast.adapters.clock import SystemClock
from outlast.adapters.metrics_page import (
    CONNECTIONS_MAX,
    REQUEST_BYTES_MAX,
    MetricsPage,
    parse_address,
)
from outlast.model.metrics import CONTENT_TYPE

BODY = b"outlast_build_info 1\n"


@asynccontextmanager
async def serving(*, well: bool = True) -> AsyncIterator[int]:
    """A page on a free port of the loopback."""
    page = MetricsPage(
        ("127.0.0.1", 0), clock=SystemClock(), page=lambda: BODY, health=lambda: (well, "words\n")
    )
    task = asyncio.create_task(page.run())
    async with asyncio.timeout(5):
        while not page.port:
            await asyncio.sleep(0)
    try:
        yield page.port
    finally:
        task.cancel()


async def said(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.asyncio
async def test_a_scraper_gets_the_page() -> None:
    """By a real HTTP client, with the type that Prometheus wants."""

    def get(port: int) -> tuple[str | None, bytes]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics?x=1", timeout=5) as answer:
            return answer.headers["Content-Type"], answer.read()

    async with serving() as port:
        assert await asyncio.to_thread(get, port) == (CONTENT_TYPE, BODY)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"200", b"words\n"),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", b"200", b""),
        (b"GET / HTTP/1.1\r\n\r\n", b"404", b"there are /metrics and /healthz\n"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405", b"only GET and HEAD\n"),
        (b"\x16\x03\x01\x02\r\n\r\n", b"400", None),
        (b"GET /metrics\r\n\r\n", b"400", None),
        (b"A" * (4 * REQUEST_BYTES_MAX), b"400", None),
    ],
)
async def test_what_is_asked_decides(request_: bytes, status: bytes, body: bytes | None) -> None:
    """Other paths, methods and nonsense are refused in one line; a head that is too long ends there."""
    async with serving() as port:
        answer = await said(port, request_)
    if len(request_) > REQUEST_BYTES_MAX and not answer:
        return  # cut off with the rest of the request still on its way
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert body is None or rest == body


@pytest.mark.asyncio
async def test_an_ill_process_says_503() -> None:
    """The words say what is wrong."""
    async with serving(well=False) as port:
        assert (await said(port, b"GET /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 503")


@pytest.mark.asyncio
async def test_idle_connections_do_not_pile_up() -> None:
    """Beyond the limit a connection is cut at once; when the idle ones go, the page is there again."""
    async with serving() as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        for _, writer in held:
            writer.write(b"GET ")
            await writer.drain()
        assert await said(port, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(5):
            while BODY not in await said(port, b"GET /metrics HTTP/1.1\r\n\r\n"):
                await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_a_taken_address_is_waited_for_and_ends_nothing() -> None:
    """Metrics are worth no outage of the process."""
    async with serving() as port:
        other = MetricsPage(
            ("127.0.0.1", port), clock=SystemClock(), page=lambda: BODY, health=lambda: (True, "")
        )
        task = asyncio.create_task(other.run())
        assert BODY in await said(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert not task.done()
        assert other.port == 0
        task.cancel()


def test_addresses_are_read_as_people_write_them() -> None:
    """All interfaces, one, IPv6; anything else is one sentence."""
    assert parse_address(":9477") == ("", 9477)
    assert parse_address("127.0.0.1:9477") == ("127.0.0.1", 9477)
    assert parse_address("[::1]:80") == ("::1", 80)
    for wrong in ("9477", "a:b", "a:", "a:-1", "a:70000", "a:²"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            parse_address(wrong)
