"""Quiesce: somebody asks the agent of a node to let go of the GPUs, because any client makes a reset fail.

The request is an annotation on the Node, which the agent watches anyway and has no right to write. The
answer is in `NodeHealth.status.quiesce`. A request ends by itself, so a dead asker blinds nobody for long.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from outlast.model.cluster import Node
from outlast.model.names import QUIESCE_ANNOTATION

QUIESCE_MAX_S: Final = 1800.0
"""The longest that one request keeps the agent away from the GPUs, whatever it says; as long as a driver
upgrade may take. Longer work asks again."""
TEXT_MAX: Final = 128


class QuiesceRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The value of the annotation."""

    id: Annotated[str, Meta(min_length=1, max_length=TEXT_MAX)]
    """Names this request; the answer repeats it."""
    by: Annotated[str, Meta(min_length=1, max_length=TEXT_MAX)]
    """Who asks: an incident, a person."""
    until: Annotated[datetime, Meta(tz=True)]
    """When the agent takes the GPUs again by itself, at the latest."""

    def to_annotation(self) -> str:
        """The JSON that goes on the node."""
        return msgspec.json.encode(self).decode()


def request_in(text: str | bytes) -> QuiesceRequest | None:
    """The request that a text holds, or None for nonsense."""
    try:
        return msgspec.json.decode(text, type=QuiesceRequest)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def request_of(node: Node) -> QuiesceRequest | None:
    """The request on a node; None where there is none, or nonsense."""
    text = node.metadata.annotations.get(QUIESCE_ANNOTATION)
    return None if text is None else request_in(text)
