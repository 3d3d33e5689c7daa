"""Times, spans and counts in words, the same on every page and in the terminal.

Spans lose precision as they grow, because nobody acts on the seconds of an hour.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_CAMEL_JOINT = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_CODE_NAMES = {
    "xid": "Xid",
    "sxid": "SXid",
    "efa": "EFA",
    "rdma": "RDMA",
    "nvml": "NVML",
    "pci": "PCI",
    "gpu": "GPU",
    "dcgm": "DCGM",
}


def span(seconds: float) -> str:
    """A duration for people: `92 ms`, `4.2 s`, `6 min 10 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 0:
        return "0 s"
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    minutes, rest_s = divmod(total, 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s" if minutes < 10 and rest_s else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def between(start: datetime | None, end: datetime | None) -> str:
    """The span between two wall times; empty where one is missing."""
    return "" if start is None or end is None else span((end - start).total_seconds())


def ago(at: datetime | None, now: datetime) -> str:
    """How long ago that was; `just now` below five seconds, empty where there is no time."""
    if at is None:
        return ""
    passed = now - at
    if passed < timedelta(seconds=5):
        return "just now"
    seconds = passed.total_seconds()
    return f"{span(seconds if seconds < 60 else seconds // 60 * 60)} ago"


def clock_time(at: datetime | None) -> str:
    """Time of day, in UTC, to the second."""
    return "" if at is None else at.strftime("%H:%M:%S")


def clock_time_ms(at: datetime | None) -> str:
    """Time of day, in UTC, to the millisecond."""
    return "" if at is None else f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def fault_name(code: str) -> str:
    """A catalogue code for people: `xid/79` is Xid 79, `efa/missing` is EFA missing."""
    family, _, rest = code.partition("/")
    name = _CODE_NAMES.get(family, family)
    return f"{name} {rest.replace('-', ' ')}".strip()


def count(number: int, one: str, many: str = "") -> str:
    """A counted noun: `1 node`, `8 nodes`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def words_of(name: str) -> str:
    """A PascalCase name as lower-case words; acronyms stay: `ResetGPU` is reset GPU."""
    return " ".join(w if w.isupper() and len(w) > 1 else w.lower() for w in _CAMEL_JOINT.split(name))
