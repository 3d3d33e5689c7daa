"""What an HTTP request asks for: verb, view, writer, body."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import yaml
from aiohttp import web

from outlast.sim.apiserver import errors
from outlast.sim.apiserver.errors import ApiError
from outlast.sim.apiserver.options import Deletion, Writer
from outlast.sim.apiserver.routes import Target

BODY_BYTES_MAX = 3 * 1024 * 1024
"""Largest request body, the limit of a kube-apiserver."""
MANAGER_CHARS_MAX = 128
JSON_TYPE = "application/json"


def check_host(http: web.BaseRequest) -> None:
    """A page in a browser that resolves its own name to loopback must not reach the API."""
    host = http.headers.get("Host", "")
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]")
    if name == "localhost":
        return
    try:
        ipaddress.ip_address(name)
    except ValueError as error:
        raise ApiError(
            403, "Forbidden", f"the Host header {host!r} is not an address of this machine"
        ) from error


def verb_of(method: str, target: Target, query: Mapping[str, str]) -> str:
    """The Kubernetes verb of a request. Refused with 405."""
    if method in ("GET", "HEAD"):
        if query.get("watch", "") in ("true", "1", "True"):
            return "watch"
        return "get" if target.name else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    verb = {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, "")
    if not verb or (verb in ("update", "patch") and not target.name):
        raise errors.method_not_allowed(method)
    return verb


def selected_name(query: Mapping[str, str]) -> str:
    """The one name that a field selector chooses, or ""."""
    for part in query.get("fieldSelector", "").split(","):
        if part.startswith("metadata.name="):
            return part.removeprefix("metadata.name=").lstrip("=")
    return ""


def view_of(accept: str, query: Mapping[str, str]) -> tuple[str, str]:
    """Table, PartialObjectMetadata or whole objects (""), and what rows include."""
    for option in accept.split(","):
        if "as=Table" in option and "v=v1beta1" not in option:
            return "Table", query.get("includeObject", "Metadata")
        if "as=PartialObjectMetadata" in option:
            return "PartialObjectMetadata", "Metadata"
        if option.strip().startswith((JSON_TYPE, "*/*")):
            break
    return "", "Metadata"


def writer_of(query: Mapping[str, str], agent: str) -> Writer:
    """Who writes, and how. Refused with 400 or 422."""
    manager = query.get("fieldManager") or agent.split("/", 1)[0] or "unknown"
    dry_run, validation = query.get("dryRun", ""), query.get("fieldValidation", "")
    if validation not in ("", "Ignore", "Strict", "Warn"):
        supported = ("", "Ignore", "Strict", "Warn")
        cause = errors.unsupported_value("fieldValidation", validation, supported)
        raise errors.options_invalid("CreateOptions", [cause])
    if dry_run not in ("", "All"):
        raise errors.bad_request(f'Invalid value: ["{dry_run}"]: supported values: "All"')
    return Writer(
        manager=manager[:MANAGER_CHARS_MAX],
        dry_run=dry_run == "All",
        unknown_fields=validation or "Warn",
        force=query.get("force", "") in ("true", "1"),
    )


def content_type_of(http: web.BaseRequest) -> str:
    """The media type of the body."""
    return http.headers.get("Content-Type", "").split(";", 1)[0].strip()


async def read_body(http: web.BaseRequest) -> bytes:
    """The body, up to its limit. Refused with 413."""
    too_large = ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_BYTES_MAX}")
    if (http.content_length or 0) > BODY_BYTES_MAX:
        raise too_large
    parts: list[bytes] = []
    size = 0
    async for part in http.content.iter_any():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise too_large
        parts.append(part)
    return b"".join(parts)


async def decoded_body(http: web.BaseRequest, content_type: str) -> Any:
    """The body as plain data. Refused with 400."""
    data = await read_body(http)
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if "yaml" not in content_type:
            raise errors.bad_request(f"error decoding the body: {error}") from error
    try:
        return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe loaders
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise errors.bad_request("error decoding YAML") from error


async def object_body(http: web.BaseRequest) -> dict[str, Any]:
    """The body as an object. Refused with 400 or 415."""
    content_type = content_type_of(http) or JSON_TYPE
    if content_type not in (JSON_TYPE, "application/yaml", "*/*"):
        raise errors.unsupported_media((JSON_TYPE, "application/yaml"))
    body = await decoded_body(http, content_type)
    if not isinstance(body, dict):
        raise errors.bad_request("the object provided is unrecognized (must be an object)")
    return body


async def deletion_of(
    http: web.BaseRequest, query: Mapping[str, str], writer: Writer
) -> tuple[Deletion, Writer]:
    """Options of a DELETE, from query and body. Refused with 400."""
    data = await read_body(http)
    body: dict[str, Any] = {}
    if data:
        try:
            decoded = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise errors.bad_request(f"error decoding the body: {error}") from error
        body = decoded if isinstance(decoded, dict) else {}
    given = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    options = Deletion(
        uid=given.get("uid") or "",
        version=given.get("resourceVersion") or "",
        grace_s=int(grace) if grace is not None and str(grace).lstrip("-").isdecimal() else None,
        propagation=body.get("propagationPolicy") or query.get("propagationPolicy", ""),
    )
    dry_run = writer.dry_run or body.get("dryRun") == ["All"]
    return options, replace(writer, dry_run=dry_run)
