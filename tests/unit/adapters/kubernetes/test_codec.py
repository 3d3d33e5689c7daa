"""Objects on the wire: times that every server accepts, kinds filled in, bad items set apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest

from outlast.adapters.kubernetes.codec import (
    Undecodable,
    decode_envelope,
    decode_identity,
    decode_object,
    decode_page,
    encode_body,
    encode_object,
)
from outlast.model.cluster import LEASES, Lease, LeaseSpec, Node, ObjectMeta
from tests.unit.adapters.kubernetes.hostile import node, node_list


def test_times_always_have_six_digits_and_are_utc() -> None:
    """MicroTime refuses fewer digits, and one moment in a million has none of its own."""
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=1)))
    lease = Lease(metadata=ObjectMeta(name="l"), spec=LeaseSpec(renew_time=moment))
    plain = json.loads(encode_object(LEASES, lease))
    assert plain["spec"]["renewTime"] == "2026-01-02T02:04:05.000000Z"
    assert json.loads(encode_body([{"value": moment.astimezone(UTC)}]))[0]["value"].endswith("05.000000Z")


def test_a_time_without_a_zone_is_a_bug() -> None:
    """The server would refuse it with less clear words."""
    with pytest.raises(ValueError, match="time zone"):
        encode_body({"t": datetime(2026, 1, 1)})  # noqa: DTZ001


def test_kind_and_version_are_filled_in() -> None:
    """Shapes leave them out, servers need them; plain data may say its own."""
    plain = json.loads(encode_object(LEASES, {"metadata": {"name": "l"}}))
    assert (plain["apiVersion"], plain["kind"]) == ("coordination.k8s.io/v1", "Lease")


def test_a_page_sets_bad_items_apart_and_needs_their_names() -> None:
    """An item without a readable name makes the page unreadable: it could be any object."""
    page, bad = decode_page(Node, json.dumps(node_list(1, node("a", 1), node("b", 2) | {"spec": 3})).encode())
    assert [n.metadata.name for n in page.items or []] == ["a"]
    assert [(identity.name, bool(reason)) for identity, reason in bad] == [("b", True)]
    with pytest.raises(Undecodable):
        decode_page(Node, json.dumps({"items": [{"metadata": 3}]}).encode())


@pytest.mark.parametrize("decode", [decode_envelope, lambda data: decode_object(Node, data), decode_identity])
def test_what_is_nested_without_end_is_unreadable_and_nothing_worse(
    decode: Callable[[bytes], object],
) -> None:
    """A decoder that gives up on depth must not take the process down with it."""
    endless = b"[" * 100_000 + b"]" * 100_000
    data = b'{"type":"ADDED","object":{},"metadata":{"name":"n"},"more":' + endless + b"}"
    with pytest.raises(Undecodable):
        decode(data)
    with pytest.raises(Undecodable):
        decode_page(Node, b'{"items":[' + data + b"]}")
