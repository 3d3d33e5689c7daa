"""The kernel's ring by the system call syslog(2): no device, so no device cgroup; needs CAP_SYSLOG only.

It is a picture of the whole ring, taken each second. New is what follows the last line known; when that
line is gone, the ring has turned over or was cleared in between, and nobody can say how much was in it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, Callable
from typing import Final

from outlast.adapters.linux.by_time import SavedTime, record_of, time_of
from outlast.health.replay.line import read_line
from outlast.model.observation import KernelLogCaughtUp, KernelLogGap, KernelLogLost
from outlast.ports.clock import Clock
from outlast.ports.node import KernelLogItem, StateFile

POLL_S: Final = 1.0
RING_BYTES_MAX: Final = 2 * 1024 * 1024
"""Of a larger ring the newest part is read."""
RING_BYTES_MIN: Final = 64 * 1024
KNOWN_LINES: Final = 4
"""The last lines of a picture, to find the place in the next one; the very last may still grow."""
RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 30.0

TURNED_OVER: Final = (
    "the kernel's ring turned over or was cleared between two looks; how much was lost is unknown"
)
_READ_ALL: Final = 3
_SIZE_BUFFER: Final = 10


class SyslogCall:
    """Reads the ring. Loads ctypes at its first call, because nothing else in the agent needs it."""

    def __init__(self) -> None:
        self._read: Callable[[], bytes] | None = None

    def __call__(self) -> bytes:
        """All of the ring, as `<priority>[seconds] text` lines. Raises OSError."""
        if self._read is None:
            self._read = self._prepared()
        return self._read()

    def _prepared(self) -> Callable[[], bytes]:
        import ctypes

        call = ctypes.CDLL(None, use_errno=True).klogctl
        call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int)

        def checked(action: int, buffer: ctypes.Array[ctypes.c_char] | None, size: int) -> int:
            result = int(call(action, buffer, size))
            if result < 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            return result

        size = min(max(checked(_SIZE_BUFFER, None, 0) * 5 // 4, RING_BYTES_MIN), RING_BYTES_MAX)
        buffer = ctypes.create_string_buffer(size)
        return lambda: ctypes.string_at(buffer, checked(_READ_ALL, buffer, size))


class SyslogRing:
    """Implements `outlast.ports.node.KernelLog`. `read_all` gives the ring's content; for tests."""

    def __init__(
        self, *, state: StateFile, boot_id: str, clock: Clock, read_all: Callable[[], bytes] | None = None
    ) -> None:
        self._position = SavedTime(state, boot_id)
        self._clock = clock
        self._read_all = read_all if read_all is not None else SyslogCall()
        self._delivered_us: int | None = None

    async def records(self) -> AsyncGenerator[KernelLogItem, None]:
        """Follow for ever: a picture each second."""
        if self._delivered_us is None:
            self._delivered_us = self._position.load()
            if self._position.doubt:
                yield KernelLogGap(lost=0, reason=self._position.doubt)
        picture = _Picture(self._delivered_us)
        retry_s, said, lost = RETRY_FIRST_S, "", True
        while True:
            try:
                content = self._read_all()
            except OSError as error:
                message = _explain(error)
                if message != said:
                    said = message
                    yield KernelLogLost(message=message)
                lost = True
                await self._clock.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)
                continue
            retry_s, said = RETRY_FIRST_S, ""
            lines, gap = picture.new_lines(content)
            if gap:
                yield KernelLogGap(lost=0, reason=gap)
            time_us, count = picture.time_us, 0
            for raw in lines:
                line = read_line(raw)
                at_us = time_of(line, time_us)
                if at_us > time_us:
                    self._delivered_us = time_us  # all lines of one moment belong together
                time_us = max(time_us, at_us)
                count += 1
                yield record_of(line, at_us, replayed=lost)
            picture.time_us = time_us
            self._delivered_us = time_us if count else self._delivered_us
            if lost:
                lost = False
                yield KernelLogCaughtUp(replayed=count)
            await self._clock.sleep(POLL_S)

    def save_position(self) -> None:
        """Remember the last delivered moment; writes only when it has moved."""
        self._position.save(self._delivered_us)


class _Picture:
    """Where in the ring we are: the last lines that are known."""

    def __init__(self, position_us: int | None) -> None:
        self.time_us = position_us or 0
        self._position_us = position_us
        self._known: tuple[bytes, ...] = ()
        self._fingerprint: int | None = None
        self._first = True

    def new_lines(self, content: bytes) -> tuple[list[bytes], str]:
        """The lines that were not there before, and why some may be missing."""
        fingerprint = hash(content)
        if fingerprint == self._fingerprint:
            return [], ""
        self._fingerprint = fingerprint
        lines = [line for line in content.split(b"\n") if line]
        if self._first:
            self._first = False
            new, gap = self._behind_position(lines)
        else:
            start = self._place(lines)
            if start is not None:
                new, gap = lines[start:], ""
            else:
                new = [line for line in lines if self._is_later(line)]
                gap = TURNED_OVER if self._known else ""
        self._known = tuple(lines[-KNOWN_LINES:]) or self._known
        return new, gap

    def _behind_position(self, lines: list[bytes]) -> tuple[list[bytes], str]:
        position = self._position_us
        if position is None:
            return lines, ""
        times = [read_line(line).uptime_us for line in lines]
        known = [time for time in times if time is not None]
        if not known or max(known) < position:
            self.time_us = 0
            reason = f"the saved position {position} is beyond the newest record; started at the oldest"
            return lines, reason
        if position in times:
            return lines[len(times) - times[::-1].index(position) :], ""
        gap = ""
        if known[0] > position:
            gap = "records were overwritten before they were read; how many is unknown"
        return [line for line, time in zip(lines, times, strict=True) if time is None or time > position], gap

    def _place(self, lines: list[bytes]) -> int | None:
        """Behind the last known line; where that one has grown meanwhile, it comes again."""
        for back in range(len(self._known)):
            known, before = self._known[-1 - back], self._known[: -1 - back][-1:]
            for index in range(len(lines) - 1, -1, -1):
                if lines[index] == known and tuple(lines[max(0, index - 1) : index]) in (before, ()):
                    return index + 1
        return None

    def _is_later(self, line: bytes) -> bool:
        time_us = read_line(line).uptime_us
        return time_us is None or time_us > self.time_us


def _explain(error: OSError) -> str:
    words = {
        errno.EPERM: "is refused; give the agent CAP_SYSLOG",
        errno.ENOSYS: "does not exist in this kernel",
        errno.EACCES: "is refused by a security module",
    }
    return f"the kernel log by syslog(2) {words.get(error.errno or 0, f'cannot be read: {error.strerror}')}"
