"""The dashboard as an ASGI application: pages, their JSON twins, static files, one live stream each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from outlast.ports.clock import Clock
from outlast.web import html
from outlast.web.guard import Guard
from outlast.web.live import Hub, TooManyClients
from outlast.web.pages import Address, Explain, Missing, address_of, page_data
from outlast.web.state import FleetState
from outlast.web.stream import Stream

STATIC: Final = {
    "outlast.css": "text/css; charset=utf-8",
    "outlast.js": "text/javascript; charset=utf-8",
    "mark.svg": "image/svg+xml",
}
ADDRESS_CHARS_MAX: Final = 2048


@dataclass(frozen=True, slots=True)
class Dashboard:
    """What the application shows: where the state comes from and which clock the fleet lives by.

    `pace` is the machine's own time; it only spaces messages to browsers.
    """

    state: Callable[[], FleetState]
    explain: Explain
    hub: Hub
    clock: Clock
    pace: Clock

    def application(self, hosts: Iterable[str] = ()) -> ASGIApp:
        """The application; `hosts` are served beside the names of loopback."""
        routes = [
            Route("/live", self.live),
            Route("/static/{name}", self.static),
            Route("/healthz", self.healthz),
            Route("/{path:path}", self.page),
        ]
        return Guard(Starlette(routes=routes), hosts)

    async def page(self, request: Request) -> Response:
        """A page, or its JSON twin by `?format=json` or `.json`."""
        path = request.url.path
        as_json = path.endswith(".json") or request.query_params.get("format") == "json"
        where = address_of(path, request.query_params) if len(str(request.url)) <= ADDRESS_CHARS_MAX else None
        now = self.clock.now()
        found = (
            Missing("No page has this address.")
            if where is None
            else page_data(where, self.state(), self.explain, now)
        )
        if where is None or isinstance(found, Missing):
            text = found.text if isinstance(found, Missing) else ""
            if as_json:
                return _json({"error": text}, 404)
            return HTMLResponse(html.missing(text, now), 404)
        if as_json:
            return _json(found)
        return HTMLResponse(html.whole(where.page, found, twin=_twin(where, request)))

    async def live(self, request: Request) -> Response:
        """The stream of the page whose address is in `at`."""
        parts = urlsplit(request.query_params.get("at", "/")[:ADDRESS_CHARS_MAX])
        where = address_of(parts.path, dict(parse_qsl(parts.query)))
        if where is None:
            return PlainTextResponse("No page has this address.\n", 404)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._events(where), media_type="text/event-stream", headers=headers)

    async def _events(self, where: Address) -> AsyncIterator[bytes]:
        try:
            with self.hub.subscribe() as mailbox:
                stream = Stream(where, self.state, self.explain, self.hub, self.clock, self.pace)
                async for message in stream.events(mailbox):
                    yield message
        except TooManyClients:
            yield b"retry: 30000\nevent: bye\ndata: too many live readers\n\n"

    async def static(self, request: Request) -> Response:
        """Style, script and mark, from the package."""
        name = request.path_params["name"]
        if name not in STATIC:
            return PlainTextResponse("Not found\n", 404)
        body = (files("outlast.web") / "static" / name).read_bytes()
        return Response(body, media_type=STATIC[name], headers={"cache-control": "no-cache"})

    async def healthz(self, request: Request) -> Response:
        """200 when the state is complete and fresh, else 503."""
        del request
        synced = self.state().synced
        return PlainTextResponse("ok\n" if synced else "not in sync\n", 200 if synced else 503)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _twin(where: Address, request: Request) -> str:
    """The address of the same page as JSON."""
    if where.page == "fleet":
        query = request.url.query
        return "/fleet.json" + (f"?{query}" if query else "")
    return f"{request.url.path}.json"
