"""`outlast sxid 20034`: a code of an NVSwitch, or a line with one, explained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.cli import UserError, codes
from outlast.health.catalogue import Catalogue, SwitchSeverity, SxidEntry, nvswitch, tables
from outlast.health.finding import Event, Role

if TYPE_CHECKING:
    from outlast.health.sources.facts import SxidFact


def sxid(code: str, /, *, json: bool = False, catalogue: list[Path] | None = None) -> int:
    """Explain an SXid code of an NVSwitch, or a line of the kernel log. Exit code 3 when nobody can.

    Example: outlast sxid 20034

    Example: outlast sxid 'nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up'

    Parameters
    ----------
    code
        The number after the PCI address in a line of an NVSwitch, or the whole line in quotes: the word
        Fatal or Non-fatal in it decides where the code can be either.
    json
        Print JSON instead of text.
    catalogue
        CSV file whose rows override a built-in catalogue, told by its columns; may be given several times.
        Default: the files in OUTLAST_CATALOGUE, separated by colons.
    """
    known = codes.catalogue_of(catalogue)
    value = codes.number(code, "sxid")
    if value is not None:
        return codes.answer(of_code(value, known), json=json)
    if "(" not in code:
        raise UserError(
            f"{code[:40]!r} is no SXid code; give a number, or a whole line of the kernel log in quotes. "
            "See `outlast sxid --help`."
        )
    from outlast.cli.xid import of_line

    return codes.answer(of_line(code, known), json=json)


def plain(arguments: Sequence[str]) -> int | None:
    """The usual form without the command line parser; None for any other."""
    return codes.without_parser(arguments, sxid)


def of_code(code: int, known: Catalogue) -> codes.Explanation:
    """A code as its usual line would be judged."""
    entry = known.sxid(code)
    verdict = nvswitch.judge(entry, entry is not None and entry.severity is not SwitchSeverity.NON_FATAL)
    return _explained(code, entry, verdict, entry.text if entry is not None else _UNLISTED)


def of_switch_line(fact: SxidFact, event: Event, known: Catalogue) -> codes.Explanation:
    """A whole line: its severity word refines the table's class."""
    entry = known.sxid(fact.code)
    said = {True: "Fatal", False: "Non-fatal", None: None}[fact.fatal]
    parts = {"switch": fact.address, "severity": said, "link": fact.link}
    line = {name: value for name, value in parts.items() if value is not None}
    explanation = _explained(fact.code, entry, event, event.summary)
    return codes.Explanation(
        title=explanation.title,
        text=explanation.text,
        known=explanation.known,
        line=tuple((name, str(value)) for name, value in line.items()),
        does=explanation.does,
        advice=explanation.advice,
        sources=explanation.sources,
        facts={**explanation.facts, "line": line},
    )


_UNLISTED = (
    "No catalogue that outlast knows lists this code. It would make the GPUs Unknown: no new work until they "
    "check clean, and no drain."
)


def _explained(
    code: int, entry: SxidEntry | None, event: Event | nvswitch.SwitchVerdict, text: str
) -> codes.Explanation:
    listed = None if entry is None else (entry.fault_class, entry.rung, entry.urgency)
    rung, urgency = codes.rung_of(event, listed)
    does = codes.rows_of(event, rung, urgency)
    if entry is not None and entry.severity is SwitchSeverity.POTENTIALLY_FATAL and event.role is Role.LEADER:
        does = (*does, ("Non-fatal", "when the line says so, it is recorded and nothing else"))
    return codes.Explanation(
        title=f"SXid {code}" + (f"  {entry.name}  ({entry.severity})" if entry is not None else ""),
        text=text,
        known=entry is not None,
        does=does,
        advice=codes.advice_of(event.reason, event.role, rung),
        sources=tables.SXID.sources if entry is not None else "",
        facts={
            "code": code,
            **({"name": entry.name, "severity": entry.severity} if entry is not None else {}),
            **codes.facts_of(event, rung, urgency),
        },
    )
