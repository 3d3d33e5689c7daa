"""Async requests for the kubelets: one pooled connection set, errors as `Refused` or OSError.

Kept apart from the project's own client, so that a fault in that client cannot hide in its tests.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import aiohttp

from tests.controlplane.access import JSON, STRATEGIC, Access, Answer, Refused

REQUEST_DEADLINE_S = 10.0
WATCH_SILENCE_S = 90.0
"""Bookmarks or the server's own time-out come before that; then the stream is dead."""
LINE_BYTES_MAX = 4 * 2**20


class Wire:
    """Requests under one identity, or as the kubelet of a node; an async context manager."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Wire:
        context = self._access.ssl_context()
        self._session = aiohttp.ClientSession(
            base_url=self._access.url,
            connector=aiohttp.TCPConnector(limit=64, ssl=context if context is not None else True),
            read_bufsize=LINE_BYTES_MAX,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "",
        as_kubelet: str = "",
    ) -> Any:
        """One request; patches are strategic unless told otherwise. Raises Refused, OSError, TimeoutError."""
        assert self._session is not None
        headers = self._headers(as_kubelet)
        if body is not None:
            headers.append(("Content-Type", content_type or (STRATEGIC if method == "PATCH" else JSON)))
        with _as_os_error():
            async with self._session.request(
                method,
                path,
                data=None if body is None else json.dumps(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=REQUEST_DEADLINE_S),
            ) as response:
                is_json = response.content_type == "application/json"
                content = await response.json() if is_json else await response.text()
                answer = Answer(response.status, content)
        if not answer.ok:
            raise Refused(f"{method} {path}", answer)
        return answer.body

    async def watch(self, path: str) -> AsyncIterator[Any]:
        """Events of a watch until the server ends it. Raises Refused, OSError, TimeoutError."""
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=REQUEST_DEADLINE_S, sock_read=WATCH_SILENCE_S
        )
        with _as_os_error():
            async with self._session.get(path, headers=self._headers(""), timeout=timeout) as response:
                if response.status != 200:
                    raise Refused(f"GET {path}", Answer(response.status, await response.text()))
                async for line in response.content:
                    yield json.loads(line)

    def _headers(self, as_kubelet: str) -> list[tuple[str, str]]:
        return (self._access.as_kubelet(as_kubelet) if as_kubelet else self._access).headers()


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientError as error:
        # Only some of aiohttp's connection errors are OSErrors by themselves.
        raise ConnectionError(str(error)) from error
