"""What this machine lacks is never silent: outside CI a test is left out by name, in CI that is a failure.

The last line of a run says what was left out and how to get it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NoReturn

import pytest

_MARK = re.compile(r"left out (?P<what>[^;]+); to have it: (?P<how>.+)", re.DOTALL)


def in_ci() -> bool:
    """Whether everything must run."""
    return os.environ.get("CI", "").lower() in ("true", "1")


def leave_out(what: str, how: str) -> NoReturn:
    """End this test because the machine lacks `what`; `how` is a command or a sentence.

    >>> leave_out("the browser tests", "apt-get install chromium")
    """
    text = f"left out {what}; to have it: {how}"
    if in_ci():
        pytest.fail(f"nothing may be left out in CI: {text}", pytrace=False)
    pytest.skip(text)


def closing_line(skip_reasons: Iterable[str]) -> str:
    """One line that names everything left out with the way to get it; empty when nothing was."""
    found: dict[str, str] = {}
    for reason in skip_reasons:
        match = _MARK.search(reason)
        what, how = (match["what"], match["how"]) if match else (reason, "")
        found[" ".join(what.split())] = " ".join(how.split())
    if not found:
        return ""
    items = (f"{what} (to have it: {how})" if how else what for what, how in sorted(found.items()))
    return "LEFT OUT: " + " | ".join(items)
