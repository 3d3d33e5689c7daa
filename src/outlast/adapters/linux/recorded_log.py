"""A recorded log as a stream of plain bytes: a file or a pipe, compressed or not, read once, bounded.

What kind of file it is says its beginning, never its name. Trouble on the way ends the stream with a note;
what was read before it is still worth reading.
"""

from __future__ import annotations

import codecs
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

PIECE_BYTES: Final = 256 * 1024
XZ_MEMORY_BYTES_MAX: Final = 256 * 1024 * 1024
"""The strongest preset of xz needs 65 MiB to unpack."""
PACKED_SLICE_BYTES: Final = 4096
"""Given to an unpacker at once: as much as this before a damage may be lost with it."""
_MAGIC_BYTES: Final = 8

_NOT_READ: Final = {
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; unpack it: zstd -dc {name} | outlast replay -",
    b"\x04\x22\x4d\x18": "is compressed with lz4; unpack it: lz4 -dc {name} | outlast replay -",
    b"PK\x03\x04": "is a zip archive; unpack it: unzip -p {name} | outlast replay -",
    b"LPKSHHRH": "is a journal of systemd; print it: journalctl --file {name} -k -o json | outlast replay -",
}
_UTF16: Final = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


class RecordedLogError(Exception):
    """The log cannot be read at all; `str()` is one sentence with the file's name."""


class RecordedLog:
    """One recorded log. Raises RecordedLogError when it cannot be opened or is of a kind we can't read."""

    size_bytes: int | None = None
    """Of the file as stored; None for a pipe."""

    def __init__(self, path: Path | None, stdin: BinaryIO | None = None) -> None:
        """`path` None reads `stdin`."""
        self.name = str(path) if path is not None else "(stdin)"
        self.note = ""
        """What was wrong with it; complete when `pieces` has ended."""
        self.stored_bytes = 0
        """Read of it so far."""
        self._path = path
        self._file: BinaryIO | None = self._open(path) if path is not None else stdin
        if self._file is None:
            raise RecordedLogError("there is no standard input to read from.")
        self._head = b""
        try:
            self._head = self._read(_MAGIC_BYTES)
        except OSError as error:
            self.close()
            raise RecordedLogError(f"{self.name} cannot be read: {error.strerror}.") from error
        for magic, words in _NOT_READ.items():
            if self._head.startswith(magic):
                self.close()
                raise RecordedLogError(f"{self.name} {words.format(name=self.name)}")
        if self.size_bytes is not None:
            self.close()  # There may be thousands of them; it is opened again when its turn comes.

    def pieces(self) -> Iterator[bytes]:
        """All of it, unpacked, in pieces of at most a few MiB."""
        try:
            if self._file is None and self._path is not None:
                self._file, self.stored_bytes = self._open(self._path), 0
                self._head = self._read(_MAGIC_BYTES)
            yield from self._decoded(self._unpacked())
        except RecordedLogError:
            self.note = "it was gone when its turn came"
        except OSError as error:
            self.note = f"it could not be read: {error.strerror}"
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None and self._path is not None:
            self._file.close()
        self._file = None

    def _open(self, path: Path) -> BinaryIO:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            words = {
                errno.ENOENT: "does not exist",
                errno.EACCES: "may not be read by this user; try sudo",
                errno.EPERM: "may not be read by this user; try sudo",
            }
            raise RecordedLogError(f"{path} {words.get(error.errno or 0, error.strerror)}.") from error
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            os.close(fd)
            raise RecordedLogError(f"{path} is a directory; name the files in it, such as {path}/*.log.")
        if stat.S_ISREG(mode):
            self.size_bytes = os.fstat(fd).st_size
        elif stat.S_ISCHR(mode):
            os.close(fd)
            raise RecordedLogError(f"{path} is a device, not a recorded log; use: dmesg | outlast replay -")
        return os.fdopen(fd, "rb", buffering=0)

    def _read(self, size: int) -> bytes:
        data = (self._file.read(size) if self._file is not None else None) or b""
        self.stored_bytes += len(data)
        return data

    def _stored(self) -> Iterator[bytes]:
        data = self._head
        self._head = b""
        while data:
            yield data
            try:
                data = self._read(PIECE_BYTES)
            except OSError as error:
                self.note = f"reading stopped after {self.stored_bytes} bytes: {error.strerror}"
                return

    def _unpacked(self) -> Iterator[bytes]:
        head = self._head[:_MAGIC_BYTES]
        if head.startswith(b"\x1f\x8b"):
            import zlib

            return self._inflate(lambda: zlib.decompressobj(wbits=31), (zlib.error,), "gzip")
        if head.startswith(b"\xfd7zXZ\x00"):
            import lzma

            return self._inflate(
                lambda: lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES_MAX), (lzma.LZMAError,), "xz"
            )
        if head.startswith(b"BZh"):
            import bz2

            return self._inflate(bz2.BZ2Decompressor, (OSError, ValueError), "bzip2")
        return self._stored()

    def _inflate(self, fresh: Any, errors: tuple[type[Exception], ...], kind: str) -> Iterator[bytes]:
        """Unpack, one bounded piece at a time; files may be several packed ones in a row."""
        unpacker = fresh()
        begun = False
        for stored in _sliced(self._stored()):
            data = stored
            while True:
                if unpacker.eof:
                    data = unpacker.unused_data + data
                    unpacker, begun = fresh(), False
                if not data and not _holds_back(unpacker):
                    break
                begun = True
                try:
                    piece = unpacker.decompress(data, PIECE_BYTES)
                except errors:
                    self.note = f"the {kind} data are damaged; what comes behind the damage is not read"
                    return
                data = getattr(unpacker, "unconsumed_tail", b"")
                if piece:
                    yield piece
                if unpacker.eof:
                    data = unpacker.unused_data
                    unpacker, begun = fresh(), False
        if begun and not unpacker.eof:
            self.note = f"the {kind} data end too early; the rest is missing"

    def _decoded(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """UTF-16, as some shells write it, to UTF-8."""
        decoder: codecs.IncrementalDecoder | None = None
        for index, piece in enumerate(pieces):
            if index == 0 and piece[:2] in _UTF16:
                decoder = codecs.getincrementaldecoder(_UTF16[piece[:2]])("replace")
            if decoder is None:
                yield piece
            else:
                yield decoder.decode(piece).lstrip("\ufeff").encode("utf-8", "replace")


def _sliced(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        for start in range(0, len(piece), PACKED_SLICE_BYTES):
            yield piece[start : start + PACKED_SLICE_BYTES]


def _holds_back(unpacker: Any) -> bool:
    """Whether it can give more without more input (xz and bzip2 keep what did not fit)."""
    return not unpacker.eof and not getattr(unpacker, "needs_input", True)
