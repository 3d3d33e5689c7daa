"""Follows a log file that a syslog daemon writes, across its rotation; only lines that can matter come out.

Everybody can write to such a file, so only lines with the kernel's tag count, and no agent chooses it by
itself. It is read from this boot's beginning, as far as the file still knows where that was.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec

from outlast.adapters.linux.by_time import record_of, time_of
from outlast.health.replay.line import read_line
from outlast.health.replay.scan import Scanner
from outlast.health.sources import kernel_text
from outlast.model.observation import KernelLogCaughtUp, KernelLogGap, KernelLogLost
from outlast.ports.clock import Clock
from outlast.ports.node import KernelLogItem, StateFile

POLL_S: Final = 0.25
READ_BYTES: Final = 256 * 1024
HISTORY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of a file that is seen for the first time, at most its last part is read."""
RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 30.0
_BANNER: Final = b"Linux version "


class FilePosition(msgspec.Struct, frozen=True):
    """How far a file was judged."""

    boot_id: str
    inode: int
    offset_bytes: int


class LogFile:
    """Implements `outlast.ports.node.KernelLog` on a file in any format that `read_line` knows."""

    def __init__(
        self,
        *,
        state: StateFile,
        boot_id: str,
        clock: Clock,
        path: Path,
        literals: Iterable[bytes] = kernel_text.LITERALS,
    ) -> None:
        self._state = state
        self._boot_id = boot_id
        self._clock = clock
        self._path = path
        self._literals = tuple(literals)
        self._delivered: FilePosition | None = None
        self._saved: FilePosition | None = None
        self._time_us = 0
        self._loaded = False

    async def records(self) -> AsyncGenerator[KernelLogItem, None]:
        """Follow for ever. Close the iterator (`contextlib.aclosing`) to let go of the file."""
        if not self._loaded:
            self._loaded = True
            if doubt := self._load():
                yield KernelLogGap(lost=0, reason=doubt)
        retry_s, said = RETRY_FIRST_S, ""
        while True:
            fd = -1
            try:
                fd, start, doubt = self._open()
                if doubt:
                    yield KernelLogGap(lost=0, reason=doubt)
                async with aclosing(self._follow(fd, start)) as items:
                    async for item in items:
                        retry_s, said = RETRY_FIRST_S, ""
                        yield item
                continue  # it was replaced
            except OSError as error:
                message = _explain(self._path, error)
            finally:
                if fd >= 0:
                    os.close(fd)
            if message != said:
                said = message
                yield KernelLogLost(message=message)
            await self._clock.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_MAX_S)

    def save_position(self) -> None:
        """Remember how far the file was delivered; writes only when that has moved."""
        if not self._boot_id or self._delivered is None or self._delivered == self._saved:
            return
        if self._state.save(msgspec.json.encode(self._delivered) + b"\n"):
            self._saved = self._delivered

    async def _follow(self, fd: int, start: int) -> AsyncGenerator[KernelLogItem, None]:
        """Until the file is replaced or cut."""
        scanner = Scanner(self._literals)
        inode = os.fstat(fd).st_ino
        offset, count, live = start, 0, False
        os.lseek(fd, start, os.SEEK_SET)
        while True:
            data = os.read(fd, READ_BYTES)
            offset += len(data)
            for _, raw in scanner.feed(data):
                line = read_line(raw, strict=True)
                if not line.relevant or line.boundary is not None:
                    continue
                self._time_us = time_of(line, self._time_us)
                count += 1
                yield record_of(line, self._time_us, replayed=not live)
            whole = offset - scanner.waiting_bytes
            self._delivered = FilePosition(self._boot_id, inode, whole)
            if data:
                await self._clock.sleep(0)
                continue
            if not live:
                live = True
                yield KernelLogCaughtUp(replayed=count)
            await self._clock.sleep(POLL_S)
            here = os.fstat(fd)
            if here.st_size < offset:
                yield KernelLogGap(lost=0, reason=f"{self._path} was cut; started at its beginning")
                self._delivered = FilePosition(self._boot_id, inode, 0)
                return
            if here.st_size == offset and self._is_replaced(here):
                # A new file continues the log, so nothing is missing.
                self._delivered = FilePosition(self._boot_id, self._path.stat().st_ino, 0)
                return

    def _is_replaced(self, here: os.stat_result) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False  # Between the two steps of a rotation.
        return (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino)

    def _open(self) -> tuple[int, int, str]:
        """The file, where to begin, and what may be missing."""
        fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            here = os.fstat(fd)
            if not stat.S_ISREG(here.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            known, doubt = self._delivered, ""
            if known is not None and known.inode == here.st_ino and known.offset_bytes <= here.st_size:
                return fd, known.offset_bytes, ""
            if known is not None:
                doubt = f"the saved position is not in {self._path}: it was cut or replaced meanwhile"
            return fd, _boot_begins(fd, here.st_size), doubt
        except BaseException:
            os.close(fd)
            raise

    def _load(self) -> str:
        content = self._state.load()
        if content is None:
            return ""
        try:
            position = msgspec.json.decode(content, type=FilePosition)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "the saved position is unreadable; started at the oldest record of this boot"
        if position.boot_id == self._boot_id and position.offset_bytes >= 0:
            self._delivered = self._saved = position
        return ""


def _boot_begins(fd: int, size_bytes: int) -> int:
    """Offset of the newest banner of a kernel; else of the part that is looked at."""
    start = max(0, size_bytes - HISTORY_BYTES_MAX)
    found, offset, carry = start, start, b""
    os.lseek(fd, start, os.SEEK_SET)
    while data := os.read(fd, READ_BYTES):
        block = carry + data
        last = block.rfind(_BANNER)
        while last >= 0:
            begin = block.rfind(b"\n", 0, last) + 1
            line = read_line(block[begin : last + len(_BANNER)], strict=True)
            if line.kernel and line.text.startswith("Linux version"):
                found = offset - len(carry) + begin
                break
            last = block.rfind(_BANNER, 0, last)
        offset += len(data)
        carry = block[-1024:]
    return found


def _explain(path: Path, error: OSError) -> str:
    words = {errno.ENOENT: "does not exist", errno.EACCES: "may not be read; run the agent as root"}
    return f"the kernel log {path} {words.get(error.errno or 0, f'cannot be read: {error.strerror}')}"
