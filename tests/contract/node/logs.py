"""Kernel logs to run one suite against: the real reader on a file and on a FIFO, and the simulated one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Protocol

from outlast.adapters.linux.kernel_log import DevKmsg
from outlast.model.observation import KernelLogCaughtUp
from outlast.ports.node import KernelLog, KernelLogItem, StateFile
from outlast.sim.node import FakeKernelLog, MemoryStateFile

DEADLINE_S = 10.0


class RealTime:
    """The loop's own time; a clock for adapters that run in real time."""

    def __init__(self, rate: float = 1.0) -> None:
        self.rate = rate
        self.slept: list[float] = []

    def now(self) -> datetime:
        raise NotImplementedError

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() * self.rate

    async def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        await asyncio.sleep(delay_s / self.rate)


class LogUnderTest(Protocol):
    """A log that can be written to and restarted."""

    state: MemoryStateFile

    def put(self, *lines: bytes) -> None:
        """Write records."""
        ...

    def start(self, boot_id: str) -> KernelLog:
        """A fresh reader, as after a start of the agent in this boot."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class FileLog:
    """The real reader on a regular file."""

    def __init__(self, folder: Path) -> None:
        self.state = MemoryStateFile()
        self.path = folder / "kmsg"
        self.path.touch()

    def put(self, *lines: bytes) -> None:
        with self.path.open("ab") as file:
            file.writelines(line + b"\n" for line in lines)

    def start(self, boot_id: str) -> KernelLog:
        return DevKmsg(state=self.state, boot_id=boot_id, clock=RealTime(rate=100), path=self.path)

    def close(self) -> None:
        pass


class FifoLog(FileLog):
    """The real reader on a FIFO; the writer keeps what was written and offers it again at each start."""

    def __init__(self, folder: Path) -> None:
        self.state = MemoryStateFile()
        self.path = folder / "kmsg"
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self._written = b""
        self._started = False

    def put(self, *lines: bytes) -> None:
        data = b"".join(line + b"\n" for line in lines)
        self._written += data
        if self._started:
            os.write(self._fd, data)

    def start(self, boot_id: str) -> KernelLog:
        self._started = True
        while self._drain():
            pass
        if self._written:
            os.write(self._fd, self._written)
        return super().start(boot_id)

    def close(self) -> None:
        os.close(self._fd)

    def _drain(self) -> bytes:
        try:
            return os.read(self._fd, 65536)
        except BlockingIOError:
            return b""


class SimulatedLog:
    """The fake; a start makes a new one over the same lines, as the ring outlives the agent."""

    def __init__(self) -> None:
        self.state = MemoryStateFile()
        self._lines: list[bytes] = []
        self._log: FakeKernelLog | None = None

    def put(self, *lines: bytes) -> None:
        self._lines += lines
        for line in lines if self._log else ():
            self._log.feed(line)

    def start(self, boot_id: str) -> KernelLog:
        self._log = FakeKernelLog(clock=RealTime(), boot_id=boot_id, state=self.state)
        for line in self._lines:
            self._log.feed(line)
        return self._log

    def close(self) -> None:
        pass


async def take(records: AsyncIterator[KernelLogItem], count: int) -> list[KernelLogItem]:
    """The next items; fails when they do not come."""
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(records) for _ in range(count)]


async def read_to_end(log: KernelLog) -> list[KernelLogItem]:
    """All items up to and with the first `KernelLogCaughtUp`, then save the position and stop."""
    items: list[KernelLogItem] = []
    async with asyncio.timeout(DEADLINE_S), aclosing(log.records()) as records:
        async for item in records:
            items.append(item)
            if isinstance(item, KernelLogCaughtUp):
                break
        log.save_position()
    return items


class Kept:
    """A state file with fixed content that refuses saves."""

    def __init__(self, content: bytes | None) -> None:
        self._content = content

    def load(self) -> bytes | None:
        return self._content

    def save(self, content: bytes) -> bool:
        return False


def state_of(content: bytes | None) -> StateFile:
    """A state file on a full disk."""
    return Kept(content)
