"""Runs another program and can always walk away from it: a deadline, a bounded answer, no wait without end.

A tool of a sick driver may sleep where no signal reaches it. So a child here is a pid and two pipes in a
session of its own: killed without waiting, reaped on a timer, and counted while it refuses to go.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Final

import msgspec

from outlast.adapters.linux.pipes import spawn_heard

ERRORS_BYTES_MAX: Final = 16 * 1024
"""Of what a program complains about, this much is kept."""
UNENDED_MAX: Final = 2
"""Killed runs of one program that may be stuck in the kernel at a time; beyond it it is not started again."""

_READ_BYTES: Final = 64 * 1024
_LOOK_FIRST_S: Final = 0.01
_LOOK_MAX_S: Final = 5.0

_unended: dict[int, str] = {}
"""Killed children that are not reaped yet, and the program of each; they belong to the whole process."""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. Whatever a program wrote is kept as far as the limits go."""

    exit_code: int | None
    """0 to 255; negative: ended by that signal. None: it did not end by itself."""
    output: bytes
    errors: bytes
    hung: bool
    """It missed its deadline and was killed, or earlier runs are stuck and it was not started."""
    truncated: bool
    """It wrote more than the limit and was killed for it: what is kept is the beginning."""
    duration_s: float


def unended(program: str) -> int:
    """How many killed runs of this program (its file name) the kernel has not let go."""
    for pid in tuple(_unended):
        _reap(pid)
    name = PurePath(program).name
    return sum(1 for other in _unended.values() if other == name)


async def run_command(
    argv: Sequence[str],
    *,
    deadline_s: float,
    output_bytes_max: int,
    environment: Mapping[str, str] | None = None,
    stop_grace_s: float = 0.0,
) -> CommandResult:
    """Run `argv` with an empty stdin until it ends, misses its deadline or says too much.

    Returns at the deadline whatever the program does. Without an environment it gets our own. What it
    started and left in its session is killed with it, also when the caller is cancelled. With a grace it
    is asked to stop (SIGTERM) and killed so much later, for a program that works through a service.
    Raises OSError when it can't be started, such as FileNotFoundError.
    """
    if unended(argv[0]) >= UNENDED_MAX:
        text = f"{UNENDED_MAX} earlier runs of {argv[0]} are stuck in the kernel, so it is not started again"
        return CommandResult(
            exit_code=None, output=b"", errors=text.encode(), hung=True, truncated=False, duration_s=0.0
        )
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    run = _Run(argv, os.environ if environment is None else environment, output_bytes_max, stop_grace_s)
    hung = False
    try:
        async with asyncio.timeout(deadline_s):
            await run.over
    except TimeoutError:
        hung = True
    finally:
        run.close()
    return CommandResult(
        exit_code=None if hung or run.truncated else run.exit_code,
        output=bytes(run.output),
        errors=bytes(run.errors),
        hung=hung,
        truncated=run.truncated,
        duration_s=loop.time() - start_s,
    )


class _Run:
    """One child on the running loop. `over` is done when it ended, or said too much."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        output_bytes_max: int,
        stop_grace_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self.output, self.errors = bytearray(), bytearray()
        self.truncated = False
        self.exit_code: int | None = None
        self._program = PurePath(argv[0]).name
        self._output_bytes_max = output_bytes_max
        self._stop_grace_s = stop_grace_s
        self._reaped = False
        self._timer: asyncio.TimerHandle | None = None
        self._pid, self._stdout, self._stderr = spawn_heard(argv, environment)
        self._open = {self._stdout, self._stderr}
        self._said_bytes = dict.fromkeys(self._open, 0)
        for fd in self._open:
            self._loop.add_reader(fd, self._read, fd)
        self._pidfd = _pidfd(self._pid)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._look)
        else:
            self._look_again(_LOOK_FIRST_S)

    def close(self) -> None:
        """Let go of everything now; a child that still runs is killed and reaped later, if it ever can be."""
        for fd in tuple(self._open):
            self._close(fd)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._timer is not None:
            self._timer.cancel()
        if self._reaped:
            return
        _unended[self._pid] = self._program
        if self._stop_grace_s > 0:
            _signal_session(self._pid, signal.SIGTERM)
            self._loop.call_later(self._stop_grace_s, _kill_unended, self._pid)
        else:
            _signal_session(self._pid, signal.SIGKILL)
        _reap_later(self._pid, _LOOK_FIRST_S)

    def _read(self, fd: int) -> bool:
        """Take what is there; False when there is no more for now."""
        try:
            piece = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if not piece:
            self._close(fd)
            return False
        kept, limit = (
            (self.output, self._output_bytes_max) if fd == self._stdout else (self.errors, ERRORS_BYTES_MAX)
        )
        kept += piece[: max(0, limit - len(kept))]
        self._said_bytes[fd] += len(piece)
        if self._said_bytes[fd] > max(limit, self._output_bytes_max):
            self.truncated = True
            self._finish()
        return not self.truncated

    def _look(self) -> None:
        """Whether the child ended; what it said until then is in the pipes, and no more is waited for."""
        try:
            ended = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # Somebody else's wait took it.
            self._reaped = True
            self._drain_and_finish()
            return
        if not ended:
            if self._pidfd is None:
                self._look_again(_LOOK_FIRST_S)
            return
        _signal_session(self._pid, signal.SIGKILL)  # Before it is reaped its number cannot be anybody else's.
        _, status = os.waitpid(self._pid, 0)
        self._reaped = True
        self.exit_code = os.waitstatus_to_exitcode(status)
        self._drain_and_finish()

    def _look_again(self, delay_s: float) -> None:
        self._timer = self._loop.call_later(delay_s, self._look)

    def _drain_and_finish(self) -> None:
        for fd in tuple(self._open):
            while self._read(fd):
                pass
        self._finish()

    def _finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def _close(self, fd: int) -> None:
        self._open.discard(fd)
        self._loop.remove_reader(fd)
        os.close(fd)


def _pidfd(pid: int) -> int | None:
    """Tells of the end of a child at once; None where the kernel or a sandbox refuses it."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _signal_session(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _kill_unended(pid: int) -> None:
    if not _reap(pid):
        _signal_session(pid, signal.SIGKILL)


def _reap(pid: int) -> bool:
    """Whether it is gone; once it is, its number may be somebody else's and is not asked about again."""
    if pid not in _unended:
        return True
    try:
        done, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        done = pid
    if done:
        _unended.pop(pid, None)
    return bool(done)


def _reap_later(pid: int, delay_s: float) -> None:
    """Ask again and again, ever less often; without a loop this process is ending, and init reaps."""

    def again() -> None:
        if not _reap(pid):
            _reap_later(pid, min(2 * delay_s, _LOOK_MAX_S))

    with suppress(RuntimeError):
        asyncio.get_running_loop().call_later(delay_s, again)
