"""Follows /dev/kmsg, or a FIFO or file of the same format, from the record after the saved position.

Nothing is queued here: a record is read when the follower asks for it, and what waits, waits in the
kernel's own ring, which says how much it had to drop. The log being absent or forbidden is a reading.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

from outlast.adapters.linux.kernel_continuity import Continuity
from outlast.adapters.linux.position import Position, decode_position, encode_position
from outlast.adapters.linux.waiting import readable
from outlast.health.sources.kernel_record import LineSplitter, is_property, parse_record
from outlast.model.observation import (
    KERNEL_LINE_BYTES_MAX,
    KERNEL_PROPERTIES_MAX,
    KernelLogGap,
    KernelLogLost,
    KernelRecord,
)
from outlast.ports.clock import Clock
from outlast.ports.node import KernelLogItem, StateFile

READ_BYTES = 16 * 1024
"""More than any record the kernel prints; a smaller buffer makes reads fail with EINVAL."""

RECORDS_PER_TURN = 64
"""Records read before other tasks of the process get their turn."""

RETRY_FIRST_S = 0.5
RETRY_MAX_S = 30.0
UNUSABLE_READS_MAX = 10_000
"""Reads in a row without one record: then this is not a kernel log, and the reader backs off."""

FILE_POLL_S = 0.1
"""A regular file cannot wake its reader."""


class DevKmsg:
    """The kernel log of this machine; implements `outlast.ports.node.KernelLog`.

    Works on Linux in one event loop. `path` is /dev/kmsg or anything that delivers its format.
    `boot_id` names the boot whose sequence numbers these are; a saved position of another is ignored.
    """

    def __init__(
        self, *, state: StateFile, boot_id: str, clock: Clock, path: Path = Path("/dev/kmsg")
    ) -> None:
        self._path = path
        self._state = state
        self._boot_id = boot_id
        self._clock = clock
        self._delivered: int | None = None
        self._saved: int | None = None

    async def records(self) -> AsyncGenerator[KernelLogItem, None]:
        """Follow for ever. Close the iterator (`contextlib.aclosing`) to let go of the device."""
        position, doubt = self._saved_position()
        if doubt:
            yield KernelLogGap(lost=0, reason=doubt)
        if self._delivered is None:
            self._delivered = self._saved = position
        retry_s, said = RETRY_FIRST_S, ""
        while True:
            source: _Source | None = None
            try:
                source = _open(self._path, self._delivered, self._clock)
                while not source.replaced:
                    items, idle = source.turn()
                    for item in items:
                        retry_s, said = RETRY_FIRST_S, ""
                        if isinstance(item, KernelRecord):
                            self._delivered = item.sequence
                        yield item
                    await (source.wait() if idle else asyncio.sleep(0))
                self._delivered = None
                yield KernelLogGap(
                    lost=0, reason=f"{self._path} was replaced or cut; started at its beginning"
                )
                continue
            except OSError as error:
                message = _explain(self._path, error)
            finally:
                if source is not None:
                    source.close()
            if message != said:
                said = message
                yield KernelLogLost(message=message)
            await self._clock.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_MAX_S)

    def save_position(self) -> None:
        """Remember the last delivered record; writes only when it has moved."""
        if not self._boot_id or self._delivered is None or self._delivered == self._saved:
            return
        if self._state.save(encode_position(Position(self._boot_id, self._delivered))):
            self._saved = self._delivered

    def _saved_position(self) -> tuple[int | None, str]:
        content = self._state.load()
        if content is None:
            return None, ""
        position = decode_position(content)
        if position is None:
            return None, "the saved position is unreadable; started at the oldest record"
        return (position.sequence if position.boot_id == self._boot_id else None), ""


class _Source:
    """One opening of the log: a descriptor, and what is known about its order."""

    def __init__(self, fd: int, position: int | None) -> None:
        self.fd = fd
        self.replaced = False
        self.continuity = Continuity(position)
        self._position = position

    def close(self) -> None:
        os.close(self.fd)

    def turn(self) -> tuple[list[KernelLogItem], bool]:
        """The next items, a bounded number of them, and whether the log has no more for now."""
        raise NotImplementedError

    async def wait(self) -> None:
        """Return when there may be more to read, or `replaced` was found to be true."""
        await readable(self.fd)

    def _end(self) -> tuple[list[KernelLogItem], bool]:
        """The log has no more for now; a position that lies behind all of it can't be right."""
        if not self.continuity.position_is_beyond_newest or not self._rewind():
            return self.continuity.end_reached(), True
        reason = f"the saved position {self._position} is beyond the newest record; started at the oldest"
        self.continuity = Continuity(None)
        return [KernelLogGap(lost=0, reason=reason)], False

    def _rewind(self) -> bool:
        try:
            os.lseek(self.fd, 0, os.SEEK_SET)
        except OSError:
            return (
                False  # A FIFO: what was skipped is gone, and what follows is delivered whatever its number.
            )
        return True


class _Device(_Source):
    """/dev/kmsg: one record a read."""

    def __init__(self, fd: int, position: int | None) -> None:
        super().__init__(fd, position)
        self._unusable = 0

    def turn(self) -> tuple[list[KernelLogItem], bool]:
        items: list[KernelLogItem] = []
        for _ in range(RECORDS_PER_TURN):
            try:
                items += self._record(os.read(self.fd, READ_BYTES))
            except BlockingIOError:
                more, idle = self._end()
                return items + more, idle
            except OSError as error:
                if error.errno == errno.EPIPE:
                    self.continuity.overrun()
                elif error.errno == errno.EINVAL:
                    self.continuity.spoiled(f"a record longer than {READ_BYTES} bytes")
                else:
                    raise
                self._count_unusable()
        return items + self.continuity.flush(), False

    def _record(self, data: bytes) -> list[KernelLogItem]:
        if not data:
            raise OSError(errno.ENODATA, "it ended, which a kernel log never does")
        record = parse_record(data, replayed=self.continuity.replaying)
        if record is None:
            self.continuity.spoiled("bytes that are no kernel record")
            self._count_unusable()
            return []
        self._unusable = 0
        return self.continuity.accept(record)

    def _count_unusable(self) -> None:
        self._unusable += 1
        if self._unusable > UNUSABLE_READS_MAX:
            raise OSError(errno.EIO, f"{UNUSABLE_READS_MAX} reads without one usable record")


class _Stream(_Source):
    """A FIFO or file: bytes without record boundaries."""

    def __init__(self, fd: int, position: int | None, path: Path, clock: Clock) -> None:
        super().__init__(fd, position)
        self._path = path
        self._clock = clock
        self._pollable = stat.S_ISFIFO(os.fstat(fd).st_mode)
        self._splitter = LineSplitter()
        self._head = b""
        self._properties: list[bytes] = []

    def turn(self) -> tuple[list[KernelLogItem], bool]:
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            data = b""
        if not data:
            items = self._complete()
            more, idle = self._end()
            return items + more, idle
        items = [item for line in self._splitter.feed(data) for item in self._line(line)]
        if self._splitter.cut:
            reason = f"a line longer than {KERNEL_LINE_BYTES_MAX} bytes was cut"
            items.append(KernelLogGap(lost=self._splitter.cut, reason=reason))
            self._splitter.cut = 0
        return items + self.continuity.flush(), False

    async def wait(self) -> None:
        if self._pollable:
            await super().wait()
            return
        await self._clock.sleep(FILE_POLL_S)
        here, there = os.fstat(self.fd), self._path.stat()
        same = (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
        self.replaced = not same or here.st_size < os.lseek(self.fd, 0, os.SEEK_CUR)

    def _line(self, line: bytes) -> list[KernelLogItem]:
        if is_property(line):
            if self._head and len(self._properties) < KERNEL_PROPERTIES_MAX:
                self._properties.append(line)
            return []
        items = self._complete()
        self._head = line
        return items

    def _complete(self) -> list[KernelLogItem]:
        """The record whose lines have all been seen, or whose writer has paused."""
        if not self._head:
            return []
        replayed = self.continuity.replaying
        record = parse_record(self._head, properties=tuple(self._properties), replayed=replayed)
        self._head, self._properties = b"", []
        if record is None:
            self.continuity.spoiled("bytes that are no kernel record")
            return []
        return self.continuity.accept(record)

    def _rewind(self) -> bool:
        self._splitter = LineSplitter()
        return super()._rewind()


def _open(path: Path, position: int | None, clock: Clock) -> _Source:
    mode = path.stat().st_mode
    # A FIFO is opened for writing too: without any writer it would be at its end and always "readable".
    access = os.O_RDWR if stat.S_ISFIFO(mode) else os.O_RDONLY
    fd = os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    return _Device(fd, position) if stat.S_ISCHR(mode) else _Stream(fd, position, path, clock)


def _explain(path: Path, error: OSError) -> str:
    words = {
        errno.ENOENT: "does not exist here; mount the host's /dev/kmsg into the agent",
        errno.EPERM: "is refused by the device cgroup or needs CAP_SYSLOG; run the agent privileged",
        errno.EACCES: "may not be opened; run the agent as root",
    }
    return f"the kernel log {path} {words.get(error.errno or 0, f'cannot be read: {error.strerror}')}"
