"""Scrapes dcgm-exporter, which most GPU clusters run anyway: no rights and no engine needed.

The page is read in pieces and only its few series about health are kept, so its size costs time and
no memory.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

from outlast.health.sources.dcgm_exporter import ExporterPage, ExporterPageReader
from outlast.model.observation.dcgm import DcgmExporterSurvey, DcgmProblem
from outlast.ports.clock import Clock
from outlast.ports.node import Wanted

if TYPE_CHECKING:
    import aiohttp

POLL_INTERVAL_S: Final = 60.0
SPACING_S: Final = 50.0
"""Asked sooner than this, the last answer is given again: the exporter itself collects each 30 s."""
DEADLINE_S: Final = 10.0
PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A node of 8 GPUs has 0.1 to 1 MB; the rest of a larger page is not read."""

_PIECE_BYTES: Final = 64 * 1024


class DcgmExporterSurveyor:
    """Implements `outlast.ports.node.Surveyor`. One survey takes at most 10 s."""

    def __init__(self, url: str, *, clock: Clock, deadline_s: float = DEADLINE_S) -> None:
        self._url = url
        self._clock = clock
        self._deadline_s = deadline_s
        self._session: aiohttp.ClientSession | None = None
        self._asked_s: float | None = None
        self._last = DcgmExporterSurvey()
        self._fingerprint: int | None = None
        self._moved_s = 0.0

    async def survey(self, wanted: Wanted) -> DcgmExporterSurvey:
        """The present page, or why there is none."""
        start_s = self._clock.monotonic()
        if self._asked_s is not None and start_s - self._asked_s < SPACING_S:
            return self._last
        self._asked_s = start_s
        self._last = await self._asked(start_s)
        return self._last

    async def aclose(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _asked(self, start_s: float) -> DcgmExporterSurvey:
        import aiohttp

        try:
            async with asyncio.timeout(self._deadline_s):
                page, cut = await self._page()
        except TimeoutError:
            return _nothing(DcgmProblem.HUNG, f"{self._url} did not answer within {self._deadline_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return _nothing(
                DcgmProblem.ENGINE_DOWN, f"{self._url}: {str(error)[:200] or type(error).__name__}"
            )
        if isinstance(page, int):
            return _nothing(DcgmProblem.FAILED, f"{self._url} answered with HTTP status {page}")
        if not page.series:
            return _nothing(DcgmProblem.GARBAGE, f"{self._url} has no series of DCGM")
        now_s = self._clock.monotonic()
        if page.fingerprint is None or page.fingerprint != self._fingerprint:
            self._fingerprint, self._moved_s = page.fingerprint, now_s
        return DcgmExporterSurvey(
            gpus=page.gpus,
            message=f"only the first {PAGE_BYTES_MAX} bytes of the page were read" if cut else "",
            frozen_s=now_s - self._moved_s,
            lines_dropped=page.lines_dropped,
            duration_s=now_s - start_s,
        )

    async def _page(self) -> tuple[ExporterPage | int, bool]:
        import aiohttp

        if self._session is None:
            # aiohttp's own context knows no authorities in the agent's process.
            tls = ssl.create_default_context() if self._url.startswith("https:") else True
            # Not decompressed: a few bytes could unpack to gigabytes.
            self._session = aiohttp.ClientSession(
                auto_decompress=False, trust_env=False, connector=aiohttp.TCPConnector(ssl=tls)
            )
        headers = {"Accept": "text/plain", "Accept-Encoding": "identity"}
        async with self._session.get(self._url, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                return response.status, False
            reader, size = ExporterPageReader(), 0
            async for piece in response.content.iter_chunked(_PIECE_BYTES):
                reader.feed(piece)
                size += len(piece)
                if size >= PAGE_BYTES_MAX:
                    response.close()
                    return reader.page(), True
            return reader.page(), False


def _nothing(problem: DcgmProblem, message: str) -> DcgmExporterSurvey:
    return DcgmExporterSurvey(problem=problem, message=message)
