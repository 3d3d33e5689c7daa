"""Pipes to a child: both or none, so that a process without free descriptors loses no more of them."""

from __future__ import annotations

import os

Pipe = tuple[int, int]
"""Its end to read from, and its end to write to."""


def two_pipes() -> tuple[Pipe, Pipe]:
    """Two pipes that no other child inherits. Raises OSError when they cannot be had."""
    first = os.pipe2(os.O_CLOEXEC)
    try:
        return first, os.pipe2(os.O_CLOEXEC)
    except OSError:
        for end in first:
            os.close(end)
        raise
