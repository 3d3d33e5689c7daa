"""A worker process that can be lost: nothing here ever waits for it without a deadline.

A process in uninterruptible sleep survives SIGKILL until the driver lets go, perhaps never. So the
standard library's process objects are not used: before Python 3.12 asyncio keeps a thread in waitpid
for each child, and multiprocessing and subprocess.run wait at exit. A child here is a pid and two pipes,
reaped by waitpid(WNOHANG) on a timer; what is not reaped is left to init.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from outlast.adapters.linux.pipes import two_pipes
from outlast.adapters.linux.waiting import readable

MAGIC: Final = b"OLNV"
HEADER: Final = struct.Struct("<4sII")
FRAME_BYTES_MAX: Final = 1024 * 1024
"""A frame is magic, payload length, request id, payload (JSON). Workers run by path and say it themselves."""

_READ_BYTES = 64 * 1024
_REAP_FIRST_S = 0.01
_REAP_MAX_S = 5.0


class WorkerEnded(Exception):
    """The worker closed its pipe: it crashed, or was killed by somebody else."""


class WorkerGarbage(Exception):
    """What came from the worker is no frame."""


class WorkerProcess:
    """One started worker. Raises OSError when it can't be started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        (requests, self._input), (self._output, answers) = two_pipes()
        try:
            self.pid = os.posix_spawn(
                command[0],
                list(command),
                dict(environment),
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, requests, 0),
                    (os.POSIX_SPAWN_DUP2, answers, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsid=True,  # A signal to the agent's group is not for the worker, nor its terminal.
                setsigmask=[],
                setsigdef=[signal.SIGPIPE],
            )
        except BaseException:
            os.close(self._input)
            os.close(self._output)
            raise
        finally:
            os.close(requests)
            os.close(answers)
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        self.exit_status: int | None = None
        self._reaped = False
        self._open = True
        self._buffer = b""

    def send(self, request_id: int, message: dict[str, Any]) -> None:
        """Pass on a request; a worker that does not take it is as good as ended."""
        payload = msgspec.json.encode(message)
        frame = HEADER.pack(MAGIC, len(payload), request_id) + payload
        try:
            sent = os.write(self._input, frame)
        except OSError as error:
            raise WorkerEnded(f"it takes no requests: {error.strerror}") from error
        if sent != len(frame):
            raise WorkerEnded("it takes no requests: its pipe is full")

    async def frame(self) -> tuple[int, bytes]:
        """The next frame: request id and payload. Raises WorkerEnded, WorkerGarbage; has no deadline."""
        magic, length, request_id = HEADER.unpack(await self._exactly(HEADER.size))
        if magic != MAGIC or length > FRAME_BYTES_MAX:
            raise WorkerGarbage(f"a frame that starts with {magic!r} and claims {length} bytes")
        return request_id, await self._exactly(length)

    async def ended(self, deadline_s: float) -> bool:
        """Whether the process is gone, waiting for it at most so long."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        for _ in range(int(deadline_s / _REAP_FIRST_S) + 1):
            if self.has_ended() or loop.time() >= until_s:
                break
            await asyncio.sleep(_REAP_FIRST_S)
        return self.has_ended()

    def has_ended(self) -> bool:
        """Whether the process is gone; never waits."""
        if not self._reaped:
            try:
                done, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # Somebody else's wait took it.
                done, status = self.pid, 0
            if done:
                self._reaped = True
                self.exit_status = os.waitstatus_to_exitcode(status)
        return self._reaped

    def kill(self) -> None:
        """End it and its children, at once and without waiting; reaping happens on a timer."""
        self.close_pipes()
        if self.has_ended():
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._reap_later(_REAP_FIRST_S)

    def close_pipes(self) -> None:
        """Close our ends; a worker that can still read ends by itself."""
        if self._open:
            self._open = False
            os.close(self._input)
            os.close(self._output)

    def _reap_later(self, delay_s: float) -> None:
        def again() -> None:
            if not self.has_ended():
                self._reap_later(min(2 * delay_s, _REAP_MAX_S))

        with suppress(RuntimeError):  # Without a loop this process is ending, and init reaps.
            asyncio.get_running_loop().call_later(delay_s, again)

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            try:
                piece = os.read(self._output, _READ_BYTES)
            except BlockingIOError:
                await readable(self._output)
                continue
            if not piece:
                raise WorkerEnded("it closed its pipe")
            self._buffer += piece
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data
