"""Several ways to the kernel log, best first: when one is lost the next takes over, and the best comes back.

Each opening of a source delivers what it still has, so what another one has delivered already is left out
by the kernel's own time, which all of them print.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Final, NamedTuple

import msgspec
import structlog

from outlast.model.observation import KernelLogCaughtUp, KernelLogGap, KernelLogLost, KernelRecord
from outlast.ports.clock import Clock
from outlast.ports.node import KernelLog, KernelLogItem, StateFile

LOST_MAX_S: Final = 10.0
"""A source that delivered before may be away for so long before the next one is asked."""
BETTER_EVERY_S: Final = 60.0
"""While a worse source is on, the better ones are tried this often."""
ALL_LOST_FIRST_S: Final = 1.0
ALL_LOST_MAX_S: Final = 30.0

log = structlog.get_logger("outlast.agent")


class Source:
    """A way to the log, made when it is first needed. `name` is said to people."""

    def __init__(self, name: str, make: Callable[[], KernelLog]) -> None:
        self.name = name
        self._make = make
        self._log: KernelLog | None = None

    @property
    def log(self) -> KernelLog:
        """The log, which keeps its position over several openings."""
        if self._log is None:
            self._log = self._make()
        return self._log


class ChainPosition(msgspec.Struct, frozen=True):
    """Which source was on, and the newest kernel time that it delivered."""

    boot_id: str
    source: str
    time_us: int


class KernelLogChain:
    """Implements `outlast.ports.node.KernelLog` on several others, best first."""

    def __init__(self, sources: Sequence[Source], *, state: StateFile, boot_id: str, clock: Clock) -> None:
        self._sources = tuple(sources)
        self._state = state
        self._boot_id = boot_id
        self._clock = clock
        self._on: Source | None = None
        self._newest: ChainPosition | None = _load(state, boot_id)
        self._saved = self._newest

    async def records(self) -> AsyncGenerator[KernelLogItem, None]:
        """Follow for ever, whichever source answers."""
        said, retry_s = "", ALL_LOST_FIRST_S
        while True:
            problems: list[str] = []
            place = 0
            opened: _Opened | str | None = None
            while place < len(self._sources):
                source = self._sources[place]
                if not isinstance(opened, _Opened):
                    opened = await _open(source, self._clock)
                if isinstance(opened, str):
                    problems.append(opened)
                    place += 1
                    continue
                self._announce(source, problems)
                said, retry_s, better = "", ALL_LOST_FIRST_S, None
                try:
                    async with aclosing(self._follow(opened, source, place)) as items:
                        async for item in items:
                            if isinstance(item, _Better):
                                better = item
                            elif isinstance(item, _Gone):
                                problems.append(item.message)
                            else:
                                yield item
                finally:
                    await opened.aclose()
                opened, place = (better.opened, better.place) if better is not None else (None, place + 1)
                problems = [] if better is not None else problems
            message = "; ".join(dict.fromkeys(problems))
            if message != said:
                said = message
                yield KernelLogLost(message=message)
            await self._clock.sleep(retry_s)
            retry_s = min(2 * retry_s, ALL_LOST_MAX_S)

    def save_position(self) -> None:
        """All records so far were judged; the source's own position first, then which one it was."""
        if self._on is None:
            return
        self._on.log.save_position()
        moved = self._newest is not None and self._newest != self._saved
        if self._boot_id and moved and self._state.save(msgspec.json.encode(self._newest) + b"\n"):
            self._saved = self._newest

    async def _follow(
        self, opened: _Opened, source: Source, place: int
    ) -> AsyncGenerator[KernelLogItem | _Better | _Gone, None]:
        """Items of one source, until it is lost for long or a better one answers."""
        taken_us = None
        if self._newest is not None and self._newest.source != source.name:
            taken_us = self._newest.time_us
        look_s = self._clock.monotonic() + BETTER_EVERY_S
        lost, lost_s = "", 0.0
        while True:
            until_s = lost_s + LOST_MAX_S if lost else look_s if place else None
            item = await opened.next(None if until_s is None else until_s - self._clock.monotonic())
            if item is None and lost:
                yield _Gone(lost)
                return
            if isinstance(item, KernelLogLost):
                lost, lost_s = item.message, lost_s if lost else self._clock.monotonic()
            elif item is not None:
                lost = ""
                if isinstance(item, KernelRecord):
                    if taken_us is not None and item.replayed and item.timestamp_us <= taken_us:
                        continue
                    self._note(item, source)
                yield self._marked(item, source)
            if place and not lost and self._clock.monotonic() >= look_s:
                look_s = self._clock.monotonic() + BETTER_EVERY_S
                for index, candidate in enumerate(self._sources[:place]):
                    found = await _open(candidate, self._clock)
                    if isinstance(found, _Opened):
                        yield _Better(index, found)
                        return

    def _note(self, record: KernelRecord, source: Source) -> None:
        newest = self._newest.time_us if self._newest is not None else 0
        self._newest = ChainPosition(self._boot_id, source.name, max(newest, record.timestamp_us))

    @staticmethod
    def _marked(item: KernelLogItem, source: Source) -> KernelLogItem:
        if isinstance(item, KernelLogCaughtUp):
            return msgspec.structs.replace(item, source=source.name)
        return item

    def _announce(self, source: Source, problems: Sequence[str]) -> None:
        if self._on is not source:
            log.info("kernel log", source=source.name, instead_of=list(problems) or None)
        self._on = source


def _load(state: StateFile, boot_id: str) -> ChainPosition | None:
    """Of this boot, where it can be read: each source has a position of its own and doubts it by itself."""
    try:
        position = msgspec.json.decode(state.load() or b"", type=ChainPosition)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return position if position.boot_id == boot_id and position.time_us >= 0 else None


class _Opened:
    """A source being followed, whose next item can be waited for with a deadline."""

    def __init__(self, records: AsyncGenerator[KernelLogItem, None], clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._ahead: list[KernelLogItem] = []
        self._pending: asyncio.Task[KernelLogItem] | None = None

    def put_back(self, item: KernelLogItem) -> None:
        """It comes again with the next `next`."""
        self._ahead.append(item)

    async def next(self, wait_s: float | None) -> KernelLogItem | None:
        """The next item; None when it does not come in time, and then it is not lost."""
        if self._ahead:
            return self._ahead.pop()
        wait_s = None if wait_s is None else max(0.0, wait_s)
        if self._pending is None:
            if wait_s is None:
                return await anext(self._records)
            self._pending = asyncio.ensure_future(self._anext())
        if wait_s is None:
            await asyncio.wait({self._pending})
        else:
            timer = asyncio.ensure_future(self._clock.sleep(wait_s))
            try:
                await asyncio.wait({self._pending, timer}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
        if not self._pending.done():
            return None
        done, self._pending = self._pending, None
        return done.result()

    async def _anext(self) -> KernelLogItem:
        return await anext(self._records)

    async def aclose(self) -> None:
        """Let go of the source."""
        if self._pending is not None:
            self._pending.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._pending
            self._pending = None
        await self._records.aclose()


class _Better(NamedTuple):
    """A better source answers again: its place, and it, opened."""

    place: int
    opened: _Opened


class _Gone(msgspec.Struct, frozen=True):
    """The source is lost for long."""

    message: str


async def _open(source: Source, clock: Clock) -> _Opened | str:
    """The source, when it answers; else why not. One that says nothing yet counts as one that answers."""
    opened = _Opened(source.log.records(), clock)
    try:
        ahead: list[KernelLogItem] = []
        item = await opened.next(LOST_MAX_S)
        if isinstance(item, KernelLogGap):
            ahead.append(item)  # A doubt about the position comes before the log is opened.
            item = await opened.next(LOST_MAX_S)
        if isinstance(item, KernelLogLost):
            await opened.aclose()
            return item.message
        for first in (item, *ahead):
            if first is not None:
                opened.put_back(first)
    except BaseException:
        await opened.aclose()
        raise
    return opened
