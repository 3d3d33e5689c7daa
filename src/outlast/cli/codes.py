"""A code explained for people and for scripts: what it means, what outlast does, what you should do.

Shared by `xid`, `sxid` and `dcgm`. A whole line of a kernel log is read by the agent's own parser and
judged by its own check, so what is printed here is what would happen on a node.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outlast.cli import EXIT_OK, EXIT_UNKNOWN, UserError
from outlast.health.catalogue import CATALOGUE_VERSION, Catalogue, CatalogueError, Urgency, load
from outlast.health.catalogue.nvswitch import SwitchVerdict
from outlast.health.finding import PROOF_TEXT, Event, Proof, Role
from outlast.health.reason_texts import REASON_TEXTS
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Subsystem
from outlast.model.plain_text import plain as printable
from outlast.model.policy import Rung

if TYPE_CHECKING:
    from outlast.health.sources.facts import Fact

CODES_JSON_VERSION: Final = 1
CATALOGUE_ENV: Final = "OUTLAST_CATALOGUE"
WIDTH_CHARS: Final = 100
LINE_CHARS_MAX: Final = 64 * 1024

ROLES: Final = {
    Role.LEADER: "opens a fault at once",
    Role.FOLLOWER: "often an echo of another code: waits 5 s for it",
    Role.APPLICATION: "made by a program: nothing happens to the node",
    Role.MODIFIER: "says more about a fault that is open",
    Role.INFORMATIONAL: "recorded, not a fault",
    Role.UNEXPECTED: "Unknown: no new work until the GPUs check clean, and no drain",
}
_URGENCIES: Final = {
    Urgency.NOW: "now",
    Urgency.AT_DRAIN: "when the node is empty anyway; jobs may go on until then",
    Urgency.WHEN_IDLE: "look at it when no job is in the way",
    Urgency.NEVER: "nothing is done to the node",
}
_RUNGS: Final = {
    FaultClass.APPLICATION: Rung.WATCH,
    FaultClass.RESET_CURES: Rung.RESET_GPU,
    FaultClass.REBOOT_CURES: Rung.REBOOT,
    FaultClass.HARDWARE_GONE: Rung.REPLACE,
    FaultClass.MONITOR_HUNG: Rung.HOLD,
}
UNLISTED_ADVICE: Final = "Ask the vendor what it means, and add a row to a catalogue file of your own."


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What is printed, before it is laid out."""

    title: str
    text: str
    known: bool
    does: tuple[tuple[str, str], ...] = ()
    """What outlast does, row by row."""
    advice: str = ""
    sources: str = ""
    line: tuple[tuple[str, str], ...] = ()
    """What was read from a line of a log."""
    events: tuple[tuple[str, str], ...] = ()
    """What the code can mean, where it means several things."""
    facts: dict[str, Any] = {}
    """The same for scripts."""


def answer(explanation: Explanation, *, json: bool) -> int:
    """Print it; the exit code says whether it is known."""
    print(as_json(explanation) if json else as_text(explanation))
    return EXIT_OK if explanation.known else EXIT_UNKNOWN


def as_text(explanation: Explanation) -> str:
    """Paragraphs and two short tables."""
    parts = [explanation.title, "", textwrap.fill(explanation.text, WIDTH_CHARS)]
    for heading, rows in (
        ("The line says", explanation.line),
        ("What outlast does", explanation.does),
        ("Events that are listed", explanation.events),
    ):
        parts += ["", heading, *_table(rows)] if rows else []
    if explanation.advice:
        parts += ["", "What you should do", *_wrapped("  ", explanation.advice)]
    return "\n".join([*parts, "", *_wrapped("Source: ", _sources(explanation))])


def as_json(explanation: Explanation) -> str:
    """One document with a version; keys are added and never change their meaning."""
    document = {
        "version": CODES_JSON_VERSION,
        "catalogue": CATALOGUE_VERSION,
        "known": explanation.known,
        **explanation.facts,
        "text": explanation.text,
        "advice": explanation.advice,
        "source": _sources(explanation),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def catalogue_of(given: Sequence[Path] | None) -> Catalogue:
    """The catalogue with the files of the option, else of the environment. Raises UserError."""
    files = given or [Path(name) for name in os.environ.get(CATALOGUE_ENV, "").split(os.pathsep) if name]
    try:
        return load(*files)
    except CatalogueError as error:
        raise UserError(f"{error}.") from error


def without_parser(arguments: Sequence[str], verb: Callable[..., int]) -> int | None:
    """The usual form, `79` or `79 --json`, without the command line parser; None for any other."""
    words = [argument for argument in arguments if argument != "--json"]
    if len(words) != 1 or words[0].startswith("-"):
        return None
    return verb(words[0], json=len(words) < len(arguments))


def number(text: str, prefix: str) -> int | None:
    """`79`, `Xid 79` or `xid/79` as a number; None for anything else."""
    bare = text.strip().casefold().removeprefix(prefix).lstrip(" /:")
    return int(bare) if bare.isascii() and bare.isdigit() and len(bare) <= 9 else None


def rows_of(values: Any, rung: Rung, urgency: Urgency) -> tuple[tuple[str, str], ...]:
    """What outlast does, of an Event or of a table's row that has the same fields."""
    expiry = f", or {span(values.expiry_s)} without it" if values.expiry_s else ""
    rows = [
        ("when seen", ROLES[values.role]),
        ("class", str(values.fault_class)),
        ("first rung", f"{rung}: {_URGENCIES[urgency]}"),
        ("covers", str(values.scope)),
    ]
    if values.role is Role.APPLICATION and values.subsystem is Subsystem.GPU:
        rows.append(("repeated", _repeated()))
    condition = condition_of(values.role, values.fault_class, values.subsystem, values.reason)
    if condition:
        rows += [("condition", condition), ("over when", PROOF_TEXT[Proof(values.proof)] + expiry)]
    return tuple(rows)


def _repeated() -> str:
    from outlast.health.verdict.repeats import BLOCK_JOBS, SUSPECT_JOBS

    return (
        f"{SUSPECT_JOBS} different jobs on one GPU within a day make that GPU suspected, which is said and "
        f"no more; {BLOCK_JOBS} keep new work away where --application-rule is block"
    )


def condition_of(role: Role, fault_class: FaultClass, subsystem: Subsystem, reason: Reason) -> str:
    """The node condition that shows it; empty where none does."""
    if role is Role.UNEXPECTED:
        return f"{Subsystem.GPU.condition_type}=Unknown, reason {Reason.UNRECOGNISED_XID}"
    if role is Role.INFORMATIONAL or fault_class is FaultClass.APPLICATION or role is Role.MODIFIER:
        return ""
    return f"{subsystem.condition_type}=False, reason {reason}"


def advice_of(reason: Reason, role: Role, rung: Rung) -> str:
    """What people should do, as the page of reasons says it, unless the code wants less than its reason."""
    if role is Role.UNEXPECTED:
        return UNLISTED_ADVICE
    if role is Role.INFORMATIONAL:
        return "Nothing, unless it repeats."
    if rung is Rung.BLOCK_NEW_WORK:
        return "Leave running jobs alone and give it no new work; then do what the text above says."
    return REASON_TEXTS[reason].advice


def rung_of(
    event: Event | SwitchVerdict, listed: tuple[FaultClass, Rung, Urgency] | None
) -> tuple[Rung, Urgency]:
    """The table's rung; that of the event's class where the line itself says something else."""
    if event.role in (Role.INFORMATIONAL, Role.MODIFIER):
        return Rung.WATCH, Urgency.NEVER
    if listed is not None and listed[0] is event.fault_class and event.role is not Role.UNEXPECTED:
        return listed[1], listed[2]
    rung = _RUNGS.get(event.fault_class, Rung.BLOCK_NEW_WORK)
    return rung, Urgency.NEVER if rung is Rung.WATCH else Urgency.NOW


def read_line(line: str, catalogue: Catalogue) -> tuple[Fact, Event]:
    """A pasted line by the agent's own parser and check. Raises UserError."""
    from outlast.health.checks import kernel_log
    from outlast.health.sources import kernel_text
    from outlast.model.observation import KernelRecord

    text = line[:LINE_CHARS_MAX]
    if "NVRM:" not in text and "SXid (" not in text:
        # A tracepoint prints the same line without the driver's name.
        text = f"NVRM: {text[max(text.find('Xid ('), 0) :]}"
    record = KernelRecord(sequence=0, timestamp_us=0, priority=4, flags="-", text=text)
    fact, _ = kernel_text.read(record, kernel_text.LineMemory())
    event = kernel_log.run(fact, catalogue) if fact is not None else None
    if fact is None or event is None:
        raise UserError(
            f"nothing in {printable(line[:80])!r} is a code or a line that outlast understands; "
            "give a number, or a whole line of the kernel log in quotes. See `outlast xid --help`."
        )
    return fact, event


def facts_of(event: Event | SwitchVerdict, rung: Rung, urgency: Urgency) -> dict[str, Any]:
    """An event for scripts, with the same keys as a table's row."""
    return {
        "class": event.fault_class,
        "scope": event.scope,
        "rung": rung,
        "urgency": urgency,
        "role": event.role,
        "rank": event.rank,
        "subsystem": event.subsystem,
        "reason": event.reason,
        "proof": event.proof,
        "expiry_s": event.expiry_s,
    }


def span(seconds: float) -> str:
    """A time as people say it."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (seconds >= length and unit != "days"):
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows) + 2
    return [part for name, value in rows for part in _wrapped(f"  {name:<{width}}", printable(value))]


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH_CHARS, initial_indent=head, subsequent_indent=" " * len(head))


def _sources(explanation: Explanation) -> str:
    mine = f"outlast catalogue {CATALOGUE_VERSION}"
    return f"{explanation.sources}; {mine}" if explanation.sources else mine


def as_builtins(entry: Any) -> Mapping[str, Any]:
    """A table's row with the names of its columns."""
    found: Mapping[str, Any] = msgspec.to_builtins(entry)
    return found
