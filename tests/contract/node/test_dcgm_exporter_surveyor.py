"""Scraping dcgm-exporter: a real HTTP server on loopback that misbehaves in every way a test asks for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from aiohttp import web

from outlast.adapters.dcgm import exporter
from outlast.adapters.dcgm.exporter import DcgmExporterSurveyor
from outlast.model.observation.dcgm import DcgmExporterSurvey, DcgmProblem
from outlast.ports.node import Wanted
from tests.contract.node.test_dcgm_surveyor import Stepped
from tests.dcgm import recorded

pytestmark = pytest.mark.asyncio

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Exporter:
    """`answer` is what the next request gets."""

    def __init__(self) -> None:
        self.requests: list[web.Request] = []
        self.url = ""
        self.clock = Stepped()
        self.answer: Answer = self.page
        self.content = recorded("exporter-h100.prom")
        self.surveyor: DcgmExporterSurveyor

    async def page(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self.content, content_type="text/plain")

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        return await self.answer(request)

    async def look(self) -> DcgmExporterSurvey:
        self.clock.offset_s += exporter.POLL_INTERVAL_S
        return await self.surveyor.survey(Wanted())


@pytest_asyncio.fixture
async def there() -> AsyncIterator[Exporter]:
    served = Exporter()
    app = web.Application()
    app.router.add_get("/{any:.*}", served.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    served.url = f"http://{host}:{port}/metrics"
    served.surveyor = DcgmExporterSurveyor(served.url, clock=served.clock, deadline_s=1.0)
    yield served
    await served.surveyor.aclose()
    await runner.cleanup()


async def test_a_page_is_read(there: Exporter) -> None:
    """Its GPUs, with identity and flags."""
    survey = await there.look()

    assert survey.problem is None
    assert [gpu.index for gpu in survey.gpus] == [0, 1, 2, 3]
    assert survey.gpus[0].remap_failed is True


async def test_it_is_asked_seldom(there: Exporter) -> None:
    """Sooner than a collection of the exporter itself there is nothing new."""
    first = await there.look()

    assert await there.surveyor.survey(Wanted()) is first
    assert len(there.requests) == 1


async def test_a_page_that_stands_still_is_noticed(there: Exporter) -> None:
    """For how long is what the check wants to know; one digit of power ends it."""
    assert (await there.look()).frozen_s == 0
    assert (await there.look()).frozen_s >= exporter.POLL_INTERVAL_S
    assert (await there.look()).frozen_s >= 2 * exporter.POLL_INTERVAL_S

    there.content = there.content.replace(b"409.692", b"409.699")
    assert (await there.look()).frozen_s == 0


async def test_a_page_without_moving_series_is_never_called_frozen(there: Exporter) -> None:
    """Nobody can tell."""
    there.content = b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\n'

    assert [(await there.look()).frozen_s for _ in range(3)] == [0, 0, 0]


async def test_an_exporter_that_is_away_is_a_problem_and_comes_back(there: Exporter) -> None:
    """Refused connections are told in words."""
    away = DcgmExporterSurveyor("http://127.0.0.1:9/metrics", clock=there.clock, deadline_s=1.0)

    survey = await away.survey(Wanted())
    await away.aclose()

    assert survey.problem is DcgmProblem.ENGINE_DOWN
    assert "127.0.0.1:9" in survey.message
    assert (await there.look()).problem is None


async def test_an_exporter_that_hangs_costs_the_deadline(there: Exporter) -> None:
    """In the middle of its page too."""

    async def begins_and_sleeps(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(there.content[:500])
        await asyncio.sleep(30)
        return response

    there.answer = begins_and_sleeps
    survey = await there.look()

    assert (survey.problem, survey.gpus) == (DcgmProblem.HUNG, ())
    there.answer = there.page
    assert (await there.look()).problem is None


async def test_an_endless_page_is_cut(there: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its limit; what was read before it counts."""
    monkeypatch.setattr(exporter, "PAGE_BYTES_MAX", 300_000)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(there.content)
        try:
            while True:
                await response.write(b"DCGM_FI_DEV_GPU_UTIL{} 1\n" * 1000)
        except ConnectionError:
            return response

    there.answer = endless
    survey = await there.look()

    assert survey.problem is None
    assert "300000" in survey.message
    assert len(survey.gpus) == 4


@pytest.mark.parametrize("status", [302, 401, 404, 500])
async def test_another_status_is_a_problem(there: Exporter, status: int) -> None:
    """Redirects are not followed: the address is what the operator said."""

    async def refuses(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers={"Location": "/other"} if status == 302 else {})

    there.answer = refuses
    survey = await there.look()

    assert (survey.problem, str(status) in survey.message) == (DcgmProblem.FAILED, True)
    assert len(there.requests) == 1


@pytest.mark.parametrize("content", [b"", b"<html>hello</html>", b"node_load1 1\n", b"\xff\xfe\x00" * 1000])
async def test_a_page_of_something_else_is_garbage(there: Exporter, content: bytes) -> None:
    """The wrong port is told, not taken for an exporter without GPUs."""
    there.content = content

    assert (await there.look()).problem is DcgmProblem.GARBAGE


async def test_a_packed_answer_is_not_unpacked(there: Exporter) -> None:
    """A few bytes could become gigabytes; plain text is asked for."""

    async def packed(request: web.Request) -> web.StreamResponse:
        response = web.Response(body=there.content)
        response.enable_compression(web.ContentCoding.gzip)
        return response

    there.answer = packed
    survey = await there.look()

    assert there.requests[0].headers["Accept-Encoding"] == "identity"
    assert survey.problem is DcgmProblem.GARBAGE


async def test_closing_twice_is_as_good_as_once(there: Exporter) -> None:
    """And before the first survey."""
    fresh = DcgmExporterSurveyor(there.url, clock=there.clock)

    await fresh.aclose()
    await fresh.survey(Wanted())
    await fresh.aclose()
    await fresh.aclose()
