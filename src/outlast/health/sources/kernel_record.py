r"""Bytes in /dev/kmsg format -> records; any bytes in, a record or None out, never an exception.

    priority,sequence,microseconds,flags[,more];text\n KEY=value\n KEY=value\n

Format as in the kernel's Documentation/ABI/testing/dev-kmsg. Bytes that could confuse a reader come
as \xNN, the backslash itself too, so undoing it is unambiguous.
"""

from __future__ import annotations

import re

from outlast.model.observation import KERNEL_LINE_BYTES_MAX, KERNEL_PROPERTIES_MAX, KernelRecord

HEADER_BYTES_MAX = 256
"""A header is four numbers and a few flags; without a `;` in here the bytes are no record."""

PROPERTY_BYTES_MAX = 1024
FLAGS_MAX = 16
_INT64_MAX = 2**63 - 1
_SHORT = 18
"""A header up to this long has no room for a number that is too large."""
_FLAGS = {b"-": "-", b"c": "c"}
"""Those of nearly all records, so that nothing is decoded for them."""

_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


def unescape(data: bytes) -> str:
    """The text that was printed: escapes undone as bytes, then decoded; broken UTF-8 is replaced."""
    return _ESCAPE.sub(lambda match: bytes((int(match.group(1), 16),)), data).decode("utf-8", "replace")


def is_property(line: bytes) -> bool:
    """Whether a line belongs to the record before it."""
    return line.startswith(b" ")


def parse_record(
    data: bytes, *, properties: tuple[bytes, ...] = (), replayed: bool = False
) -> KernelRecord | None:
    """One record, with its property lines either in `data` or beside it; None when it is not one."""
    # Nothing but searches for one byte: half the time of one regular expression.
    head, end, text = data.partition(b";")
    fields = head.split(b",", 4)
    if not end or len(fields) < 3 or len(head) > HEADER_BYTES_MAX or b"\n" in head:
        return None
    first, second, third = fields[0], fields[1], fields[2]
    if not (first and second and third and (first + second + third).isdigit()):
        return None
    priority, sequence, timestamp_us = int(first), int(second), int(third)
    if len(head) > _SHORT and max(priority, sequence, timestamp_us) > _INT64_MAX:
        return None
    flags = fields[3] if len(fields) > 3 else b"-"
    text, _, rest = text.partition(b"\n")
    if len(text) > KERNEL_LINE_BYTES_MAX:
        text = text[:KERNEL_LINE_BYTES_MAX]
    return KernelRecord(
        sequence=sequence,
        timestamp_us=timestamp_us,
        priority=priority,
        flags=_FLAGS.get(flags) or flags[:FLAGS_MAX].decode("ascii", "replace"),
        text=unescape(text) if b"\\x" in text else text.decode("utf-8", "replace"),
        properties=_properties(rest, properties) if rest or properties else (),
        replayed=replayed,
    )


def _properties(rest: bytes, beside: tuple[bytes, ...]) -> tuple[str, ...]:
    lines = (*rest[:KERNEL_LINE_BYTES_MAX].split(b"\n", KERNEL_PROPERTIES_MAX + 1), *beside)
    own = [line for line in lines if is_property(line)]
    return tuple(unescape(line[1:PROPERTY_BYTES_MAX]) for line in own[:KERNEL_PROPERTIES_MAX])


class LineSplitter:
    """Cuts a stream without record boundaries (a FIFO, a file) into lines, with a bounded carry.

    A line longer than the limit is given up to the limit, counted in `cut`, and skipped to its end.
    """

    def __init__(self, limit_bytes: int = KERNEL_LINE_BYTES_MAX) -> None:
        self.cut = 0
        self._limit_bytes = limit_bytes
        self._carry = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their newlines; empty lines are left out."""
        *complete, rest = data.split(b"\n")
        lines: list[bytes] = []
        for piece in complete:
            if not self._skipping:
                self._add(self._carry + piece, lines)
            self._carry, self._skipping = b"", False
        if not self._skipping:
            self._carry += rest
            if len(self._carry) > self._limit_bytes:
                self._add(self._carry, lines)
                self._carry, self._skipping = b"", True
        return lines

    def _add(self, line: bytes, lines: list[bytes]) -> None:
        if len(line) > self._limit_bytes:
            self.cut += 1
            line = line[: self._limit_bytes]
        if line:
            lines.append(line)
