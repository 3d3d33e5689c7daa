"""How far the kernel log was judged: boot id and sequence number, as a few bytes of JSON.

A position of another boot means nothing, and one that cannot be read is as good as none; both start
at the oldest record. Losing it costs repeated work, never a record.
"""

from __future__ import annotations

import msgspec


class Position(msgspec.Struct, frozen=True):
    """The last judged record of one boot."""

    boot_id: str
    sequence: int


def encode_position(position: Position) -> bytes:
    """For the state file."""
    return msgspec.json.encode(position) + b"\n"


def decode_position(content: bytes) -> Position | None:
    """None when the bytes are no position."""
    try:
        position = msgspec.json.decode(content, type=Position)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return position if position.boot_id and position.sequence >= 0 else None
