"""HTTP in front of the store: content types, query options, and the answers to each verb."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from aiohttp import web

from outlast.sim.apiserver import discovery, errors, routes
from outlast.sim.apiserver.errors import ApiError
from outlast.sim.apiserver.eviction import evict
from outlast.sim.apiserver.faults import Fault, Faults, Request
from outlast.sim.apiserver.listing import Page, page
from outlast.sim.apiserver.requests import (
    JSON_TYPE,
    check_host,
    content_type_of,
    decoded_body,
    deletion_of,
    object_body,
    selected_name,
    verb_of,
    view_of,
    writer_of,
)
from outlast.sim.apiserver.resources import Resource
from outlast.sim.apiserver.routes import Target
from outlast.sim.apiserver.scheduling import bind
from outlast.sim.apiserver.storage import Entry
from outlast.sim.apiserver.store import APPLY, Store, Writer
from outlast.sim.apiserver.tables import TableView, partial
from outlast.sim.apiserver.watch import Watch, WatchRequest

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_PROTOBUF = "application/vnd.kubernetes.protobuf"


@dataclass(frozen=True, slots=True)
class Call:
    """A request for an object or collection, read and understood."""

    http: web.BaseRequest
    target: Target
    query: Mapping[str, str]
    writer: Writer
    view: str = ""
    include: str = "Metadata"
    user: str = ""

    @property
    def resource(self) -> Resource:
        """The kind."""
        return self.target.resource


class Frontend:
    """The request handler."""

    def __init__(self, store: Store, faults: Faults, tokens: Mapping[str, str]) -> None:
        self._store = store
        self._faults = faults
        self._tokens = tokens

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        try:
            check_host(http)
            user = self._authenticate(http)
            path = http.path
            if path.startswith(("/api/", "/apis/")):
                target = routes.parse(path, self._store.catalogue)
                if target is not None:
                    return await self._resource(http, target, user)
            return await self._other(http, path, user)
        except ApiError as error:
            return _answer(error.status(), error.code, headers=dict(error.headers))
        except Exception as error:
            _log.exception("a request failed inside the embedded API server: %s %s", http.method, http.path)
            failed = ApiError(500, "InternalError", f"Internal error occurred: {type(error).__name__}")
            return _answer(failed.status(), 500)

    # -- everything that is not an object ---------------------------------------------------

    async def _other(self, http: web.BaseRequest, path: str, user: str) -> web.StreamResponse:
        if http.method == "POST" and path.startswith("/apis/auth"):
            return await self._review(http, path, user)
        if http.method not in ("GET", "HEAD"):
            raise ApiError(404, "NotFound", "the server could not find the requested resource", details={})
        document = self._document(http, path.rstrip("/") or "/")
        if isinstance(document, str):
            return web.Response(text=document, content_type="text/plain")
        if document is None:
            return web.Response(text="404 page not found\n", status=404, content_type="text/plain")
        if document.get("kind") == "APIGroupDiscoveryList":
            return web.Response(body=_encode(document), headers={"Content-Type": discovery.AGGREGATED})
        return _answer(document)

    def _document(self, http: web.BaseRequest, path: str) -> dict[str, Any] | str | None:
        catalogue = self._store.catalogue
        wants_aggregated = "APIGroupDiscoveryList" in http.headers.get(
            "Accept", ""
        ) and "v=v2" in http.headers.get("Accept", "")
        parts = path.strip("/").split("/")
        match parts:
            case ["version"]:
                return dict(discovery.VERSION)
            case ["healthz" | "readyz" | "livez", *_]:
                return "ok"
            case ["api"]:
                return (
                    discovery.aggregated(catalogue, core=True)
                    if wants_aggregated
                    else discovery.api_versions(http.host)
                )
            case ["apis"]:
                return (
                    discovery.aggregated(catalogue, core=False)
                    if wants_aggregated
                    else discovery.api_groups(catalogue)
                )
            case ["api", version]:
                return discovery.api_resources(catalogue, "", version)
            case ["apis", group]:
                return discovery.api_group(catalogue, group)
            case ["apis", group, version]:
                return discovery.api_resources(catalogue, group, version)
            case ["openapi", "v2"]:
                return discovery.openapi_v2(catalogue)
            case ["openapi", "v3"]:
                return discovery.openapi_index(catalogue)
            case ["openapi", "v3", "api", version]:
                return discovery.openapi_v3(catalogue, "", version)
            case ["openapi", "v3", "apis", group, version]:
                return discovery.openapi_v3(catalogue, group, version)
            case [""]:
                return {
                    "paths": [
                        "/api",
                        "/apis",
                        "/healthz",
                        "/livez",
                        "/openapi/v2",
                        "/openapi/v3",
                        "/readyz",
                        "/version",
                    ]
                }
        return None

    async def _review(self, http: web.BaseRequest, path: str, user: str) -> web.Response:
        """Everything is allowed; who asks is told."""
        kind = "SelfSubjectReview" if path.endswith("/selfsubjectreviews") else "SelfSubjectAccessReview"
        api_version = path.strip("/").split("/", 1)[1].rpartition("/")[0]
        body: dict[str, Any] = {"kind": kind, "apiVersion": api_version}
        if content_type_of(http) != _PROTOBUF:
            # The question may come in a form that is not read here: the answer is the same to all.
            body |= await object_body(http)
        if path.endswith("/selfsubjectaccessreviews"):
            body["status"] = {"allowed": True}
        elif path.endswith("/selfsubjectreviews"):
            body["status"] = {"userInfo": {"username": user, "groups": ["system:authenticated"]}}
        else:
            raise ApiError(404, "NotFound", "the server could not find the requested resource", details={})
        return _answer(body, 201)

    def _authenticate(self, http: web.BaseRequest) -> str:
        given = http.headers.get("Authorization", "")
        if not self._tokens:
            return "system:admin"
        user = self._tokens.get(given.removeprefix("Bearer "))
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return user

    # -- objects ----------------------------------------------------------------------------

    async def _resource(self, http: web.BaseRequest, target: Target, user: str) -> web.StreamResponse:
        query = http.query
        verb = verb_of(http.method, target, query)
        agent = http.headers.get("User-Agent", "")
        fault = self._faults.take(
            Request(
                verb, target.resource.plural, target.name or selected_name(query), target.namespace,
                target.subresource, agent, user,
            )
        )  # fmt: skip
        if fault is not None and (answer := await _misbehave(fault, http)) is not None:
            return answer
        view, include = view_of(http.headers.get("Accept", ""), query)
        call = Call(http, target, query, writer_of(query, agent), view, include, user)
        response = await self._dispatch(verb, call, fault)
        if fault is not None and fault.after_write and http.transport is not None:
            http.transport.close()
        return response

    async def _dispatch(self, verb: str, call: Call, fault: Fault | None) -> web.StreamResponse:
        if verb == "watch":
            request = WatchRequest(
                call.resource, self._selection(call), call.query, call.view, call.include, fault
            )
            return await Watch(self._store, request).serve(call.http)
        match verb:
            case "get":
                _check_subresource(call, "status")
                entry = self._store.entry(call.resource, call.target.name, call.target.namespace)
                return self._object(call, entry)
            case "list":
                return self._list(call, page(self._store, call.resource, self._selection(call), call.query))
            case "create":
                return await self._create(call)
            case "update":
                return await self._update(call)
            case "patch":
                return await self._patch(call)
            case "delete":
                return await self._delete(call)
            case "deletecollection":
                return await self._delete_collection(call)
        raise errors.method_not_allowed(call.http.method)

    def _selection(self, call: Call) -> Any:
        query, target = call.query, call.target
        fields = query.get("fieldSelector", "")
        if target.name:
            fields = ",".join(f for f in (fields, f"metadata.name={target.name}") if f)
        return self._store.select(call.resource, target.namespace, query.get("labelSelector", ""), fields)

    def _list(self, call: Call, found: Page) -> web.Response:
        resource = call.resource
        if call.view == "Table":
            table = TableView(resource, self._store.now(), call.include)
            return _answer(table.table([e.decode() for e in found.entries], found.meta()))
        if call.view:
            items = [partial(e.decode()) for e in found.entries]
            kind = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            return _answer({**kind, "metadata": found.meta(), "items": items})
        head = _encode(
            {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": found.meta()}
        )
        body = b'%s,"items":[%s]}' % (head[:-1], b",".join([e.raw for e in found.entries]))
        return web.Response(body=body, headers={"Content-Type": JSON_TYPE})

    def _object(self, call: Call, entry: Entry, status: int = 200) -> web.Response:
        headers = _warnings(call.writer)
        if call.view == "Table":
            table = TableView(call.resource, self._store.now(), call.include)
            body = table.table([entry.decode()], {"resourceVersion": str(entry.version)})
            return _answer(body, status, headers)
        if call.view:
            return _answer(partial(entry.decode()), status, headers)
        headers["Content-Type"] = JSON_TYPE
        return web.Response(body=entry.raw, status=status, headers=headers)

    async def _create(self, call: Call) -> web.Response:
        body = await object_body(call.http)
        target = call.target
        if target.subresource == "eviction" and target.resource.kind == "Pod":
            evict(self._store, target.name, target.namespace, body, call.writer)
            return _answer(
                {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201
            )
        if target.subresource == "binding" and target.resource.kind == "Pod":
            bind(self._store, target.name, target.namespace, body, call.writer)
            return _answer(
                {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201
            )
        if target.name:
            raise errors.method_not_allowed("create")
        return self._object(call, self._store.create(call.resource, body, target.namespace, call.writer), 201)

    async def _update(self, call: Call) -> web.Response:
        _check_subresource(call, "status")
        body = await object_body(call.http)
        target = call.target
        entry = self._store.update(
            call.resource, target.name, lambda _: body, target.namespace,
            subresource=target.subresource, writer=call.writer, put=True,
        )  # fmt: skip
        return self._object(call, entry)

    async def _patch(self, call: Call) -> web.Response:
        _check_subresource(call, "status")
        target, content_type = call.target, content_type_of(call.http)
        body = await decoded_body(call.http, content_type)
        if content_type == APPLY and not call.query.get("fieldManager"):
            cause = errors.required("fieldManager", "Required value: is required for apply patch")
            raise errors.options_invalid("PatchOptions", [cause])
        new = content_type == APPLY and not self._exists(target)
        entry = self._store.patch(
            call.resource, target.name, content_type, body, target.namespace,
            subresource=target.subresource, writer=call.writer,
        )  # fmt: skip
        return self._object(call, entry, 201 if new else 200)

    def _exists(self, target: Target) -> bool:
        return (target.namespace, target.name) in self._store.collection(target.resource).entries

    async def _delete(self, call: Call) -> web.Response:
        _check_subresource(call)
        options, writer = await deletion_of(call.http, call.query, call.writer)
        target, resource = call.target, call.resource
        entry, gone = self._store.delete(resource, target.name, target.namespace, options, writer)
        call = replace(call, writer=writer)
        if not gone or resource.returns_deleted:
            return self._object(call, entry)
        details: dict[str, Any] = {"name": target.name, "kind": resource.plural, "uid": entry.uid}
        if resource.group:
            details["group"] = resource.group
        body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return _answer(body, headers=_warnings(writer))

    async def _delete_collection(self, call: Call) -> web.Response:
        selection = self._selection(call)
        options, writer = await deletion_of(call.http, call.query, call.writer)
        entries = self._store.delete_collection(call.resource, selection, options, writer)
        return self._list(replace(call, view="", writer=writer), Page(entries, self._store.storage.version))


def _check_subresource(call: Call, *known: str) -> None:
    sub = call.target.subresource
    if sub and not (sub in known and call.resource.status):
        raise ApiError(404, "NotFound", "the server could not find the requested resource", details={})


# -- answers ------------------------------------------------------------------------------------


def _answer(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=_encode(body), status=status, headers={**(headers or {}), "Content-Type": JSON_TYPE}
    )


def _warnings(writer: Writer) -> Any:
    from multidict import CIMultiDict

    headers: CIMultiDict[str] = CIMultiDict()
    for text in writer.warnings:
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        headers.add("Warning", f'299 - "{quoted}"')
    return headers


_REASONS: Mapping[int, tuple[str, str]] = {
    409: (
        "Conflict",
        "the object has been modified; please apply your changes to the latest version and try again",
    ),
    500: ("InternalError", "an injected fault"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "the server was unable to return a response in the time allotted"),
}


async def _misbehave(fault: Fault, http: web.BaseRequest) -> web.StreamResponse | None:
    if fault.delay_s:
        await asyncio.sleep(fault.delay_s)  # noqa: TID251 - slowness is measured in real time
    if fault.disconnect:
        if http.transport is not None:
            http.transport.close()
        return web.Response()
    if fault.status == 429:
        text = "Too many requests, please try again later.\n"
        return web.Response(text=text, status=429, headers={"Retry-After": str(fault.retry_after_s)})
    if fault.status:
        reason, message = _REASONS.get(fault.status, ("", "an injected fault"))
        error = ApiError(fault.status, reason, message)
        return _answer(error.status(), fault.status)
    return None
