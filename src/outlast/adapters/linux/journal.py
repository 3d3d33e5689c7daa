"""The kernel's lines out of systemd's journal: `journalctl` as a child that can die, hang or be missing.

It is started twice: once to its end for what is there already, then following from the last cursor. Its
death is a reading, and the next start goes on behind the last entry that was delivered.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final

import msgspec

from outlast.adapters.linux.by_time import record_of, time_of
from outlast.adapters.linux.pipes import spawn_heard
from outlast.adapters.linux.waiting import readable
from outlast.health.replay.line import read_line
from outlast.health.sources.kernel_record import LineSplitter
from outlast.model.observation import KERNEL_LINE_BYTES_MAX, KernelLogCaughtUp, KernelLogGap, KernelLogLost
from outlast.ports.clock import Clock
from outlast.ports.node import KernelLogItem, StateFile

ENTRY_BYTES_MAX: Final = 6 * KERNEL_LINE_BYTES_MAX
"""A byte of a message can take six in JSON."""
CURSOR_CHARACTERS_MAX: Final = 512
ERRORS_BYTES_MAX: Final = 2048
END_MAX_S: Final = 1.0
"""From the end of its output to its exit code; a child that takes longer is taken for well."""
REPLAY_MAX_S: Final = 120.0
"""What is in the journal of this boot has to come within this time of silence."""
RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 30.0
_READ_BYTES: Final = 64 * 1024
_REAP_FIRST_S: Final = 0.01
_REAP_MAX_S: Final = 5.0

_FIELDS: Final = (
    "MESSAGE,PRIORITY,SYSLOG_FACILITY,_TRANSPORT,_BOOT_ID,_SOURCE_MONOTONIC_TIMESTAMP,__MONOTONIC_TIMESTAMP"
)
_ARGUMENTS: Final = ("-k", "-b", "-o", "json", "--all", "--no-pager", f"--output-fields={_FIELDS}")
_EMPTY: Final = (b"No journal files were", b"insufficient permissions")


class JournalPosition(msgspec.Struct, frozen=True):
    """The last judged entry of one boot."""

    boot_id: str
    cursor: str


class JournalKernelLog:
    """Implements `outlast.ports.node.KernelLog`. `folder` is a journal other than this machine's default."""

    def __init__(
        self,
        *,
        state: StateFile,
        boot_id: str,
        clock: Clock,
        command: Sequence[str] = ("journalctl",),
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._state = state
        self._boot_id = boot_id
        self._clock = clock
        self._command = (*command, *_ARGUMENTS, *((f"--directory={folder}",) if folder else ()))
        self._environment = {**(os.environ if environment is None else environment), "LC_ALL": "C"}
        self._cursor: str | None = None
        self._saved: str | None = None
        self._time_us = 0
        self._loaded = False

    async def records(self) -> AsyncGenerator[KernelLogItem, None]:
        """Follow for ever. Close the iterator (`contextlib.aclosing`) to end the child."""
        if not self._loaded:
            self._loaded = True
            if doubt := self._load():
                yield KernelLogGap(lost=0, reason=doubt)
        retry_s, said = RETRY_FIRST_S, ""
        while True:
            replayed, problem = 0, ""
            for follow in (False, True):
                child: _Child | None = None
                try:
                    child = _Child(self._arguments(follow=follow), self._environment)
                    async with aclosing(self._entries(child, follow=follow)) as items:
                        async for item in items:
                            replayed += not follow
                            retry_s, said = RETRY_FIRST_S, ""
                            yield item
                    problem = await child.problem(follow=follow)
                except OSError as error:
                    problem = f"journalctl cannot be started: {error.strerror}"
                finally:
                    if child is not None:
                        child.kill()
                if problem:
                    break
                if not follow:
                    if not replayed and self._cursor is None:
                        problem = "the journal holds no line of the kernel from this boot"
                        break
                    said = ""
                    yield KernelLogCaughtUp(replayed=replayed)
            if self._cursor is not None and "cursor" in problem:
                yield KernelLogGap(
                    lost=0, reason="the saved position is refused; started at the oldest record"
                )
                self._cursor = None
                continue
            if problem != said:
                said = problem
                yield KernelLogLost(message=f"the kernel log in the journal: {problem}")
            await self._clock.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_MAX_S)

    def save_position(self) -> None:
        """Remember the last delivered entry; writes only when it has moved."""
        if not self._boot_id or self._cursor is None or self._cursor == self._saved:
            return
        if self._state.save(msgspec.json.encode(JournalPosition(self._boot_id, self._cursor)) + b"\n"):
            self._saved = self._cursor

    def _load(self) -> str:
        content = self._state.load()
        if content is None:
            return ""
        try:
            position = msgspec.json.decode(content, type=JournalPosition)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "the saved position is unreadable; started at the oldest record"
        if position.boot_id == self._boot_id and 0 < len(position.cursor) <= CURSOR_CHARACTERS_MAX:
            self._cursor = self._saved = position.cursor
        return ""

    def _arguments(self, *, follow: bool) -> tuple[str, ...]:
        after = (f"--after-cursor={self._cursor}",) if self._cursor is not None else ()
        return (*self._command, *(("--follow", "--no-tail") if follow else ()), *after)

    async def _entries(self, child: _Child, *, follow: bool) -> AsyncGenerator[KernelLogItem, None]:
        splitter = LineSplitter(ENTRY_BYTES_MAX)
        while data := await child.read(None if follow else REPLAY_MAX_S):
            for raw in splitter.feed(data):
                line = read_line(raw)
                if not line.cursor:
                    yield KernelLogGap(lost=1, reason="bytes that are no entry of a journal")
                    continue
                self._time_us = time_of(line, self._time_us)
                if len(line.cursor) <= CURSOR_CHARACTERS_MAX:
                    self._cursor = line.cursor
                yield record_of(line, self._time_us, replayed=not follow)
            if splitter.cut:
                reason = f"an entry longer than {ENTRY_BYTES_MAX} bytes was cut"
                yield KernelLogGap(lost=splitter.cut, reason=reason)
                splitter.cut = 0


class _Child:
    """A started journalctl: a pid and two pipes; killed without waiting, reaped on a timer."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.pid, self._stdout, self._stderr = spawn_heard(arguments, environment)
        self._errors = b""
        self._silent = False
        self._open = True
        self._exit_code: int | None = None

    async def read(self, silence_max_s: float | None) -> bytes:
        """The next bytes; none when it has ended or was silent for too long."""
        while True:
            try:
                return os.read(self._stdout, _READ_BYTES)
            except BlockingIOError:
                pass
            self._complaints()
            try:
                async with asyncio.timeout(silence_max_s):
                    await readable(self._stdout)
            except TimeoutError:
                self._silent = True
                return b""

    async def problem(self, *, follow: bool) -> str:
        """Why it ended; empty when it ended well, which one that follows never does."""
        for _ in range(int(END_MAX_S / _REAP_FIRST_S)):
            if self._silent or self._has_ended():
                break
            await asyncio.sleep(_REAP_FIRST_S)
        self._complaints()
        words = " ".join(self._errors.decode("utf-8", "replace").split())[:300]
        if any(text in self._errors for text in _EMPTY):
            return words
        if self._silent:
            return f"journalctl said nothing for {REPLAY_MAX_S:.0f} s"
        if follow:
            return f"journalctl ended{f': {words}' if words else ''}"
        return f"journalctl failed: {words or 'no reason given'}" if self._exit_code not in (0, None) else ""

    def kill(self) -> None:
        """End it at once, without waiting."""
        if self._open:
            self._open = False
            os.close(self._stdout)
            os.close(self._stderr)
        if not self._has_ended():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._reap_later(_REAP_FIRST_S)

    def _complaints(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._stderr, _READ_BYTES):
                self._errors = (self._errors + data)[:ERRORS_BYTES_MAX]

    def _has_ended(self) -> bool:
        if self._exit_code is None:
            try:
                done, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # Somebody else's wait took it.
                done, status = self.pid, 0
            if done:
                self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code is not None

    def _reap_later(self, delay_s: float) -> None:
        def again() -> None:
            if not self._has_ended():
                self._reap_later(min(2 * delay_s, _REAP_MAX_S))

        with suppress(RuntimeError):  # Without a loop this process is ending, and init reaps.
            asyncio.get_running_loop().call_later(delay_s, again)
