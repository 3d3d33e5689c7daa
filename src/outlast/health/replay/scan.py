"""Finds the few lines that matter in any amount of log, by literals, one block of whole lines at a time.

Python's `re` is slow at alternations and fast at single literals, so each is searched by itself; and behind
a syslog's date only lines that name the kernel can be the kernel's, so in the others not even that is needed.
The same bytes give the same lines wherever they are cut into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from outlast.model.observation import KERNEL_LINE_BYTES_MAX

LINE_BYTES_MAX: Final = KERNEL_LINE_BYTES_MAX
"""Only this much of a line is looked at."""

DRIVER_LITERALS: Final = (b"NVRM", b"SXid (")
"""Looked for in every line: who else writes them should be seen."""
BOOT_LITERALS: Final = (b"Linux version ", b"[    0.000000]", b"-- Boot ", b"-- Reboot")
RELATIVE_LITERALS: Final = (b"[  +", b"[ +", b"[+")
"""Of `dmesg -d` and `-e`: each line tells only the time since the line before it, so each is needed."""
JOURNAL_LITERALS: Final = (b'"MESSAGE":[', b'"MESSAGE": [', b'"MESSAGE" : [')
"""A journal writes text that is not clean UTF-8 as numbers, where no word can be found."""

_GATE: Final = b"kernel"
_SYSLOG: Final = rb"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.Z+-])|\{\""
_IS_SYSLOG: Final = re.compile(_SYSLOG)
_OTHER_LINE: Final = re.compile(rb"\n(?!" + _SYSLOG + rb")")
_FEW: Final = 8
"""With more candidates than one line in so many, searching the whole block is cheaper."""
_TEXT: Final = bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100)) + b"\t\n\r\x0c\x1b\x1e"


class Scanner:
    """Feed it the bytes of one log; it gives the interesting lines with their numbers, from 1."""

    def __init__(self, literals: Iterable[bytes]) -> None:
        self._literals = tuple(dict.fromkeys((*DRIVER_LITERALS, *literals)))
        self._carry = b""
        self._skipping = False
        self.lines = 0
        self.size_bytes = 0
        self.not_text = 0
        """Lines with bytes that no log contains."""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The interesting ones of the lines that `data` completes."""
        self.size_bytes += len(data)
        end = data.rfind(b"\n")
        if end < 0:
            self._keep(data)
            return
        start = 0
        if self._carry or self._skipping:
            first = data.find(b"\n")
            self._keep(data[:first])
            yield from self._block(self._carry + b"\n")
            self._carry, self._skipping = b"", False
            start = first + 1
        if start <= end:
            # A memoryview has no find, and cutting costs a tenth of the search.
            yield from self._block(data[start : end + 1])
        self._keep(data[end + 1 :])

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a line whose end has not come; a line that is too long counts as read."""
        return 0 if self._skipping else len(self._carry)

    def finish(self) -> Iterator[tuple[int, bytes]]:
        """The last line, where it has no end of line."""
        if self._carry:
            yield from self._block(self._carry + b"\n")
        self._carry, self._skipping = b"", False

    def _keep(self, data: bytes) -> None:
        if self._skipping:
            return
        self._carry += data[: LINE_BYTES_MAX - len(self._carry) + 1]
        if len(self._carry) > LINE_BYTES_MAX:
            self._carry, self._skipping = self._carry[:LINE_BYTES_MAX], True

    def _block(self, block: bytes) -> Iterator[tuple[int, bytes]]:
        before, at = self.lines, 0
        self.lines += block.count(b"\n")
        if len(block.translate(None, _TEXT)):
            lines = block.split(b"\n")
            self.not_text += sum(1 for line in lines if line[:LINE_BYTES_MAX].translate(None, _TEXT))
        for start, end in sorted(self._hits(block).items()):
            before += block.count(b"\n", at, start)
            at = start
            yield before + 1, block[start : min(end, start + LINE_BYTES_MAX)]

    def _hits(self, block: bytes) -> dict[int, int]:
        """Start and end of the lines that matter."""
        hits = _find(block, DRIVER_LITERALS)
        few = block.count(b"\n") // _FEW
        candidates = _find(block, (_GATE,))
        if not _IS_SYSLOG.match(block):
            candidates[0] = block.find(b"\n")
        if len(candidates) <= few:
            for found in _OTHER_LINE.finditer(block, 0, len(block) - 1):
                candidates[found.end()] = block.find(b"\n", found.end())
                if len(candidates) > few:
                    break
        if len(candidates) > few:
            candidates = _find(block, self._literals)
        for start, end in candidates.items():
            if start not in hits and self._matters(block[start : min(end, start + LINE_BYTES_MAX)]):
                hits[start] = end
        return hits

    def _matters(self, line: bytes) -> bool:
        if _GATE not in line and _IS_SYSLOG.match(line):
            return False
        for literal in self._literals:  # noqa: SIM110 (any() with a generator takes twice as long)
            if literal in line:
                return True
        return False


def _find(block: bytes, literals: Iterable[bytes]) -> dict[int, int]:
    """Start and end of the lines that hold one of the literals."""
    hits: dict[int, int] = {}
    for literal in literals:
        found = block.find(literal)
        while found >= 0:
            start = block.rfind(b"\n", 0, found) + 1
            end = hits.get(start) or block.find(b"\n", found)
            if found + len(literal) <= start + LINE_BYTES_MAX:
                hits[start] = end
            found = block.find(literal, end)
    return hits
