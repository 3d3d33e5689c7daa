"""Watches: from now, from a revision, or a streaming list, as one HTTP response that goes on.

Each change is encoded once for all watchers; a watcher only decides whether it sees it. A watch from
a forgotten revision is told 410 in the stream, as a kube-apiserver does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web

from outlast.sim.apiserver.errors import ApiError, bad_request
from outlast.sim.apiserver.faults import Fault
from outlast.sim.apiserver.listing import check_options, parse_version, too_large
from outlast.sim.apiserver.resources import Resource
from outlast.sim.apiserver.selectors import Selection
from outlast.sim.apiserver.storage import Change, Entry, Subscription, reversioned, seen_as
from outlast.sim.apiserver.store import Store
from outlast.sim.apiserver.tables import TableView, partial

BOOKMARK_INTERVAL_S = 59.0
"""How often an idle watch that allows bookmarks gets one."""
DEFAULT_TIMEOUT_S = 1800.0
FUTURE_VERSION_WAIT_S = 3.0
"""How long a streaming list waits for a revision that is not reached yet."""
BATCH_LINES_MAX = 256
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What one watcher asked for."""

    resource: Resource
    selection: Selection
    query: Mapping[str, str]
    view: str = ""
    """"" for whole objects, Table, or PartialObjectMetadata."""
    include: str = "Metadata"
    fault: Fault | None = None

    def flag(self, name: str) -> bool:
        """A boolean query parameter."""
        return self.query.get(name, "") in ("true", "1", "True")

    @property
    def timeout_s(self) -> float:
        """Seconds after which the watch ends by itself."""
        text = self.query.get("timeoutSeconds", "")
        if text and not text.isdecimal():
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
        return float(text) if text and int(text) else DEFAULT_TIMEOUT_S


class Watch:
    """One watcher's stream."""

    def __init__(self, store: Store, request: WatchRequest) -> None:
        self._store = store
        self._request = request
        self._sent = 0
        self._response: web.StreamResponse | None = None

    async def serve(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer until the time is over, the client leaves, or the watcher is too slow."""
        request = self._request
        check_options(request.query, watch=True)
        timeout_s = request.timeout_s
        asked = parse_version(request.query.get("resourceVersion", ""))
        collection = self._store.collection(request.resource)
        initial = request.flag("sendInitialEvents")
        response = self._response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        subscription = collection.subscribe(request.selection.predicate(), request.selection.exact())
        try:
            first = self._first_lines(asked, initial=initial)
            await response.prepare(http)
            await self._send(first)
            if asked > self._store.storage.version:
                await self._await_future(asked, initial=initial)
            async with asyncio.timeout(timeout_s):
                await self._follow(subscription, asked)
        except TimeoutError:
            if request.flag("allowWatchBookmarks") and self._fault_allows():
                await response.write(self._bookmark())
        except ApiError as error:
            if not response.prepared:
                await response.prepare(http)
            await response.write(_error_line(error))
        except _CutShort:
            if http.transport is not None:
                http.transport.close()
            return response
        except _EndedEarly:
            pass
        finally:
            collection.unsubscribe(subscription)
        await response.write_eof()
        return response

    def _first_lines(self, asked: int, *, initial: bool) -> list[bytes]:
        request = self._request
        collection = self._store.collection(request.resource)
        selects = request.selection.predicate()
        text = request.query.get("resourceVersion", "")
        legacy = text in ("", "0") and request.query.get("sendInitialEvents") is None
        if initial or legacy:
            if asked > self._store.storage.version:
                return []
            chosen = [e for k in collection.keys if selects(e := collection.entries[k])]
            lines = [self._line("ADDED", entry, None) for entry in chosen]
            if initial:
                lines.append(self._bookmark(initial_end=True))
            return lines
        if text in ("", "0"):
            return []
        if asked < collection.compacted:
            message = f"too old resource version: {asked} ({collection.compacted})"
            raise ApiError(410, "Expired", message)
        seen = ((seen_as(change, selects), change) for change in collection.since(asked))
        return [self._line(type_, change.entry, change) for type_, change in seen if type_]

    async def _await_future(self, asked: int, *, initial: bool) -> None:
        """A plain watch of the future stays silent; a streaming list gives up after a while."""
        if initial:
            await asyncio.sleep(FUTURE_VERSION_WAIT_S)  # noqa: TID251 - a protocol timeout, on the loop
            raise too_large(asked, self._store.storage.version)

    async def _follow(self, subscription: Subscription, asked: int) -> None:
        while True:
            try:
                async with asyncio.timeout(BOOKMARK_INTERVAL_S):
                    changes = await subscription.wait()
            except TimeoutError:
                if self._request.flag("allowWatchBookmarks"):
                    await self._send([self._bookmark()])
                continue
            if subscription.overflowed:
                raise _EndedEarly
            lines = [self._line(t, c.entry, c) for t, c in changes if c.version > asked]
            await self._send(lines)

    def _line(self, type_: str, entry: Entry, change: Change | None) -> bytes:
        request = self._request
        if not request.view:
            if change is not None:
                return change.line(type_)
            return b'{"type":"%s","object":%s}\n' % (type_.encode(), entry.raw)
        obj = entry.decode()
        if change is not None and type_ == "DELETED" and change.type != "DELETED" and change.previous:
            obj = msgspec.json.decode(reversioned(change.previous, change.version))
        if request.view == "Table":
            table = TableView(request.resource, self._store.now(), request.include)
            shown = table.table([obj], {"resourceVersion": obj["metadata"]["resourceVersion"]})
        else:
            shown = partial(obj)
        return _encode({"type": type_, "object": shown}) + b"\n"

    def _bookmark(self, *, initial_end: bool = False) -> bytes:
        resource, version = self._request.resource, str(self._store.storage.version)
        meta: dict[str, object] = {"resourceVersion": version}
        if initial_end:
            meta["annotations"] = {INITIAL_EVENTS_END: "true"}
        obj: dict[str, object] = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
        if self._request.view == "Table":
            view = TableView(resource, self._store.now(), self._request.include)
            obj = view.table([], {"resourceVersion": version})
            if initial_end:
                obj["rows"] = [{"cells": [], "object": partial({"metadata": meta})}]
        return _encode({"type": "BOOKMARK", "object": obj}) + b"\n"

    async def _send(self, lines: Sequence[bytes]) -> None:
        fault = self._request.fault
        if fault is not None and _is_watch_fault(fault):
            for line in lines:
                await self._send_faulty(line, fault)
            return
        for start in range(0, len(lines), BATCH_LINES_MAX):
            await self._write(b"".join(lines[start : start + BATCH_LINES_MAX]))

    async def _write(self, data: bytes) -> None:
        if self._response is not None:
            await self._response.write(data)

    async def _send_faulty(self, line: bytes, fault: Fault) -> None:
        if fault.freeze_watch_after is not None and self._sent >= fault.freeze_watch_after:
            return
        if fault.drop_watch_after is not None and self._sent >= fault.drop_watch_after:
            raise _EndedEarly
        if fault.cut_watch_after is not None and self._sent >= fault.cut_watch_after:
            await self._write(line[: len(line) // 2])
            raise _CutShort
        self._sent += 1
        await self._write(line)

    def _fault_allows(self) -> bool:
        fault = self._request.fault
        return fault is None or fault.freeze_watch_after is None


def _is_watch_fault(fault: Fault) -> bool:
    limits = (fault.drop_watch_after, fault.freeze_watch_after, fault.cut_watch_after)
    return any(limit is not None for limit in limits)


class _EndedEarly(Exception):
    """The stream ends cleanly before its time."""


class _CutShort(Exception):
    """The connection is cut in the middle of a line."""


def _error_line(error: ApiError) -> bytes:
    return _encode({"type": "ERROR", "object": error.status()}) + b"\n"
