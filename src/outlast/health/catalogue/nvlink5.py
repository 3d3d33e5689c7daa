"""Which event of an NVLink 5 unit a line tells of: by unit, first word and second word together.

The bit layout of the first word changed with driver R575; a line does not say which driver printed it,
and with the unit's name beside it the two layouts never collide. What the table does not list is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from outlast.health.catalogue.rows import NvlinkEntry, NvlinkSeverity

WORD_BITS: Final = 32
SUBCODE_SHIFT: Final = 20
SUBCODE_MASK: Final = 0x3F
STATUS_IS_BITS: Final = frozenset({144, 145, 146, 147, 148})
"""Their second word is a set of flags; that of 149 and 150 is a number."""

_WORSE: Final = {NvlinkSeverity.NON_FATAL: 0, NvlinkSeverity.LINK_FATAL: 1, NvlinkSeverity.FATAL: 2}


def subcode(first_word: int) -> int:
    """The sub-code within the first word."""
    return first_word >> SUBCODE_SHIFT & SUBCODE_MASK


def find(entries: Iterable[NvlinkEntry], xid: int, unit: str, words: tuple[int, ...]) -> NvlinkEntry | None:
    """The row for what a line prints: the worst one, where the status says several things at once.

    None for what the table does not list in full, and for lines cut before the second word.
    """
    if len(words) < 2:
        return None
    first, status = words[0], words[1]
    names = frozenset(unit.upper().split("/"))
    fitting = {
        int(entry.status, 16): entry
        for entry in entries
        if entry.xid == xid
        and not names.isdisjoint(entry.unit.split("/"))
        and (_fits(entry.bits, first) or _fits(entry.bits_before_r575, first))
    }
    if status in fitting or xid not in STATUS_IS_BITS:
        return fitting.get(status)
    flags = [1 << bit for bit in range(WORD_BITS) if status >> bit & 1]
    if not flags or not all(flag in fitting for flag in flags):
        return None
    return max((fitting[flag] for flag in flags), key=lambda entry: _WORSE[entry.severity])


def example(entry: NvlinkEntry, *, before_r575: bool = False) -> tuple[int, int]:
    """Two words as a line of this row would print them, every free bit zero."""
    bits = entry.bits_before_r575 if before_r575 else entry.bits
    return int(bits.replace("-", "0"), 2), int(entry.status, 16)


def _fits(bits: str, word: int) -> bool:
    mask = int(bits.translate(_MASK), 2)
    return word & mask == int(bits.translate(_VALUE), 2)


_MASK: Final = str.maketrans("01-", "110")
_VALUE: Final = str.maketrans("-", "0")


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A line against the table: the row, and whether the line's own word agrees with it."""

    entry: NvlinkEntry | None
    subcode: int | None
    agrees: bool


def explain(
    entries: Iterable[NvlinkEntry], xid: int, unit: str, fatal: bool | None, words: tuple[int, ...]
) -> Explained:
    """The unit of judgement: Xid, sub-code, status and severity word. All four have to be known."""
    entry = find(entries, xid, unit, words)
    return Explained(
        entry=entry,
        subcode=subcode(words[0]) if words else None,
        agrees=entry is not None and fatal is not None and entry.fatal is fatal,
    )
