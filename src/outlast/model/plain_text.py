"""Foreign text, where people read it: shown, never obeyed.

It comes from nodes, pods and people; the driver prints a program's name, which a pod chooses. A terminal
carries out escape sequences and turns text around at bidirectional marks: what does not print is spelled out.
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
