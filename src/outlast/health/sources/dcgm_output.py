"""What all of `dcgmi` has in common: JSON somewhere behind plain text, and errors that are only text.

An error is plain text even where JSON was asked for, and the exit code is a signed byte of DCGM's own.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from outlast.model.observation.dcgm import DcgmProblem

OPENINGS_MAX: Final = 16
"""Opening braces that are tried as the start of the document."""
TEXT_MAX: Final = 400
"""Of a tool's own words, this much is kept."""

_DECODER: Final = json.JSONDecoder()

_EXITS: Final = {
    -6: DcgmProblem.REFUSED,
    -11: DcgmProblem.HUNG,
    -12: DcgmProblem.VERSION_MISMATCH,
    -17: DcgmProblem.REFUSED,
    -21: DcgmProblem.ENGINE_DOWN,
    -22: DcgmProblem.REFUSED,
    -23: DcgmProblem.REFUSED,
    -29: DcgmProblem.REFUSED,
    -39: DcgmProblem.ALREADY_RUNNING,
    -50: DcgmProblem.FAILED,
    -53: DcgmProblem.KILLED,
    -54: DcgmProblem.PAUSED,
    -57: DcgmProblem.DRIVER_TIMEOUT,
    -66: DcgmProblem.KILLED,
}
"""dcgmReturn_t of those ends that say more than that it failed."""

_WORDS: Final = (
    ("health watches not enabled", DcgmProblem.WATCHES_OFF),
    ("unable to establish a connection", DcgmProblem.ENGINE_DOWN),
    ("unable to connect to host engine", DcgmProblem.ENGINE_DOWN),
    ("connection to the host engine is not valid", DcgmProblem.ENGINE_DOWN),
    ("host engine is not valid any longer", DcgmProblem.ENGINE_DOWN),
    ("version mismatch", DcgmProblem.VERSION_MISMATCH),
    ("api version", DcgmProblem.VERSION_MISMATCH),
    ("driver timeout", DcgmProblem.DRIVER_TIMEOUT),
    ("already running", DcgmProblem.ALREADY_RUNNING),
    ("cannot run a new diag", DcgmProblem.ALREADY_RUNNING),
    ("while dcgm is paused", DcgmProblem.PAUSED),
    ("mig configuration is incompatible", DcgmProblem.REFUSED),
    ("homogeneous group", DcgmProblem.REFUSED),
    ("recommended driver is not being used", DcgmProblem.REFUSED),
    ("killed by a signal", DcgmProblem.KILLED),
)
"""Phrases in lower case, the surest first."""

_VERSION = re.compile(r"\bversion\s*:?\s*v?(\d{1,4}(?:\.\d{1,4}){1,3})", re.IGNORECASE)
_ENGINE_INFO = "hostengine build info"


def signed_exit(code: int | None) -> int | None:
    """DCGM's return code: the exit code read as a signed byte. Death by a signal has none."""
    if code is None or not 0 <= code <= 255:
        return None
    return code - 256 if code > 127 else code


def document(output: bytes, *wanted: str) -> dict[str, Any] | None:
    """The first JSON object of the output that has one of these keys, whatever stands around it."""
    text = output.decode("utf-8", "replace")
    at = -1
    for _ in range(OPENINGS_MAX):
        at = text.find("{", at + 1)
        if at < 0:
            return None
        try:
            value, _ = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and any(key in value for key in wanted):
            return value
    return None


def told_problem(output: bytes, exit_code: int | None) -> tuple[DcgmProblem, str]:
    """What an output without a report tells, and in which words."""
    words = plain(output)
    lower = words.lower()
    for phrase, problem in _WORDS:
        if phrase in lower:
            return problem, words
    code = signed_exit(exit_code)
    told = words or (f"dcgmi ended with {code}" if code is not None else "dcgmi said nothing")
    if code is not None and code in _EXITS:
        return _EXITS[code], told
    if code == 0 or (code is None and exit_code is None):
        return DcgmProblem.GARBAGE, told
    return DcgmProblem.FAILED, told


def plain(output: bytes) -> str:
    """One bounded line of printable text."""
    return printable(output[: 8 * TEXT_MAX].decode("utf-8", "replace"))


def printable(text: str, length_max: int = TEXT_MAX) -> str:
    """One line without anything that would move a terminal's cursor or turn its direction."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:length_max]


def versions(output: bytes) -> tuple[str, str]:
    """Versions of `dcgmi` and of the engine it talks to, as `-v` or `--version` say; empty if not said."""
    text = output[:65536].decode("utf-8", "replace")
    at = text.lower().find(_ENGINE_INFO)
    local, engine = (text, "") if at < 0 else (text[:at], text[at:])
    return _version(local), _version(engine)


def major(version: str) -> int | None:
    """The part of a version that decides whether two parts understand each other."""
    head = version.partition(".")[0]
    return int(head) if head.isascii() and head.isdigit() and len(head) < 5 else None


def _version(text: str) -> str:
    found = _VERSION.search(text)
    return found.group(1) if found else ""
