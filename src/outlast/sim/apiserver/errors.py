"""Refusals as Kubernetes words them.

Clients decide by code, reason and causes, people read the message; both follow the answers that a
kube-apiserver gives for the same request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.sim.apiserver.resources import Resource


@dataclass(frozen=True, slots=True)
class Cause:
    """One field and the rule it broke."""

    reason: str
    message: str
    field: str


class ApiError(Exception):
    """A request that is refused; `status()` is the body of the answer."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers = headers or {}
        self.extra_meta: dict[str, Any] = {}

    def status(self) -> dict[str, Any]:
        """The `Status` object of the answer."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.extra_meta,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = dict(self.details)
        body["code"] = self.code
        return body


def _named(resource: Resource, name: str) -> dict[str, Any]:
    details = {"name": name, "kind": resource.plural}
    if resource.group:
        details["group"] = resource.group
    return details


def not_found(resource: Resource, name: str) -> ApiError:
    """404: no such object."""
    return ApiError(
        404, "NotFound", f'{resource.qualified} "{name}" not found', details=_named(resource, name)
    )


def already_exists(resource: Resource, name: str) -> ApiError:
    """409: the name is taken."""
    message = f'{resource.qualified} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, details=_named(resource, name))


def conflict(resource: Resource, name: str, why: str = "") -> ApiError:
    """409: a precondition failed."""
    why = why or (
        "the object has been modified; please apply your changes to the latest version and try again"
    )
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, details=_named(resource, name))


def precondition(resource: Resource, name: str, what: str, given: str, found: str) -> ApiError:
    """409: the object to delete is not the one that was meant."""
    happened = "deleted and then recreated" if what == "UID" else "modified"
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    message = (
        f'Operation cannot be fulfilled on {kind} "{name}": the {what} in the precondition ({given}) does '
        f"not match the {what} in record ({found}). The object might have been {happened}"
    )
    details = {"name": name, "kind": resource.kind} | ({"group": resource.group} if resource.group else {})
    return ApiError(409, "Conflict", message, details=details)


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> ApiError:
    """422: the object breaks rules; each cause names a field."""
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    parts = [f"{c.field}: {c.message}" for c in causes]
    text = parts[0] if len(parts) == 1 else "[" + ", ".join(parts) + "]"
    details: dict[str, Any] = {"name": name} if name else {}
    details["kind"] = resource.kind
    if resource.group:
        details["group"] = resource.group
    details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes]
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details=details)


def options_invalid(kind: str, causes: Sequence[Cause]) -> ApiError:
    """422: query options that contradict each other or make no sense."""
    parts = [f"{c.field}: {c.message}" for c in causes]
    text = parts[0] if len(parts) == 1 else "[" + ", ".join(parts) + "]"
    details = {
        "kind": kind, "group": "meta.k8s.io",
        "causes": [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes],
    }  # fmt: skip
    return ApiError(422, "Invalid", f'{kind}.meta.k8s.io "" is invalid: {text}', details=details)


def unprocessable(
    message: str = "the server rejected our request due to an error in our request",
) -> ApiError:
    """422 without a cause: what a failed JSON Patch operation is answered with."""
    return ApiError(422, "Invalid", message, details={})


def bad_request(message: str) -> ApiError:
    """400: the request cannot be understood."""
    return ApiError(400, "BadRequest", message)


def expired(message: str) -> ApiError:
    """410: older than what the server remembers."""
    return ApiError(410, "Expired", message)


class Undecodable(ApiError):
    """400: the body is not an object of this kind; `why` names the field."""

    def __init__(self, resource: Resource, why: str) -> None:
        kind = resource.kind
        super().__init__(
            400, "BadRequest", f'{kind} in version "{resource.version}" cannot be handled as a {kind}: {why}'
        )
        self.why = why


PATCH_SHOWN_CHARS_MAX = 1024


def unpatchable(error: Undecodable, patch: Any) -> ApiError:
    """422: the patch makes something that is not an object of the kind."""
    import msgspec

    shown = msgspec.json.encode(msgspec.json.encode(patch).decode()[:PATCH_SHOWN_CHARS_MAX]).decode()
    message = f"Invalid value: {shown}: {error.why}"
    details = {"causes": [{"reason": "FieldValueInvalid", "message": message, "field": "patch"}]}
    return ApiError(422, "Invalid", f' "" is invalid: patch: {message}', details=details)


def unsupported_media(accepted: Sequence[str]) -> ApiError:
    """415: the body is of a type that this resource does not take."""
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(
        accepted
    )
    return ApiError(415, "UnsupportedMediaType", message)


def method_not_allowed(verb: str) -> ApiError:
    """405: the path exists, the verb does not."""
    return ApiError(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
        details={"causes": [{"reason": "MethodNotAllowed", "message": verb}]} if verb else {},
    )


def required(field: str, message: str = "Required value") -> Cause:
    """Cause: a field that must be there."""
    return Cause("FieldValueRequired", message, field)


def invalid_value(field: str, value: Any, why: str) -> Cause:
    """Cause: a value that breaks a rule."""
    import msgspec

    shown = msgspec.json.encode(value).decode() if not isinstance(value, str) else f'"{value}"'
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {why}", field)


def forbidden_field(field: str, why: str) -> Cause:
    """Cause: a field that must not be set or changed."""
    return Cause("FieldValueForbidden", f"Forbidden: {why}", field)


def unsupported_value(field: str, value: Any, supported: Sequence[Any]) -> Cause:
    """Cause: not one of the listed values."""
    listed = ", ".join(f'"{s}"' if isinstance(s, str) else str(s) for s in supported)
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause("FieldValueNotSupported", f"Unsupported value: {shown}: supported values: {listed}", field)
