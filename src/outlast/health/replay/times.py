"""The dates that kernel logs are written with, in any locale: a moment, or None; never an exception.

Only differences between dates are ever used, and order is by position in the file. So a date may lack
its year or zone, and one that cannot be understood costs nothing but its own line's time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

import msgspec

YEARLESS: Final = 2000
"""Stands for "no year printed": a leap year, so that 29 February is a date."""

_MONTHS: Final = (
    "jan ene gen janv sty led oca ocak янв jän tam",
    "feb fev fév févr lut úno şub şubat фев helmi",
    "mar mär mrt mars märz bře мар maalis mrz",
    "apr abr avr avril kwi dub nis nisan апр huhti",
    "may mai maj mei mag май мая touko kvě",
    "jun juin giu cze čvn haz июн kesä juni",
    "jul juil lug lip čvc tem июл heinä juli",
    "aug ago août aoû sie srp ağu авг elo augustus",
    "sep set sept wrz zář eyl сен syys",
    "oct okt ott out paź říj eki окт loka",
    "nov lis kas ноя marras",
    "dec dez dic dés déc des gru pro ara дек joulu",
)
_MONTH_OF: Final = {name: number for number, names in enumerate(_MONTHS, 1) for name in names.split()}
_PREFIX: Final = 3

_WORD = r"[^\s\d:\[\]<>(){},.;=\"']{2,14}"
_CLOCK = r"(?P<h>\d{1,2}):(?P<m>\d{2}):(?P<s>\d{2})(?:[.,](?P<f>\d{1,9}))?"
_DATE: Final = re.compile(
    rf"(?:{_WORD}[.,]{{0,2}} {{1,3}})?"
    rf"(?:(?P<month>{_WORD})\.? {{1,3}}(?P<day>\d{{1,2}})"
    rf"|(?P<day2>\d{{1,2}})\.? {{1,3}}(?P<month2>{_WORD})\.?"
    r"|(?P<month3>\d{1,2})[月월] ?(?P<day3>\d{1,2})[日일]?)"
    rf",? {{1,3}}(?:(?P<y1>\d{{4}}),? {{1,3}})?{_CLOCK}"
    r"(?: (?:AM|PM))?(?: {1,3}(?:UTC|GMT|[A-Z]{3,4}(?= {1,3}\d{4})))?(?: {1,3}(?P<y2>\d{4})(?=[\s\]]|$))?"
)
_ISO: Final = re.compile(
    r"(?P<weekday>[A-Z][a-z]{2} )?(?P<y>\d{4})[-/.](?P<mo>\d{2})[-/.](?P<d>\d{2})[T _]"
    rf"{_CLOCK} ?(?P<z>Z|UTC\b|[+-]\d{{2}}:?\d{{2}}(?!\d))?(?(weekday)(?:[A-Z]{{3,5}}(?= ))?)"
)
_EPOCH: Final = re.compile(r"(?P<t>1\d{9})(?:\.(?P<f>\d{1,9}))?(?=[ :\]])")
_MINUTE: Final = re.compile(rf"(?P<month>{_WORD}) ?(?P<day>\d{{1,2}}) (?P<h>\d{{2}}):(?P<m>\d{{2}})(?=\])")


class Date(msgspec.Struct, frozen=True, gc=False):
    """A date as printed. `year` and `zone` say whether those were printed."""

    at: datetime | None
    """In the printed zone, else as if UTC; None when it is no date of this calendar."""
    end: int
    """Where it ends in the text."""
    year: bool = False
    zone: bool = False
    bare: bool = False
    """ISO with a comma, as only the kernel's own tools write it: no host and no tag follow."""


def date_at(text: str, start: int) -> Date | None:
    """The date that begins exactly here, or None."""
    if found := _ISO.match(text, start):
        zone = _zone(found["z"])
        at = _moment(found, int(found["y"]), int(found["mo"]), int(found["d"]), zone or UTC)
        comma = found["f"] is not None and text[found.start("f") - 1] == ","
        return Date(at, found.end(), year=True, zone=zone is not None, bare=comma)
    if found := _EPOCH.match(text, start):
        at = datetime.fromtimestamp(int(found["t"]), UTC) + _fraction(found["f"])
        return Date(at, found.end(), year=True, zone=True)
    if found := _DATE.match(text, start):
        year = found["y1"] or found["y2"]
        number = int(found["month3"] or 0) or month(found["month"] or found["month2"])
        day = int(found["day"] or found["day2"] or found["day3"])
        at = _moment(found, int(year or YEARLESS), number, day, UTC) if number else None
        return Date(at, found.end(), year=year is not None)
    return None


def minute_at(text: str, start: int) -> Date | None:
    """The `Nov30 06:12` that `dmesg -e` prints once a minute."""
    found = _MINUTE.match(text, start)
    if found is None:
        return None
    number = month(found["month"])
    at = None
    if number:
        at = _date(YEARLESS, number, int(found["day"]), int(found["h"]), int(found["m"]), 0, UTC)
    return Date(at, found.end())


def month(word: str) -> int:
    """1 to 12, or 0 for a word of a language that we do not know."""
    word = word.casefold().rstrip(".")
    known = _MONTH_OF.get(word, 0)
    return known or _MONTH_OF.get(word[:_PREFIX], 0) or _MONTH_OF.get(word[: _PREFIX + 1], 0)


def _moment(found: re.Match[str], year: int, number: int, day: int, zone: timezone) -> datetime | None:
    second = min(int(found["s"]), 59)  # a leap second is printed as 60
    at = _date(year, number, day, int(found["h"]), int(found["m"]), second, zone)
    return at + _fraction(found["f"]) if at is not None else None


def _date(
    year: int, number: int, day: int, hour: int, minute: int, second: int, zone: timezone
) -> datetime | None:
    try:
        at = datetime(year, number, day, hour, minute, second, tzinfo=zone)
    except ValueError:
        return None
    return at if 1 < year < 9998 else None


def _fraction(digits: str | None) -> timedelta:
    return timedelta(microseconds=int((digits or "0")[:6].ljust(6, "0")))


def _zone(text: str | None) -> timezone | None:
    if not text:
        return None
    if text in ("Z", "UTC"):
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    if minutes >= 24 * 60:
        return UTC
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))
