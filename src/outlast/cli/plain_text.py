"""Foreign text on a terminal: shown, never obeyed.

Evidence, reasons and names come from nodes, pods and people. A terminal carries out escape sequences
and turns text around at bidirectional marks, so everything that does not print is spelled out.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """The text in one line of printable characters; others as escapes such as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _spelled(char) for char in text)


def _spelled(char: str) -> str:
    if char.isspace():
        return " "
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")
