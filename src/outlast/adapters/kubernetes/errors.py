"""What a reply means: from status, content type and body to one exception or one answer.

Pure. Bodies are decoded by content type, because overload answers 429 in plain text while a
disruption budget answers 429 in JSON; the two must never be taken for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from outlast.ports.cluster import (
    AlreadyExists,
    Cause,
    ClusterError,
    Conflict,
    Eviction,
    EvictionAnswer,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    Unauthorized,
    Unavailable,
)

MESSAGE_CHARS_MAX = 1024
CAUSES_MAX = 32
DISRUPTION_BUDGET = "DisruptionBudget"


class StatusCause(msgspec.Struct, frozen=True):
    """One entry of `details.causes`."""

    field: str = ""
    message: str = ""
    reason: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """`details` of a Status."""

    causes: tuple[StatusCause, ...] | None = None
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True):
    """The metav1 Status object."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None

    @property
    def causes(self) -> tuple[StatusCause, ...]:
        """The causes, empty where there are none."""
        return (self.details.causes if self.details else None) or ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer of the server."""

    status: int
    content_type: str
    body: bytes
    retry_after_s: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300


_STATUS = msgspec.json.Decoder(Status)


def status_of(reply: Reply) -> Status | None:
    """The Status in a reply, or None where the body is something else."""
    return read_status(reply.body) if "json" in reply.content_type else None


def read_status(data: bytes | msgspec.Raw) -> Status | None:
    """A Status from JSON, or None where it is not one."""
    try:
        return _STATUS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def shortened(text: str) -> str:
    """At most MESSAGE_CHARS_MAX characters; the middle goes, since servers quote whole objects there."""
    if len(text) <= MESSAGE_CHARS_MAX:
        return text
    half = MESSAGE_CHARS_MAX // 2 - 2
    return f"{text[:half]} … {text[-half:]}"


def parse_retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header; dates and nonsense count as absent."""
    if value is None or not value.strip().isascii() or not value.strip().isdigit():
        return None
    return float(value.strip()[:6])


def is_budget_refusal(reply: Reply) -> bool:
    """Whether a 429 or 403 comes from a PodDisruptionBudget and not from overload or RBAC."""
    if reply.status not in (403, 429):
        return False
    status = status_of(reply)
    return status is not None and any(cause.reason == DISRUPTION_BUDGET for cause in status.causes)


def is_not_executed(reply: Reply) -> bool:
    """Whether the server turned the request away before doing anything, so that a write may be sent again."""
    return reply.status == 429 and not is_budget_refusal(reply)


def is_transient(reply: Reply) -> bool:
    """Whether a read may be sent again."""
    return is_not_executed(reply) or reply.status in (500, 502, 503, 504)


def error_of(what: str, reply: Reply, *, creating: bool = False) -> ClusterError:
    """The exception for a reply that is not a success; `what` names request and object."""
    status = status_of(reply)
    words = _words(reply, status)
    return _error(f"{what}: {reply.status}: {words}", reply.status, status, reply.retry_after_s, creating)


def error_of_status(what: str, status: Status) -> ClusterError:
    """The exception for an ERROR object inside a watch."""
    words = shortened(status.message) or status.reason
    return _error(f"{what}: {status.code}: {words}", status.code, status, None, False)


def _error(
    message: str, code: int, status: Status | None, retry_after_s: float | None, creating: bool
) -> ClusterError:
    reason = status.reason if status else ""
    if retry_after_s is None and status and status.details and status.details.retry_after_seconds > 0:
        retry_after_s = float(status.details.retry_after_seconds)
    if code == 409 and (reason == "AlreadyExists" or (creating and reason != "Conflict")):
        return AlreadyExists(message, status=code)
    simple: dict[int, type[ClusterError]] = {
        401: Unauthorized,
        403: Forbidden,
        404: NotFound,
        409: Conflict,
        410: Expired,
    }
    if code in simple:
        return simple[code](message, status=code, retry_after_s=retry_after_s)
    # etcd refuses an object that is too big with a 500, however often it is sent.
    if code == 500 and "request is too large" in message:
        return Invalid(message, status=code)
    if 400 <= code < 500 and code not in (408, 429):
        return Invalid(message, status=code, causes=_causes(status))
    return Unavailable(message, status=code, retry_after_s=retry_after_s)


def _causes(status: Status | None) -> tuple[Cause, ...]:
    if status is None:
        return ()
    return tuple(
        Cause(field=shortened(c.field), message=shortened(c.message), reason=c.reason[:128])
        for c in status.causes[:CAUSES_MAX]
    )


def _words(reply: Reply, status: Status | None) -> str:
    if status is not None and status.message:
        return shortened(status.message)
    if 300 <= reply.status < 400:
        return "the server sent a redirect, which is not followed; check the server address"
    text = " ".join(reply.body[:MESSAGE_CHARS_MAX].decode("utf-8", "replace").split())
    return text or "no explanation given"


def eviction_of(what: str, reply: Reply) -> Eviction:
    """The answer to an eviction. Raises ClusterError where the reply is not an answer."""
    status = status_of(reply)
    words = shortened(status.message) if status else ""
    if reply.ok:
        return Eviction(EvictionAnswer.ACCEPTED)
    if reply.status == 404:
        return Eviction(EvictionAnswer.GONE, words)
    # Only the uid was given as a precondition, so only its mismatch says that our pod is gone.
    if reply.status == 409 and "uid" in words.lower():
        return Eviction(EvictionAnswer.GONE, words)
    if is_budget_refusal(reply):
        return Eviction(EvictionAnswer.BLOCKED_BY_BUDGET, words)
    # The server gives neither reason nor details here; its words are all there is.
    if reply.status == 500 and "more than one PodDisruptionBudget" in words:
        return Eviction(EvictionAnswer.MISCONFIGURED, words)
    raise error_of(what, reply)
