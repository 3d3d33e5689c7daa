"""One line of any kernel log -> its text, its times and whether the kernel wrote it; never an exception.

Decorations are taken off one by one for as long as they are known, so an unknown one hides nothing. Who
wrote a line is decided by where the kernel's tag stands, because anybody can write the words of a driver.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

import msgspec

from outlast.health.replay.times import date_at, minute_at
from outlast.health.sources.kernel_record import is_property, parse_record
from outlast.model.observation import KERNEL_FACILITY, KERNEL_LINE_BYTES_MAX

DECORATIONS_MAX: Final = 12
KERNEL_PRIORITY: Final = 4
"""Of lines that do not print theirs: facility 0, level warning, as the driver's own lines have."""
USER_PRIORITY: Final = 12
SECOND_US: Final = 1_000_000
_DAYS_US_MAX: Final = 10**18


class LogLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one line says. Times are None where it prints none."""

    text: str
    kernel: bool
    """The kernel itself wrote it, as far as the format can tell."""
    uptime_us: int | None = None
    relative_us: int | None = None
    """Since the line before it."""
    wall: datetime | None = None
    year: bool = True
    """The date was printed with its year."""
    zone: bool = False
    host: str = ""
    boot_id: str = ""
    cursor: str = ""
    sequence: int | None = None
    priority: int = KERNEL_PRIORITY
    boundary: str | None = None
    """A line between two boots; the id of the one that begins, as far as it is printed."""
    relevant: bool = True
    """False for lines that belong to the one before (its KEY=value properties)."""


_ANSI: Final = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
_KMSG: Final = re.compile(rb"\d{1,10},\d{1,19},\d{1,19}(?:,[^;\n]{0,200})?;")
_GREP: Final = re.compile(r"(?:[\w./+-]{1,255}?(?::|-(?=\d{1,10}-)))?(?:\d{1,10}[:-])?(?=[\[<\w])")
_BLANK: Final = re.compile(r"[ \t]*")
_PRIORITY: Final = re.compile(r"<(\d{1,4})>(?:1 (?=\d{4}-))?")
_DECODED: Final = re.compile(r"(kern|user|daemon|auth|syslog|local\d|\w{2,8}) {0,6}:(\w{4,6}) {0,4}: ?")
_UPTIME: Final = re.compile(r"\[ {0,12}(\d{1,12})\.(\d{1,9})\]")
_RELATIVE: Final = re.compile(r"\[ {0,12}\+ {0,12}(\d{1,12})\.(\d{1,9})\]")
_CALLER: Final = re.compile(r"\[ {0,8}[TC]\d{1,10}\]")
_DMESG: Final = re.compile(rb"(?:<(\d)>)?\[ {0,12}(\d{1,12})\.(\d{6})\] (?=NVRM: |nvidia-nvswitch\d)")
_HOST = r"[^\s:\[\]\"'=]{1,254}"
_TAG: Final = re.compile(
    rf"(?:(?P<host>(?!kern\.|kernel:){_HOST}) {{1,2}})?(?:kern\.[a-z]{{3,7}} )?"
    r"kernel(?:: ?| - - - | - - (?:\[[^\]]{0,512}\]) )"
)
_TALOS: Final = re.compile(
    r"(?:(?P<host>[^\s\[\]\"'=]{1,254}): )?(?P<facility>[a-z]{2,8}\d?): {1,8}"
    r"(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug): {1,8}\[(?=\d{4}-)"
)
"""`talosctl dmesg`: node, facility and level in words, the date in brackets."""
_PROCESS: Final = re.compile(rf"(?:{_HOST} )?[^\s\[\]:]{{1,64}}\[\d{{1,10}}\]: ")
_BOOT: Final = re.compile(r"-- (?:Boot ([0-9a-fA-F]{32}|[0-9a-fA-F-]{36})|Reboot|Boot) ?--")
_DRIVER_STARTS: Final = ("NVRM: ", "nvidia-nvswitch")
_FOREIGN: Final = re.compile(r"[\"'=]|(?!nvidia)[A-Za-z_][\w./-]{0,64}(?:\[\d{1,10}\])?:\s")
_BEFORE_DRIVER_MAX: Final = 512


def read_line(raw: bytes, *, strict: bool = False) -> LogLine:
    """One line without its end. `strict`: behind a date only the tag `kernel:` makes it the kernel's."""
    raw = raw[:KERNEL_LINE_BYTES_MAX].rstrip(b"\r\n")
    if found_plain := _DMESG.match(raw):  # What most lines of a flood look like, in one step.
        return LogLine(
            text=raw[found_plain.end() :].decode("utf-8", "replace"),
            kernel=True,
            uptime_us=int(found_plain[2]) * SECOND_US + int(found_plain[3]),
            priority=int(found_plain[1] or KERNEL_PRIORITY),
        )
    if raw[:1] in (b"{", b"\x1e") or raw.startswith(b"data: {"):
        found = _journal(raw[raw.find(b"{") :]) if b"{" in raw else None
        if found is not None:
            return found
    if _KMSG.match(raw):
        return _kmsg(raw)
    if is_property(raw) and _is_property_text(raw):
        return LogLine(text="", kernel=False, relevant=False)
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if text.startswith("-- ") and (found_boot := _BOOT.match(text)):
        return LogLine(text="", kernel=True, boundary=(found_boot[1] or "").replace("-", "").lower())
    return _plain(text, strict=strict)


def _is_property_text(raw: bytes) -> bool:
    name, equals, _ = raw[1:64].partition(b"=")
    return bool(equals) and name.isupper() and name.replace(b"_", b"").isalnum()


def _kmsg(raw: bytes) -> LogLine:
    record = parse_record(raw)
    if record is None:
        return LogLine(text="", kernel=False, relevant=False)
    return LogLine(
        text=record.text,
        kernel=record.facility == KERNEL_FACILITY,
        uptime_us=record.timestamp_us,
        sequence=record.sequence,
        priority=record.priority,
    )


class _Entry(msgspec.Struct):
    message: Any = msgspec.field(name="MESSAGE", default=None)
    transport: Any = msgspec.field(name="_TRANSPORT", default="")
    facility: Any = msgspec.field(name="SYSLOG_FACILITY", default=None)
    level: Any = msgspec.field(name="PRIORITY", default=None)
    cursor: Any = msgspec.field(name="__CURSOR", default="")
    boot_id: Any = msgspec.field(name="_BOOT_ID", default="")
    host: Any = msgspec.field(name="_HOSTNAME", default="")
    kernel_us: Any = msgspec.field(name="_SOURCE_MONOTONIC_TIMESTAMP", default=None)
    monotonic_us: Any = msgspec.field(name="__MONOTONIC_TIMESTAMP", default=None)
    wall_us: Any = msgspec.field(name="__REALTIME_TIMESTAMP", default=None)


_ENTRY: Final = msgspec.json.Decoder(_Entry)


def _journal(raw: bytes) -> LogLine | None:
    """A journal entry as JSON; None when it is something else. Its underscore fields can't be forged."""
    if b'"MESSAGE"' not in raw:
        return None
    try:
        entry = _ENTRY.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    kernel_us = _number(entry.kernel_us)
    facility = _number(entry.facility)
    wall_us = _number(entry.wall_us)
    wall = None
    if wall_us is not None:
        wall = date_at(f"{wall_us // SECOND_US}.{wall_us % SECOND_US:06d} ", 0)
    # A user's record in /dev/kmsg comes by the same transport, but never with the kernel's facility.
    kernel = entry.transport == "kernel" and (entry.facility is None or facility == KERNEL_FACILITY)
    level = _number(entry.level)
    return LogLine(
        text=_message(entry.message),
        kernel=kernel,
        uptime_us=kernel_us if kernel_us is not None else _number(entry.monotonic_us),
        wall=wall.at if wall else None,
        zone=True,
        host=_word(entry.host),
        boot_id=_word(entry.boot_id).replace("-", "").lower(),
        cursor=_word(entry.cursor),
        priority=(KERNEL_FACILITY if kernel else facility or 1) * 8 + (level if level is not None else 4) % 8,
    )


def _message(value: Any) -> str:
    """Text, bytes as numbers (when it is not clean UTF-8), several of either, or null (too long to show)."""
    if isinstance(value, str):
        return value[:KERNEL_LINE_BYTES_MAX]
    if not isinstance(value, list):
        return ""
    if all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 256 for item in value):
        return bytes(value).decode("utf-8", "replace")
    return "\n".join(_message(item) for item in value if isinstance(item, str))[:KERNEL_LINE_BYTES_MAX]


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _DAYS_US_MAX:
        return value
    return None


def _word(value: Any) -> str:
    return value[:512] if isinstance(value, str) else ""


class _Seen:
    """What the decorations of one line have said so far."""

    __slots__ = ("bare", "dated", "host", "priority", "relative", "tagged", "uptime", "wall", "year", "zone")

    def __init__(self) -> None:
        self.uptime: int | None = None
        self.relative: int | None = None
        self.wall: datetime | None = None
        self.year = self.zone = self.dated = self.bare = self.tagged = False
        self.priority: int | None = None
        self.host = ""


def _plain(text: str, *, strict: bool) -> LogLine:
    seen = _Seen()
    at = 0
    if not strict and (talos := _TALOS.match(text)):
        at = _talos(text, talos, seen)
    elif text[:1] not in "[<" and (found := _GREP.match(text)) and found.end():
        at = found.end() if _decoration(text, found.end(), _Seen()) else 0
    for _ in range(DECORATIONS_MAX):
        end = _decoration(text, at, seen)
        if not end:
            break
        at = end
    rest = text[at:].lstrip(" \t")
    if not seen.tagged and (tag := _TAG.match(rest)):
        seen.tagged, seen.host = True, tag["host"] or ""
        rest, at = rest[tag.end() :], 0
        for _ in range(DECORATIONS_MAX):
            end = _decoration(rest, at, seen, dates=False)
            if not end:
                break
            at = end
        rest = rest[at:].lstrip(" \t") if at else rest
    if "#012" in rest:
        rest = rest.replace("#012", "\n")  # how rsyslog writes a newline inside a message
    kernel = _is_kernel(rest, seen, strict=strict)
    priority = seen.priority if seen.priority is not None else KERNEL_PRIORITY if kernel else USER_PRIORITY
    return LogLine(
        text=rest,
        kernel=kernel,
        uptime_us=seen.uptime,
        relative_us=seen.relative,
        wall=seen.wall,
        year=seen.year or seen.wall is None,
        zone=seen.zone,
        host=seen.host,
        priority=priority,
    )


def _talos(text: str, found: re.Match[str], seen: _Seen) -> int:
    """Where what Talos Linux writes before a record ends; 0 when it is something else."""
    date = date_at(text, found.end())
    if date is None or not text.startswith("]: ", date.end):
        return 0
    seen.wall, seen.year, seen.zone, seen.dated = date.at, date.year, date.zone, True
    seen.host = found["host"] or ""
    seen.tagged = True
    seen.priority = KERNEL_PRIORITY if found["facility"] == "kern" else USER_PRIORITY
    return date.end + len("]: ")


def _decoration(text: str, at: int, seen: _Seen, *, dates: bool = True) -> int:
    """Where the decoration that begins here ends; 0 when there is none."""
    at = _BLANK.match(text, at).end()  # type: ignore[union-attr]  # It matches nothing, too.
    first = text[at : at + 1]
    if first == "<":
        found = _PRIORITY.match(text, at)
        if found and seen.priority is None:
            seen.priority = int(found[1])
            return found.end()
        return 0
    if first == "[":
        return _bracket(text, at, seen)
    if not dates or not first:
        return 0
    if not seen.dated and (date := date_at(text, at)):
        seen.dated, seen.bare = True, date.bare
        seen.wall, seen.year, seen.zone = date.at, date.year, date.zone
        return date.end
    if seen.priority is None and seen.uptime is None and (found := _DECODED.match(text, at)):
        seen.priority = KERNEL_PRIORITY if found[1] == "kern" else USER_PRIORITY
        return found.end()
    return 0


def _bracket(text: str, at: int, seen: _Seen) -> int:
    if found := _UPTIME.match(text, at):
        seen.uptime = _us(found)
        return found.end()
    if found := _RELATIVE.match(text, at):
        seen.relative = _us(found)
        return found.end()
    if found := _CALLER.match(text, at):
        return found.end()
    if text.startswith("[...]", at):
        return at + 5
    date = date_at(text, at + 1) or minute_at(text, at + 1)
    if date is None or not text.startswith("]", date.end):
        return 0
    if seen.wall is None:
        seen.wall, seen.year, seen.zone = date.at, date.year, date.zone
    return date.end + 1


def _us(found: re.Match[str]) -> int:
    return int(found[1]) * SECOND_US + int(found[2][:6].ljust(6, "0"))


def _is_kernel(rest: str, seen: _Seen, *, strict: bool) -> bool:
    if seen.priority is not None and seen.priority >> 3 != KERNEL_FACILITY:
        return False
    if seen.tagged:
        return True
    if _PROCESS.match(rest):
        return False
    if seen.dated and not seen.bare:
        # Every syslog format names the writer. A line without any can only be one that was shortened.
        return not strict and rest.startswith(_DRIVER_STARTS)
    driver = rest.find("NVRM", 0, _BEFORE_DRIVER_MAX)
    if driver < 0:
        switch = rest.find("SXid (", 0, _BEFORE_DRIVER_MAX)
        driver = rest.rfind("nvidia-nvswitch", 0, switch) if switch > 0 else switch
        driver = max(driver, 0) if switch >= 0 else -1
    # The driver begins its lines; behind other words or in quotes somebody tells about one.
    return driver <= 0 or _FOREIGN.search(rest, 0, driver) is None
