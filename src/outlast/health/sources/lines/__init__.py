"""Kernel lines by subject: words that gate, a literal, and a function that reads what is around it.

A reader gets a window of one line around its literal, so its regular expressions see at most
`WINDOW_MAX` characters whatever the log holds. All are pure and answer None to what they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

LEAD_MAX: Final = 240
TAIL_MAX: Final = 512
WINDOW_MAX: Final = LEAD_MAX + TAIL_MAX
SUBJECT_MAX: Final = 64
OCCURRENCES_MAX: Final = 1_000_000_000

BDF: Final = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
START: Final = r"(?:(?<=[\s;\]>])|^)"
"""Where the kernel's own words may begin: at the start, or behind a timestamp or a tag."""

_TAG: Final = re.compile(r"(?:^|\s)(?!kernel:|NVRM:)[^\s\[\]<>]{1,80}(?:\[\d{1,10}\])?:(?=\s|$)|[\"'`=]")
HEAD_MAX: Final = 160
"""A timestamp, a host name and a tag are shorter than this."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader understood; `start` is where the message begins in its window."""

    kind: str
    start: int
    device: str = ""
    gpu: str = ""
    rdma: bool = True
    subject: str = ""
    occurrences: int = 1


class Rule(NamedTuple):
    """`read` is asked about lines that hold one of the words and, around `literal`, sees a part of them."""

    literal: str
    words: frozenset[str]
    """Between blanks; a set of words is searched in one pass, however many there are."""
    read: Callable[[str], Line | None]


def rule(literal: str, words: str, read: Callable[[str], Line | None]) -> Rule:
    """A rule; `words` are separated by blanks."""
    return Rule(literal, frozenset(words.split()), read)


def quoted(text: str, start: int) -> bool:
    """Whether the words at `start` are somebody else's: behind another program's tag, or in quotes."""
    head = text[text.rfind("\n", 0, start) + 1 : start]
    return bool(head) and (len(head) > HEAD_MAX or _TAG.search(head) is not None)


def window(text: str, literal: str) -> tuple[str, int]:
    """The part of a line around the first occurrence of a literal that is there, and where it begins."""
    position = text.find(literal)
    begin = max(text.rfind("\n", 0, position) + 1, position - LEAD_MAX)
    end = text.find("\n", position, position + TAIL_MAX)
    return text[begin : end if end >= 0 else position + TAIL_MAX], begin


def count(digits: str | None) -> int:
    """A printed number as occurrences: at least one."""
    return min(max(int(digits), 1), OCCURRENCES_MAX) if digits else 1
