"""Records that span lines -> one line each: `journalctl -o json-pretty` and `-o export`, `dmesg --json`.

What a log is says its first line. A record keeps the number of its first line: the lines that it spanned
follow it, empty. Every other log passes as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from outlast.model.observation import KERNEL_LINE_BYTES_MAX

RECORD_BYTES_MAX: Final = 4 * KERNEL_LINE_BYTES_MAX
"""Of a record with all the journal's own fields; what is beyond it is not looked at."""
HEAD_BYTES_MAX: Final = 1024
"""So much has to come before it is known what a log is."""
_PRETTY: Final = re.compile(rb"\s{0,64}\{\r?\n[ \t]{1,64}\"[A-Za-z_][\w@.-]{0,64}\" ?: ?")
_DMESG: Final = re.compile(rb"\s{0,64}\{\s{0,8}\n\s{1,64}\"dmesg\" ?: ?\[\s{0,8}\n")
_EXPORT: Final = re.compile(rb"\s{0,64}__CURSOR=[^\n]{1,512}\n[A-Z_]")
_EXPORTED: Final = frozenset(
    (
        "MESSAGE", "_TRANSPORT", "SYSLOG_FACILITY", "PRIORITY", "__CURSOR", "_BOOT_ID", "_HOSTNAME",
        "_SOURCE_MONOTONIC_TIMESTAMP", "__MONOTONIC_TIMESTAMP", "__REALTIME_TIMESTAMP",
    )
)  # fmt: skip
_FIELD: Final = re.compile(rb"[A-Z0-9_]{1,64}")
_LENGTH_BYTES: Final = 8
FIELDS_MAX: Final = 4096
"""Of one record of an export; a log that never ends one is cut there."""


def unfolded(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same log with one record a line; memory stays bounded by a piece and a record."""
    stream = iter(pieces)
    head = b""
    for piece in stream:
        head += piece
        if len(head) >= HEAD_BYTES_MAX:
            break
    if not head:
        return
    rest = _joined(head, stream)
    begun = head[3:] if head.startswith(b"\xef\xbb\xbf") else head
    if _DMESG.match(begun):
        yield from _by_lines(rest, _Dmesg())
    elif _PRETTY.match(begun):
        yield from _by_lines(rest, _Pretty())
    elif _EXPORT.match(begun):
        yield from _exported(rest)
    else:
        yield from rest


def _joined(head: bytes, stream: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from stream


def _by_lines(pieces: Iterator[bytes], form: _Pretty | _Dmesg) -> Iterator[bytes]:
    carry, skipping = b"", False
    for piece in pieces:
        lines = (carry + piece).split(b"\n")
        if skipping and len(lines) > 1:
            # The end of a line that was too long: never a line of its own, whatever a program put there.
            lines[0], skipping = b"", False
        carry = b"" if skipping else lines.pop()
        if not skipping:
            yield b"".join(map(form.line, lines))
        if len(carry) > RECORD_BYTES_MAX:
            yield form.line(carry).rstrip(b"\n")
            carry, skipping = b"", True
    yield form.line(carry) if carry else b""
    yield form.rest()


class _Pretty:
    """Objects of JSON, whose braces stand alone at the beginning of a line; other lines are let through."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def line(self, line: bytes) -> bytes:
        """The record that ends with this line, and as many empty lines as it had; else nothing."""
        if not self._parts and not line.startswith(b"{"):
            return line + b"\n"
        bare = line.strip()
        self._size_bytes += len(bare)
        self._parts.append(bare if self._size_bytes <= RECORD_BYTES_MAX else b"")
        if not line.startswith(b"}"):
            return b""
        parts, self._parts, self._size_bytes = self._parts, [], 0
        return b"".join(parts) + b"\n" * len(parts)

    def rest(self) -> bytes:
        """What a cut log ends with."""
        return b"".join(self._parts)


class _Record(msgspec.Struct):
    msg: str
    time: float | str = 0.0
    fac: str | int | None = None


_RECORD: Final = msgspec.json.Decoder(_Record)


class _Dmesg:
    """One object with a list; its records become the lines that dmesg prints without `--json`."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size_bytes = self._lines = 0

    def line(self, line: bytes) -> bytes:
        """The record that ends with this line, and as many empty lines as it had; else nothing."""
        bare = line.strip()
        if bare and bare[:1] not in b'"{}]':
            return line + b"\n"
        self._lines += 1
        if bare.startswith(b"}"):
            ends = b"\n" * self._lines
            text = self.rest()
            self._parts, self._size_bytes, self._lines = [], 0, 0
            return text + ends
        if bare.endswith((b"{", b"[")) and not bare.startswith(b'"msg"'):
            self._parts, self._size_bytes = [], 0
        elif self._size_bytes + len(bare) <= RECORD_BYTES_MAX:
            self._size_bytes += len(bare)
            self._parts.append(bare)
        return b""

    def rest(self) -> bytes:
        """The record read so far, as a line."""
        fields = b"".join(self._parts).rstrip(b",")
        try:
            record = _RECORD.decode(b"{" + fields + b"}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return b""
        # The numeric `pri` of dmesg mixes level and facility, so only `-x` tells who wrote a record.
        foreign = record.fac not in (None, 0, "kern")
        time = record.time if isinstance(record.time, str) else f"{max(record.time, 0.0):12.6f}"
        text = record.msg.replace("\n", "#012")
        return f"{'<12>' if foreign else ''}[{time}] {text}".encode()


def _exported(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Fields a line, or name, length and bytes; an empty line ends a record."""
    source = _Source(pieces)
    entry: dict[str, str] = {}
    lines = fields = 0
    while (line := source.line()) is not None:
        lines += 1
        name, equals, value = line.partition(b"=")
        if line and not _FIELD.fullmatch(name):
            yield b"\n" * (lines - 1) + line + b"\n"
            lines = 0
            continue
        if line and not equals:
            length = source.exactly(_LENGTH_BYTES)
            value = source.exactly(int.from_bytes(length, "little") + 1)
            lines += length.count(b"\n") + value.count(b"\n")
            value = value[:-1]
        if line:
            key = name.decode("ascii", "replace")
            if key in _EXPORTED:
                entry.setdefault(key, value.decode("utf-8", "replace"))
        fields += 1
        if not line or fields >= FIELDS_MAX:
            yield (msgspec.json.encode(entry) if entry else b"") + b"\n" * lines
            entry, lines, fields = {}, 0, 0
    if entry:
        yield msgspec.json.encode(entry) + b"\n"


class _Source:
    """Bytes of a stream by line and by length; what is too long is read and not kept."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._data = b""
        self._at = 0

    def line(self) -> bytes | None:
        """The next line without its end; None after the last."""
        kept = b""
        while True:
            end = self._data.find(b"\n", self._at)
            if end >= 0:
                kept += self._data[self._at : end][: RECORD_BYTES_MAX - len(kept)]
                self._at = end + 1
                return kept
            kept += self._data[self._at :][: RECORD_BYTES_MAX - len(kept)]
            if not self._more():
                return kept or None

    def exactly(self, size: int) -> bytes:
        """The next bytes, fewer at the end of the stream or where they are more than are kept."""
        kept, left = b"", size
        while left:
            part = self._data[self._at : self._at + left]
            self._at += len(part)
            left -= len(part)
            kept += part[: RECORD_BYTES_MAX - len(kept)]
            if left and not self._more():
                break
        return kept

    def _more(self) -> bool:
        self._data, self._at = next((piece for piece in self._pieces if piece), b""), 0
        return bool(self._data)
