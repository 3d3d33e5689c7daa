"""Live updates: who has to hear of which node, in bounded memory.

Changes are names, never contents: a slow reader's mailbox coalesces, and one that overflows is told to
take the whole page again. So no reader can hold more than a few kilobytes or slow another one down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

CLIENTS_MAX: Final = 64
NAMES_MAX: Final = 1024
"""Changed nodes a mailbox holds; beyond, the reader gets the page anew."""


class TooManyClients(Exception):
    """The limit on live readers is reached; pages still load, they just do not move."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened since the last look."""

    names: frozenset[str]
    everything: bool
    """More changed than was counted: take the page anew."""


class Mailbox:
    """What one reader has not been told yet."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._everything = False
        self._filled = asyncio.Event()
        self.closed = False

    def put(self, names: Iterable[str]) -> None:
        """Note changed nodes; an empty collection says that something beside the nodes changed."""
        if not self._everything:
            self._names.update(names)
            if len(self._names) > NAMES_MAX:
                self.put_everything()
        self._filled.set()

    def put_everything(self) -> None:
        """Note that more changed than can be listed."""
        self._names.clear()
        self._everything = True
        self._filled.set()

    def close(self) -> None:
        """Tell the reader to go."""
        self.closed = True
        self._filled.set()

    async def take(self, timeout_s: float) -> Changes | None:
        """The changes since the last call; None when nothing changed within `timeout_s` of real time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._filled.wait()
        except TimeoutError:
            return None
        changes = Changes(frozenset(self._names), self._everything)
        self._names.clear()
        self._everything = False
        self._filled.clear()
        return changes


class Hub:
    """Hands each change to every mailbox."""

    def __init__(self, clients_max: int = CLIENTS_MAX) -> None:
        self._clients_max = clients_max
        self._mailboxes: set[Mailbox] = set()
        self._closed = False

    @property
    def clients(self) -> int:
        """Readers now connected."""
        return len(self._mailboxes)

    @contextmanager
    def subscribe(self) -> Iterator[Mailbox]:
        """A mailbox for as long as the block runs. Raises TooManyClients."""
        if self._closed or len(self._mailboxes) >= self._clients_max:
            raise TooManyClients
        mailbox = Mailbox()
        self._mailboxes.add(mailbox)
        try:
            yield mailbox
        finally:
            self._mailboxes.discard(mailbox)

    def changed(self, *names: str) -> None:
        """These nodes changed; without names, something beside the nodes did."""
        for mailbox in self._mailboxes:
            mailbox.put(names)

    def everything(self) -> None:
        """A relist: anything may have changed."""
        for mailbox in self._mailboxes:
            mailbox.put_everything()

    def close(self) -> None:
        """Send every reader away; the server is stopping."""
        self._closed = True
        for mailbox in self._mailboxes:
            mailbox.close()
