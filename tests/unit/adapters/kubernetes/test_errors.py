"""What a reply means: each status one exception, each eviction answer its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outlast.adapters.kubernetes.errors import (
    MESSAGE_CHARS_MAX,
    Reply,
    error_of,
    eviction_of,
    is_not_executed,
    is_transient,
    parse_retry_after,
    shortened,
)
from outlast.ports.cluster import (
    AlreadyExists,
    ClusterError,
    Conflict,
    EvictionAnswer,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    Unauthorized,
    Unavailable,
)
from tests.unit.adapters.kubernetes.hostile import status

BUDGET = {"causes": [{"reason": "DisruptionBudget", "message": "needs 1 healthy pod"}]}


def reply(code: int, body: Any = None, content_type: str = "application/json") -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    return Reply(code, content_type, data)


OVERLOAD = reply(429, b"Too many requests, please try again later.\n", "text/plain; charset=utf-8")


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", Invalid),
        (408, "Timeout", Unavailable),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Expired),
        (413, "RequestEntityTooLarge", Invalid),
        (415, "UnsupportedMediaType", Invalid),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", Unavailable),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Unavailable),
        (302, "", Unavailable),
    ],
)
def test_each_status_is_one_exception(code: int, reason: str, expected: type[ClusterError]) -> None:
    """Callers decide by type; request, code and the server's words are in the text."""
    error = error_of("patch Node n1", reply(code, status(code, reason, "the words")))
    assert type(error) is expected
    assert error.status == code
    assert str(error) == f"patch Node n1: {code}: the words"


def test_a_refusal_names_fields_and_rules() -> None:
    """The causes of a 422 are kept, bounded."""
    causes = [{"field": f"spec.f{i}", "message": "m", "reason": "FieldValueInvalid"} for i in range(100)]
    error = error_of("x", reply(422, status(422, "Invalid", "no", causes=causes)))
    assert isinstance(error, Invalid)
    assert error.causes[0].field == "spec.f0"
    assert len(error.causes) == 32


def test_an_object_too_large_for_etcd_is_invalid_although_the_server_says_500() -> None:
    """Sending it again can never help."""
    error = error_of("x", reply(500, status(500, "", "etcdserver: request is too large")))
    assert isinstance(error, Invalid)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"\xff\xfe", b"[1]", b'{"code":"x"}', b'{"details":{"causes":null}}']
)
def test_any_body_gives_an_exception_and_not_a_crash(body: bytes) -> None:
    """Proxies answer in HTML, broken servers in nothing."""
    for content_type in ("application/json", "text/html"):
        assert isinstance(error_of("x", reply(503, body, content_type)), Unavailable)


def test_a_long_refusal_keeps_both_ends() -> None:
    """Servers quote whole objects and put the broken rule last."""
    short = shortened("first " + "x" * 5000 + " last")
    assert short.startswith("first")
    assert short.endswith("last")
    assert len(short) <= MESSAGE_CHARS_MAX


def test_a_budget_and_overload_are_told_apart_by_content_type_and_cause() -> None:
    """Both are 429; only the plain-text one may be sent again."""
    blocked = reply(429, status(429, "TooManyRequests", "Cannot evict pod", **BUDGET))
    assert is_not_executed(OVERLOAD)
    assert not is_not_executed(blocked)
    assert eviction_of("x", blocked).answer is EvictionAnswer.BLOCKED_BY_BUDGET
    with pytest.raises(Unavailable):
        eviction_of("x", OVERLOAD)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (reply(201, {"kind": "Status", "status": "Success"}), EvictionAnswer.ACCEPTED),
        (reply(200, b"ok", "text/plain"), EvictionAnswer.ACCEPTED),
        (reply(404, status(404, "NotFound", 'pods "p" not found')), EvictionAnswer.GONE),
        (
            reply(409, status(409, "Conflict", "the UID in the precondition (a) does not match (b)")),
            EvictionAnswer.GONE,
        ),
        (reply(403, status(403, "Forbidden", "too many", **BUDGET)), EvictionAnswer.BLOCKED_BY_BUDGET),
        (
            reply(
                500,
                status(
                    500,
                    "",
                    "This pod has more than one PodDisruptionBudget, which the eviction does not support.",
                ),
            ),
            EvictionAnswer.MISCONFIGURED,
        ),
    ],
)
def test_each_eviction_answer_has_its_meaning(answer: Reply, expected: EvictionAnswer) -> None:
    """The table of answers seen on real servers."""
    assert eviction_of("evict Pod p", answer).answer is expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (reply(403, status(403, "Forbidden", "no right")), Forbidden),
        (reply(409, status(409, "Conflict", "the object has been modified")), Conflict),
        (reply(500, status(500, "InternalError", "etcd leader changed")), Unavailable),
        (reply(504, status(504, "Timeout", "PDB conflict")), Unavailable),
    ],
)
def test_what_is_not_an_eviction_answer_is_raised(answer: Reply, expected: type[ClusterError]) -> None:
    """A failure is never taken for an answer about the pod."""
    with pytest.raises(expected):
        eviction_of("evict Pod p", answer)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("3", 3.0), (" 10 ", 10.0), (None, None), ("soon", None), ("-1", None), ("1e9", None)],
)
def test_retry_after_is_whole_seconds_or_nothing(value: str | None, expected: float | None) -> None:
    """Dates and nonsense count as absent."""
    assert parse_retry_after(value) == expected


@pytest.mark.parametrize(
    ("code", "again"), [(500, True), (503, True), (404, False), (409, False), (501, False)]
)
def test_only_what_may_pass_is_read_again(code: int, again: bool) -> None:
    """A refusal stays a refusal."""
    assert is_transient(reply(code)) is again
