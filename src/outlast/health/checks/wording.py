"""How checks word lists, so that a text stays short however many things it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SHOWN_MAX: Final = 4


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more."""
    shown = ", ".join(names[:SHOWN_MAX])
    return shown if len(names) <= SHOWN_MAX else f"{shown} and {len(names) - SHOWN_MAX} more"
