"""`outlast xid 79`: one code, or one line of a kernel log, explained by what the agent itself uses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from outlast.cli import UserError, codes
from outlast.health.catalogue import Catalogue, NvlinkEntry, XidEntry, tables
from outlast.health.finding import Role
from outlast.model.health import FaultClass
from outlast.model.policy import Rung

NVLINK5_CODES: Final = range(144, 151)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.health.sources.facts import XidFact


_PEER_ADVICE: Final = (
    "Find the device at the other end of the link and look there first; give this GPU no new work meanwhile."
)


def xid(code: str, /, *, json: bool = False, catalogue: list[Path] | None = None) -> int:
    """Explain an NVIDIA Xid code, or a line of the kernel log. Exit code 3 when nobody can.

    Example: outlast xid 79

    Example: outlast xid 'NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.'

    Parameters
    ----------
    code
        The number after the PCI address in a line like `NVRM: Xid (PCI:0000:02:00): 79, ...`, or the whole
        line in quotes. With the line, what stands in it counts: Xid 144-150 mean nothing by number alone.
    json
        Print JSON instead of text.
    catalogue
        CSV file whose rows override a built-in catalogue, told by its columns; may be given several times.
        Default: the files in OUTLAST_CATALOGUE, separated by colons.
    """
    known = codes.catalogue_of(catalogue)
    value = codes.number(code, "xid")
    if value is not None:
        return codes.answer(of_code(value, known), json=json)
    if "(" not in code and "GPU" not in code:
        raise UserError(
            f"{code[:40]!r} is no Xid code; give a number, or a whole line of the kernel log in quotes. "
            "See `outlast xid --help`."
        )
    return codes.answer(of_line(code, known), json=json)


def plain(arguments: Sequence[str]) -> int | None:
    """The usual form without the command line parser; None for any other."""
    return codes.without_parser(arguments, xid)


def of_code(code: int, known: Catalogue) -> codes.Explanation:
    """A code by itself."""
    entry = known.xid(code)
    if entry is None:
        return codes.Explanation(
            title=f"Xid {code}",
            text="No catalogue that outlast knows lists this code. It would make the GPU Unknown: no new "
            "work until it checks clean, and no drain.",
            known=False,
            advice=codes.UNLISTED_ADVICE,
            facts={"code": code},
        )
    events = [row for row in known.nvlink5 if row.xid == code] if code in NVLINK5_CODES else []
    if events:
        return _of_events(entry, events)
    return codes.Explanation(
        title=f"Xid {entry.code}  {entry.name}  ({entry.severity})",
        text=entry.text,
        known=True,
        does=codes.rows_of(entry, entry.rung, entry.urgency),
        advice=codes.advice_of(entry.reason, entry.role, entry.rung),
        sources=tables.XID.sources,
        facts=dict(codes.as_builtins(entry)),
    )


def _of_events(entry: XidEntry, events: list[NvlinkEntry]) -> codes.Explanation:
    """A code that means nothing without the rest of its line."""
    listed = tuple(
        (
            f"{row.unit.split('/')[-1]}, sub-code {row.subcode}, status {row.status}",
            f"{row.severity}: {row.rung}" + (", look at the peer" if row.blames_peer else ""),
        )
        for row in events
    )
    return codes.Explanation(
        title=f"Xid {entry.code}  {entry.name}",
        text=entry.text,
        known=True,
        does=(
            ("Nonfatal", "recorded, not a fault"),
            ("Fatal", f"{entry.subsystem.condition_type}=False, reason {entry.reason}; first rung as below"),
            ("not listed", codes.ROLES[Role.UNEXPECTED]),
        ),
        events=listed,
        advice="Give outlast the whole line, in quotes: it says which of these it is.",
        sources=tables.NVLINK5.sources,
        facts={
            **codes.as_builtins(entry),
            "events": [codes.as_builtins(row) for row in events],
        },
    )


def of_line(line: str, known: Catalogue) -> codes.Explanation:
    """A whole line: its own words beat the code."""
    from outlast.cli.sxid import of_switch_line
    from outlast.health.sources.facts import SxidFact, XidFact

    fact, event = codes.read_line(line, known)
    if isinstance(fact, SxidFact):
        return of_switch_line(fact, event, known)
    entry = known.xid(fact.code) if isinstance(fact, XidFact) else None
    decoded = _decoded(fact, known) if isinstance(fact, XidFact) else {}
    row = decoded.pop("row", None)
    rung, urgency = codes.rung_of(event, _listed(row or entry))
    name = f"  {entry.name}" if entry is not None else ""
    title = f"Xid {fact.code}{name}" if isinstance(fact, XidFact) else event.code
    return codes.Explanation(
        title=title,
        text=event.summary,
        known=entry is not None or not isinstance(fact, XidFact),
        line=tuple((name.replace("_", " "), _said(value)) for name, value in decoded.items()),
        does=codes.rows_of(event, rung, urgency),
        advice=_PEER_ADVICE if event.blames_peer else codes.advice_of(event.reason, event.role, rung),
        sources=(tables.NVLINK5 if row is not None else tables.XID).sources,
        facts={
            "code": fact.code if isinstance(fact, XidFact) else None,
            "event": event.code,
            **codes.facts_of(event, rung, urgency),
            "blames_peer": event.blames_peer,
            "line": decoded,
        },
    )


def _decoded(fact: XidFact, known: Catalogue) -> dict[str, Any]:
    """What stands in the line, part by part; parts that are not there are left out."""
    from outlast.health.catalogue import nvlink5

    parts: dict[str, Any] = {
        "gpu": fact.address,
        "gpu_instance": fact.gpu_instance,
        "compute_instance": fact.compute_instance,
        "pid": fact.pid or None,
        "process": fact.process or None,
        "reset_needed": fact.reset,
        "drain_and_reset_needed": fact.drain_reset,
        "recovery_action": fact.recovery_action,
        "caused_by_xid": fact.previous_xid,
    }
    report = fact.nvlink
    if report is not None:
        found = nvlink5.explain(known.nvlink5, fact.code, report.unit, report.fatal, report.words)
        parts |= {
            "unit": report.unit or None,
            "severity": {True: "Fatal", False: "Nonfatal", None: None}[report.fatal],
            "link": report.link,
            "sub_code": found.subcode,
            "status": f"0x{report.words[1]:08x}" if len(report.words) > 1 else None,
            "words": " ".join(f"0x{word:08x}" for word in report.words) or None,
            "listed_as": found.entry.severity if found.entry is not None else None,
            "origin": found.entry.origin if found.entry is not None else None,
            "row": found.entry if found.agrees else None,
        }
    return {name: value for name, value in parts.items() if value is not None}


def _listed(entry: XidEntry | NvlinkEntry | None) -> tuple[FaultClass, Rung, Any] | None:
    return None if entry is None else (entry.fault_class, entry.rung, entry.urgency)


def _said(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
