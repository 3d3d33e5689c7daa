"""What every answer carries and every request must have.

The Host check keeps a page of a stranger from reaching a dashboard on loopback through a name of its
own (DNS rebinding); the headers keep text that slips through escaping from becoming code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


def host_of(header: str) -> str:
    """The host in a Host header, without its port, in lower case; IPv6 keeps its brackets."""
    header = header.strip().lower()
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.partition(":")[0]


class Guard:
    """Middleware: refuses foreign Host headers and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = LOOPBACK_HOSTS | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        given = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if host_of(given) not in self._hosts:
            text = "This host name is not served here; start with --allow-host to add it.\n"
            await PlainTextResponse(text, 421)(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)
