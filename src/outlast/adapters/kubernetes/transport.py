"""One HTTP session to one API server: deadlines, retries, credentials; no Kubernetes objects yet.

A read may be sent again after anything transient. A write is sent again only where it is known that it
did not happen: turned away with 429 or 401, or the connection was never made. All else is Unavailable.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from urllib.parse import urlencode

import aiohttp
import structlog
from yarl import URL

from outlast import __version__
from outlast.adapters.kubernetes.access import Access, ssl_context
from outlast.adapters.kubernetes.backoff import Backoff
from outlast.adapters.kubernetes.credentials import Credential
from outlast.adapters.kubernetes.errors import (
    Reply,
    error_of,
    is_not_executed,
    is_transient,
    parse_retry_after,
)
from outlast.adapters.kubernetes.limits import DEFAULT_LIMITS, Limits
from outlast.adapters.kubernetes.proxy import proxy_for
from outlast.ports.clock import Clock
from outlast.ports.cluster import ClusterError, Unavailable

WARNINGS_MAX = 256
"""Server warnings that are remembered so that each is logged once."""

Params = Sequence[tuple[str, str]]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """One call, as data. `what` names it in errors: verb, kind, object."""

    what: str
    method: str
    path: str
    params: Params = ()
    body: bytes | None = None
    content_type: str = "application/json"

    @property
    def is_read(self) -> bool:
        """Whether sending it twice changes nothing."""
        return self.method == "GET"


class NotSent(Exception):
    """The connection was never made, so the request cannot have happened."""


class _ConnectionCut(aiohttp.ClientError):
    """The connection dropped with a request on it."""


async def _send_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending a DELETE again by itself when a kept connection drops.

    The second answer, 404, would hide that the first one did the work. Retries are decided in `call`.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _ConnectionCut(str(error)) from error


class Stream:
    """The body of a watch, in chunks as they arrive."""

    def __init__(self, what: str, response: aiohttp.ClientResponse) -> None:
        self._what = what
        self._response = response

    async def chunks(self) -> AsyncIterator[bytes]:
        """Chunks until the server ends the stream. Raises Unavailable where it breaks."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(f"{self._what}: the stream broke: {_describe(error)}") from error


class Transport:
    """Sends requests as one user. Close it; it opens itself on first use."""

    def __init__(self, access: Access, *, clock: Clock, rng: Random, limits: Limits = DEFAULT_LIMITS) -> None:
        self._access = access
        self._clock = clock
        self._rng = rng
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None
        self._tls: tuple[Credential, object] | None = None
        self._proxy = proxy_for(access.server, access.proxy, os.environ) or None
        self._warned: set[str] = set()

    @property
    def clock(self) -> Clock:
        """The clock all waiting is done on."""
        return self._clock

    @property
    def rng(self) -> Random:
        """The source of all jitter."""
        return self._rng

    @property
    def limits(self) -> Limits:
        """The bounds this transport keeps."""
        return self._limits

    async def close(self) -> None:
        """Close all connections; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(self, request: Request, *, deadline_s: float | None = None) -> Reply:
        """The server's final reply, success or not, within bounded tries.

        `deadline_s` bounds each try of a read and all tries of a write together. Raises Unavailable
        where there is no reply, Unauthorized where a fresh credential was refused too.
        """
        limits = self._limits
        deadline_s = limits.request_deadline_s if deadline_s is None else deadline_s
        backoff = Backoff(limits.backoff_base_s, limits.backoff_max_s, self._rng)
        ends_s = self._clock.monotonic() + deadline_s
        is_renewed = False
        for attempt in range(1, limits.attempts_max + 1):
            # Outside the deadline: an exec plugin may take longer than any request.
            credential = await self._access.credentials.current(self._clock)
            left_s = deadline_s if request.is_read else ends_s - self._clock.monotonic()
            if left_s <= 0:
                raise Unavailable(f"{request.what}: not sent, its {deadline_s:g} s were over before")
            is_last = attempt == limits.attempts_max
            delay_s = backoff.next_s()
            try:
                reply = await self._attempt(request, credential, left_s)
            except NotSent as error:
                failure: ClusterError = Unavailable(f"{request.what}: {error}")
            except Unavailable as error:
                if not request.is_read:
                    raise
                failure = error
            else:
                if reply.status == 401 and not is_renewed:
                    self._access.credentials.refused(credential)
                    is_renewed = True
                    if not is_last:
                        continue
                if not (is_transient(reply) if request.is_read else is_not_executed(reply)):
                    return reply
                failure = error_of(request.what, reply)
                delay_s = max(delay_s, reply.retry_after_s or 0.0)
            if (
                is_last
                or delay_s > limits.backoff_max_s
                or (not request.is_read and self._clock.monotonic() + delay_s >= ends_s)
            ):
                raise failure
            await self._clock.sleep(delay_s)
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def stream(self, request: Request, *, deadline_s: float) -> AsyncIterator[Stream]:
        """Open a watch; `deadline_s` is for the head of the answer. Raises ClusterError; retries only 401."""
        credential = await self._access.credentials.current(self._clock)
        response = await self._open(request, credential, deadline_s)
        if response.status == 401:
            response.close()
            self._access.credentials.refused(credential)
            credential = await self._access.credentials.current(self._clock)
            response = await self._open(request, credential, deadline_s)
        try:
            if response.status != 200:
                raise error_of(request.what, await self._error_reply(request, response))
            yield Stream(request.what, response)
        finally:
            # Not released to the pool: a watch that is left early still has bytes on the wire.
            response.close()

    async def _open(
        self, request: Request, credential: Credential, deadline_s: float
    ) -> aiohttp.ClientResponse:
        try:
            async with asyncio.timeout(deadline_s):
                # Never compressed: a kube-apiserver makes each event a gzip member of its own, which many
                # readers take for the end of the stream, and aiohttp counts against a limit.
                return await self._send(request, credential, "identity")
        except TimeoutError:
            raise Unavailable(f"{request.what}: no answer within {deadline_s:g} s") from None
        except NotSent as error:
            raise Unavailable(f"{request.what}: {error}") from None

    async def _error_reply(self, request: Request, response: aiohttp.ClientResponse) -> Reply:
        try:
            async with asyncio.timeout(self._limits.request_deadline_s):
                return await self._reply(request, response)
        except TimeoutError:
            return Reply(response.status, "", b"")

    async def _attempt(self, request: Request, credential: Credential, deadline_s: float) -> Reply:
        try:
            async with asyncio.timeout(deadline_s):
                async with await self._send(request, credential, "gzip") as response:
                    return await self._reply(request, response)
        except TimeoutError:
            raise Unavailable(f"{request.what}: no answer within {deadline_s:.3g} s") from None

    async def _send(self, request: Request, credential: Credential, encoding: str) -> aiohttp.ClientResponse:
        headers = list(self._access.headers)
        headers += [("Accept", "application/json"), ("Accept-Encoding", encoding)]
        headers += [("User-Agent", f"outlast/{__version__}")]
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
        if credential.authorization:
            headers.append(("Authorization", credential.authorization))
        query = f"?{urlencode(request.params)}" if request.params else ""
        try:
            response = await self._opened().request(
                request.method,
                URL(f"{self._access.server}{request.path}{query}", encoded=True),
                headers=headers,
                data=request.body,
                allow_redirects=False,
                proxy=self._proxy,
                ssl=self._ssl(credential),  # type: ignore[arg-type]
                server_hostname=self._access.trust.server_name or None,
            )
        except aiohttp.ClientConnectorCertificateError as error:
            raise Unavailable(
                f"{request.what}: the certificate of {self._access.server} is not trusted "
                f"({error.certificate_error}); check certificate-authority and tls-server-name"
            ) from None
        except aiohttp.ClientConnectorError as error:
            raise NotSent(f"no connection to {self._access.server}: {_describe(error)}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(f"{request.what}: the connection broke: {_describe(error)}") from None
        for warning in response.headers.getall("Warning", ()):
            self._warn(request.what, warning)
        return response

    async def _reply(self, request: Request, response: aiohttp.ClientResponse) -> Reply:
        bytes_max = self._limits.body_bytes_max if response.status < 300 else self._limits.error_bytes_max
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > bytes_max and response.status < 300:
                    raise Unavailable(
                        f"{request.what}: the answer is larger than {bytes_max} bytes (body_bytes_max)"
                    )
                if size > bytes_max:
                    break
                chunks.append(chunk)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if response.status < 300:
                raise Unavailable(f"{request.what}: the answer was cut off: {_describe(error)}") from None
        return Reply(
            status=response.status,
            content_type=response.headers.get("Content-Type", ""),
            body=b"".join(chunks),
            retry_after_s=parse_retry_after(response.headers.get("Retry-After")),
        )

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._limits.connections_max),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=256 * 1024,
                middlewares=(_send_once,),
            )
        return self._session

    def _ssl(self, credential: Credential) -> object:
        if not self._access.is_tls:
            return True
        if self._tls is None or self._tls[0] != credential:
            self._tls = (credential, ssl_context(self._access.trust, credential))
        return self._tls[1]

    def _warn(self, what: str, warning: str) -> None:
        warning = warning[:500]
        if warning not in self._warned and len(self._warned) < WARNINGS_MAX:
            self._warned.add(warning)
            _log.warning("the API server warns", request=what, warning=warning)


def _describe(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        return cause.strerror or str(cause) or type(cause).__name__
    return str(error)[:300] or type(error).__name__
