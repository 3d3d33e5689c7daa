"""The live stream of one page: whole once, then only what changed.

Server-sent events: `page` carries the page anew, `parts` the changed elements by id, `clock` the time
in the corner. A comment goes out in every quiet interval, so that proxies keep the connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from outlast.ports.clock import Clock
from outlast.web import html
from outlast.web.live import Changes, Hub, Mailbox
from outlast.web.pages import Address, Explain, Missing, page_data
from outlast.web.state import FleetState
from outlast.web.views.fleet import FleetPage, Tile
from outlast.web.wording import clock_time

HEARTBEAT_S: Final = 15.0
INTERVAL_S: Final = 0.25
"""Changes are gathered this long in real time before they are sent."""
AGE_INTERVAL_S: Final = 5.0
"""Ages on an unchanged page are refreshed this often, in real time."""
PARTS_MAX: Final = 500
"""More changed elements than this are sent as one page."""


def event(name: str, data: Any) -> bytes:
    """One server-sent event; data is text or goes out as JSON, which has no raw line breaks."""
    body = data.encode() if isinstance(data, str) else msgspec.json.encode(data)
    return b"event: " + name.encode() + b"\ndata: " + body + b"\n\n"


@dataclass
class Stream:
    """Everything one reader's stream needs. `clock` is the fleet's time, `pace` the machine's."""

    where: Address
    state: Callable[[], FleetState]
    explain: Explain
    hub: Hub
    clock: Clock
    pace: Clock

    async def events(self, mailbox: Mailbox) -> AsyncIterator[bytes]:
        """Messages until the reader leaves or the server stops."""
        yield b"retry: 2000\n\n"
        reader: _FleetReader | _PageReader = (
            _FleetReader(self) if self.where.page == "fleet" else _PageReader(self)
        )
        for message in reader.update(Changes(frozenset(), everything=True)):
            yield message
        quiet_s = 0.0
        while True:
            changes = await mailbox.take(AGE_INTERVAL_S)
            if mailbox.closed:
                yield event("bye", "stopping")
                return
            await self.pace.sleep(INTERVAL_S)
            late = await mailbox.take(0)
            everything = any(c is not None and c.everything for c in (changes, late))
            messages = reader.update(Changes(frozenset(), everything=everything))
            quiet_s = 0.0 if messages else quiet_s + AGE_INTERVAL_S
            if quiet_s >= HEARTBEAT_S:
                quiet_s = 0.0
                yield b": still here\n\n"
            for message in messages:
                yield message

    def page(self, now: datetime) -> Any | Missing:
        """The page's data at this moment."""
        return page_data(self.where, self.state(), self.explain, now)


class _PageReader:
    """Sends a small page anew whenever its HTML differs."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._sent = ""
        self._clock = ""

    def update(self, changes: Changes) -> list[bytes]:
        del changes
        now = self._stream.clock.now()
        page = self._stream.page(now)
        messages: list[bytes] = []
        if not isinstance(page, Missing):
            text = html.fragment(self._stream.where.page, page)
            if text != self._sent:
                self._sent = text
                messages.append(event("page", {"html": text}))
        return messages + self._tick(now)

    def _tick(self, now: datetime) -> list[bytes]:
        shown = clock_time(now)
        if shown == self._clock:
            return []
        self._clock = shown
        return [event("clock", shown)]


class _FleetReader(_PageReader):
    """Sends only the tiles, headings and numbers that changed; the page anew when its set of tiles did."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self._tiles: dict[str, Tile] = {}
        self._parts: dict[str, str] = {}

    def update(self, changes: Changes) -> list[bytes]:
        now = self._stream.clock.now()
        page = self._stream.page(now)
        assert isinstance(page, FleetPage)
        tiles = {t.name: t for g in page.groups for t in g.tiles}
        moved = [n for n, t in tiles.items() if (old := self._tiles.get(n)) is not t and old != t]
        anew = changes.everything or tiles.keys() != self._tiles.keys() or len(moved) > PARTS_MAX
        regrouped = any(n in self._tiles and self._tiles[n].group != tiles[n].group for n in moved)
        heads = self._heads(page)
        parts = {k: v for k, v in heads.items() if self._parts.get(k) != v}
        self._tiles, self._parts = tiles, heads
        if anew or regrouped:
            return [event("page", {"html": html.fragment("fleet", page)}), *self._tick(now)]
        for name in moved:
            parts[f"n-{name}"] = html.tile_part(tiles[name], page.filter, now, roomy=page.roomy)
        return ([event("parts", {"parts": parts})] if parts else []) + self._tick(now)

    @staticmethod
    def _heads(page: FleetPage) -> dict[str, str]:
        heads = {"head": html.head_part(page.headline, page.filter)}
        if page.filter.view == "map":
            heads |= {f"g-{i}": html.group_part(g, i) for i, g in enumerate(page.groups)}
        return heads
