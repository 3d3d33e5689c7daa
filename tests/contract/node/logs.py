"""Kernel logs to run one suite against: the real reader on a file and on a FIFO, and the simulated one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Protocol

from outlast.adapters.linux.journal import JournalKernelLog
from outlast.adapters.linux.kernel_log import DevKmsg
from outlast.adapters.linux.kernel_log_chain import KernelLogChain, Source
from outlast.adapters.linux.log_file import LogFile
from outlast.adapters.linux.position import Position, encode_position
from outlast.adapters.linux.syslog_ring import SyslogRing
from outlast.health.sources.kernel_record import parse_record
from outlast.model.observation import KernelLogCaughtUp, KernelRecord
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
        """Write records, given in the format of /dev/kmsg."""
        ...

    def position(self, boot_id: str, number: int) -> bytes:
        """What this log saves when that record is its last; record N is from microsecond 10 N."""
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

    def position(self, boot_id: str, number: int) -> bytes:
        return encode_position(Position(boot_id, number))

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

    def __init__(self, folder: Path | None = None) -> None:
        self.state = MemoryStateFile()
        self._lines: list[bytes] = []
        self._log: FakeKernelLog | None = None

    def put(self, *lines: bytes) -> None:
        self._lines += lines
        for line in lines if self._log else ():
            self._log.feed(line)

    def position(self, boot_id: str, number: int) -> bytes:
        return encode_position(Position(boot_id, number))

    def start(self, boot_id: str) -> KernelLog:
        self._log = FakeKernelLog(clock=RealTime(), boot_id=boot_id, state=self.state)
        for line in self._lines:
            self._log.feed(line)
        return self._log

    def close(self) -> None:
        pass


def _parsed(line: bytes) -> KernelRecord:
    record = parse_record(line)
    assert record is not None
    return record


class RingLog:
    """syslog(2): a picture of the ring at each call."""

    def __init__(self, folder: Path | None = None) -> None:
        self.state = MemoryStateFile()
        self.content = b""

    def put(self, *lines: bytes) -> None:
        for line in lines:
            record = _parsed(line)
            seconds, us = divmod(record.timestamp_us, 1_000_000)
            self.content += f"<{record.priority}>[{seconds:5d}.{us:06d}] {record.text}\n".encode()

    def position(self, boot_id: str, number: int) -> bytes:
        return encode_position(Position(boot_id, 10 * number))

    def start(self, boot_id: str) -> KernelLog:
        return SyslogRing(
            state=self.state, boot_id=boot_id, clock=RealTime(rate=100), read_all=lambda: self.content
        )

    def close(self) -> None:
        pass


class JournalLog:
    """A journalctl of ours on a file of entries."""

    def __init__(self, folder: Path) -> None:
        self.state = MemoryStateFile()
        self.entries = folder / "entries"
        self.entries.touch()
        self.command = (sys.executable, "-S", "-E", str(Path(__file__).with_name("journalctl.py")))

    def put(self, *lines: bytes) -> None:
        with self.entries.open("ab") as file:
            for line in lines:
                record = _parsed(line)
                entry = {
                    "MESSAGE": record.text,
                    "PRIORITY": str(record.priority % 8),
                    "SYSLOG_FACILITY": str(record.facility),
                    "_TRANSPORT": "kernel",
                    "_SOURCE_MONOTONIC_TIMESTAMP": str(record.timestamp_us),
                    "__CURSOR": f"c{record.sequence}",
                }
                file.write(json.dumps(entry).encode() + b"\n")

    def position(self, boot_id: str, number: int) -> bytes:
        return json.dumps({"boot_id": boot_id, "cursor": f"c{number}"}).encode()

    def start(self, boot_id: str, rate: float = 100) -> KernelLog:
        return JournalKernelLog(
            state=self.state,
            boot_id=boot_id,
            clock=RealTime(rate=rate),
            command=self.command,
            environment={"ENTRIES": str(self.entries)},
        )

    def close(self) -> None:
        pass


class SyslogFileLog:
    """A file as rsyslog writes it."""

    def __init__(self, folder: Path) -> None:
        self.state = MemoryStateFile()
        self.path = folder / "kern.log"
        self.path.touch()

    def put(self, *lines: bytes) -> None:
        with self.path.open("ab") as file:
            for line in lines:
                record = _parsed(line)
                stamp = f"{record.timestamp_us / 1e6:12.6f}"
                file.write(f"Nov 30 12:00:00 h kernel: [{stamp}] {record.text}\n".encode())

    def position(self, boot_id: str, number: int) -> bytes:
        place = {"boot_id": boot_id, "inode": self.path.stat().st_ino, "offset_bytes": 1000 * number}
        return json.dumps(place).encode()

    def start(self, boot_id: str) -> KernelLog:
        return LogFile(
            state=self.state,
            boot_id=boot_id,
            clock=RealTime(rate=100),
            path=self.path,
            literals=(b"kernel",),
        )

    def close(self) -> None:
        pass


class ChainLog(FileLog):
    """A chain whose first source answers."""

    def start(self, boot_id: str) -> KernelLog:
        make = super().start
        return KernelLogChain(
            [Source("file", lambda: make(boot_id))],
            state=MemoryStateFile(),
            boot_id=boot_id,
            clock=RealTime(rate=100),
        )


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
