"""What all readings share: a base, a name for each source, and counters that have a history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec


class Reading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all readings."""


class Survey(Reading, frozen=True, kw_only=True):
    """Base of what a polled source delivers: everything it can see, at one moment.

    `source` names it for people and in the evidence of findings; a check names the kinds of survey it reads.
    A survey whose source failed says so in its own fields, and its checks then conclude nothing.
    """

    source: ClassVar[str] = ""

    def counters(self) -> Iterable[CounterReading]:
        """Counters whose growth matters; the judge keeps their history and gives checks the difference."""
        return ()


class CounterReading(Reading, frozen=True, kw_only=True):
    """A counter of the machine's own: only its growth says something, and only within one life of it."""

    device: str
    """PCI address, or device name, with a port or link where it has several: `0000:10:00.0/link3`."""
    name: str
    value: int
    limit: int | None = None
    """A counter that stops here; at the limit its growth is unknown."""
