"""Reads files that may never answer, by a process that can be lost: a deadline, a cap, no wait without end.

One process is started at the first read and kept. One that misses the deadline is killed and not waited
for; those that the kernel does not let die are counted, those of an earlier agent too, and beyond the cap
no other is started.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from outlast.adapters.linux.file_worker import PROCESS_NAME
from outlast.adapters.linux.leaks import leaked_workers
from outlast.adapters.linux.worker_process import WorkerEnded, WorkerGarbage, WorkerProcess

READ_DEADLINE_S: Final = 5.0
"""For all files of one folder."""
STUCK_READERS_MAX: Final = 2
REQUEST_BYTES_MAX: Final = 32 * 1024
"""Half of a pipe: a longer request could block the agent."""

WORKER_COMMAND: Final = (sys.executable, "-I", "-S", str(Path(__file__).with_name("file_worker.py")))


class ReadHung(Exception):
    """The files did not answer in time; `str()` says what happened."""


class ReadFailed(Exception):
    """The reading process could not be started or broke; `str()` says why."""


class FolderText(msgspec.Struct, frozen=True):
    """What some files of a folder hold."""

    texts: Mapping[str, str] = {}
    errors: Mapping[str, int] = {}
    """errno of those that could not be read."""


class GuardedFiles:
    """Reads files of one folder at a time. Call from one event loop, one read after the other."""

    def __init__(
        self,
        *,
        deadline_s: float = READ_DEADLINE_S,
        stuck_max: int = STUCK_READERS_MAX,
        command: Sequence[str] = WORKER_COMMAND,
        proc: Path = Path("/proc"),
    ) -> None:
        self.deadline_s = deadline_s
        self._stuck_max = stuck_max
        self._command = command
        self._proc = proc
        self._worker: WorkerProcess | None = None
        self._request_id = 0

    async def read(self, folder: Path, names: Sequence[str], deadline_s: float | None = None) -> FolderText:
        """The text of each file, or its errno. Raises ReadHung at the deadline, and ReadFailed."""
        request = {"folder": str(folder), "names": list(names)}
        if len(msgspec.json.encode(request)) > REQUEST_BYTES_MAX:
            raise ReadFailed(f"{len(names)} files of {folder} are more than one request may ask for")
        worker = self._running()
        self._request_id = (self._request_id + 1) & 0xFFFFFFFF
        wait_s = self.deadline_s if deadline_s is None else deadline_s
        try:
            async with asyncio.timeout(wait_s):
                worker.send(self._request_id, request)
                request_id, payload = await worker.frame()
            if request_id != self._request_id:
                raise WorkerGarbage(f"an answer to request {request_id} instead of {self._request_id}")
            return msgspec.json.decode(payload, type=FolderText)
        except TimeoutError as error:
            self.close()
            raise ReadHung(f"{folder} did not answer in {wait_s:g} s") from error
        except (WorkerEnded, WorkerGarbage, msgspec.DecodeError) as error:
            self.close()
            raise ReadFailed(f"the reader of {folder} failed: {error}") from error
        except asyncio.CancelledError:
            self.close()  # Its answer would be taken for that to the next request.
            raise

    def close(self) -> None:
        """End the reading process without waiting; the next read starts another."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            worker.kill()

    def _running(self) -> WorkerProcess:
        if self._worker is None:
            stuck = len(leaked_workers(self._proc, PROCESS_NAME))
            if stuck >= self._stuck_max:
                raise ReadHung(f"{stuck} earlier readers are stuck in the kernel, so no other is started")
            try:
                self._worker = WorkerProcess(self._command, os.environ)
            except OSError as error:
                raise ReadFailed(f"{self._command[0]} cannot be started: {error.strerror}") from error
        return self._worker
