"""A kernel log in memory: a bounded ring of lines in /dev/kmsg format, as the kernel keeps it.

What is read from it goes through the production parser and the production rules on order and loss.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from outlast.adapters.linux.kernel_continuity import Continuity
from outlast.adapters.linux.position import Position, decode_position, encode_position
from outlast.health.sources.kernel_record import parse_record
from outlast.model.observation import KernelLogGap, KernelLogLost, KernelRecord
from outlast.ports.clock import Clock
from outlast.ports.node import KernelLogItem, StateFile
from outlast.sim.node.machine import MemoryStateFile

RECORDS_MAX = 1024
"""Records the ring holds; writing one more overwrites the oldest."""

NVRM_PRIORITY = 4
"""NVIDIA's driver prints without a level, which makes its records `4,...,c`."""


class FakeKernelLog:
    """Implements `outlast.ports.node.KernelLog` on lines that a scenario writes.

    The clock stamps records; `boot_id` is that of the machine (`FakeMachine` sets it at a reboot).
    """

    def __init__(
        self, *, clock: Clock, boot_id: str, state: StateFile | None = None, records_max: int = RECORDS_MAX
    ) -> None:
        self._clock = clock
        self._boot_id = boot_id
        self._state: StateFile = state if state is not None else MemoryStateFile()
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=records_max)
        self._written = 0
        self._next_sequence = 0
        self._boot_s = clock.monotonic()
        self._lost = ""
        self._changed = asyncio.Event()
        self._openings = 0
        self._delivered: int | None = None
        self._saved: int | None = None

    def write(self, text: str, *, priority: int = NVRM_PRIORITY, flags: str = "c") -> int:
        """Print one message as the driver would; returns its sequence number."""
        sequence = self._next_sequence
        timestamp_us = int((self._clock.monotonic() - self._boot_s) * 1_000_000)
        self.feed(f"{priority},{sequence},{timestamp_us},{flags};".encode() + _escape(text))
        return sequence

    def feed(self, line: bytes) -> None:
        """Put raw bytes in the place of one record, whatever they are."""
        record = parse_record(line)
        self._next_sequence = 1 + (record.sequence if record is not None else self._next_sequence)
        self._ring.append((self._written, line))
        self._written += 1
        self._changed.set()

    def lose(self, message: str = "the kernel log /dev/kmsg does not exist here") -> None:
        """Make the log unreadable until `restore`."""
        self._lost = message
        self._changed.set()

    def restore(self) -> None:
        """Make the log readable again."""
        self._lost = ""
        self._changed.set()

    def reboot(self, boot_id: str) -> None:
        """A new boot: empty ring, sequence from zero. Followers read on as if the agent had restarted."""
        self._boot_id = boot_id
        self._ring.clear()
        self._next_sequence = 0
        self._boot_s = self._clock.monotonic()
        self._delivered = self._saved = None
        self._openings += 1
        self._changed.set()

    async def records(self) -> AsyncGenerator[KernelLogItem, None]:
        """Follow for ever."""
        position, doubt = self._saved_position()
        if doubt:
            yield KernelLogGap(lost=0, reason=doubt)
        if self._delivered is None:
            self._delivered = self._saved = position
        while True:
            if self._lost:
                yield KernelLogLost(message=self._lost)
            while self._lost:
                await self._change()
            opening, continuity, at = self._openings, Continuity(self._delivered), 0
            while opening == self._openings and not self._lost:
                items, at, idle = self._turn(continuity, at)
                if idle and continuity.position_is_beyond_newest and self._ring:
                    reason = "the saved position is beyond the newest record; started at the oldest"
                    continuity, at, items, idle = (
                        Continuity(None),
                        0,
                        [KernelLogGap(lost=0, reason=reason)],
                        False,
                    )
                elif idle:
                    items = continuity.end_reached()
                for item in items:
                    if isinstance(item, KernelRecord):
                        self._delivered = item.sequence
                    yield item
                if idle and at == self._written and opening == self._openings and not self._lost:
                    await self._change()

    def save_position(self) -> None:
        """Remember the last delivered record of this boot."""
        if self._delivered is None or self._delivered == self._saved:
            return
        if self._state.save(encode_position(Position(self._boot_id, self._delivered))):
            self._saved = self._delivered

    def _turn(self, continuity: Continuity, at: int) -> tuple[list[KernelLogItem], int, bool]:
        """The items of the next record at or after write number `at`; idle when there is none."""
        if not self._ring or self._ring[-1][0] < at:
            return [], self._written, True
        oldest = self._ring[0][0]
        if at < oldest and not continuity.replaying:
            continuity.overrun()
        number, line = self._ring[max(at, oldest) - oldest]
        record = parse_record(line, replayed=continuity.replaying)
        if record is None:
            continuity.spoiled("bytes that are no kernel record")
            return continuity.flush(), number + 1, False
        return continuity.accept(record), number + 1, False

    def _saved_position(self) -> tuple[int | None, str]:
        content = self._state.load()
        if content is None:
            return None, ""
        position = decode_position(content)
        if position is None:
            return None, "the saved position is unreadable; started at the oldest record"
        return (position.sequence if position.boot_id == self._boot_id else None), ""

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _escape(text: str) -> bytes:
    """As the kernel does: control characters, bytes above ASCII and the backslash become \\xNN."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte < 0x7F and byte != 0x5C else b"\\x%02x" % byte
        for byte in text.encode()
    )
