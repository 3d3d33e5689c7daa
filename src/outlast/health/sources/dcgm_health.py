"""`dcgmi health -c -j`: incidents a entity and watch, in words that the terminal width has cut in pieces.

The report carries no error codes and ends with 0 on Failure too, so the words are all there is; the
codes are recognised by the fixed parts of DCGM's sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from outlast.health.sources.dcgm_output import document, printable, told_problem
from outlast.model.observation.dcgm import DcgmIncident, DcgmProblem, DcgmSurvey

INCIDENTS_MAX: Final = 128
"""Incidents of one report that are kept; the rest is counted."""
PIECES_MAX: Final = 64

_OVERALL: Final = {"healthy": "Healthy", "warning": "Warning", "failure": "Failure"}

_XID = re.compile(r"\bXID[ -]?(\d{1,4})\b", re.IGNORECASE)

_SENTENCES: Final = (
    (120, ("fallen off the bus",)),
    (80, ("row remapping failed",)),
    (132, ("exceeded uncorrectable row remap limit",)),
    (85, ("row remappings are pending",)),
    (84, ("uncorrectable memory errors", "rows were remapped")),
    (83, ("pending page retirements together with",)),
    (6, ("pending retired page",)),
    (8, ("retired pages due to dbes",)),
    (7, ("retired pages have been detected",)),
    (4, ("volatile double-bit ecc",)),
    (5, ("single-bit ecc error",)),
    (52, ("faulty memory elements",)),
    (118, ("sram threshold count exceeded",)),
    (125, ("requires a reset to recover",)),
    (126, ("os in an inconsistent state",)),
    (127, ("peer-to-peer traffic to be quiesced",)),
    (128, ("operating at reduced capacity due to",)),
    (81, ("uncontained error",)),
    (131, ("contained error",)),
    (15, ("detected fatal errors on nvswitch",)),
    (16, ("detected nonfatal errors on nvswitch",)),
    (109, ("fatal nvswitch sxid",)),
    (71, ("nvlink errors on gpu", "should be 0")),
    (70, ("nvlink errors", "per second")),
    (13, ("nvlink errors on gpu", "exceeds")),
    (119, ("effective ber",)),
    (121, ("symbol ber",)),
    (14, ("nvlink link", "is currently down")),
    (3, ("pcie replays per minute",)),
    (9, ("corrupt inforom",)),
    (10, ("clocks event due to thermal",)),
    (10, ("throttling due to thermal",)),
    (12, ("clocks event due to power",)),
    (12, ("throttling due to power",)),
    (11, ("cannot reliably read the power",)),
    (122, ("imex", "status is")),
    (123, ("fabric state is",)),
    (33, ("fabric health:",)),
    (101, ("detected xid",)),
)
"""Fixed parts of the sentences of the codes that health watches use, the most telling first."""


def health_report(output: bytes, exit_code: int | None) -> DcgmSurvey:
    """The report, or what the tool said instead. Takes any bytes."""
    found = document(output, "body")
    body = found.get("body") if found else None
    if not isinstance(body, dict):
        problem, message = told_problem(output, exit_code)
        return DcgmSurvey(problem=problem, message=message)
    overall = _OVERALL.get(_value(body.get("Overall Health")).lower(), "")
    incidents = tuple(_incidents(body))
    if not incidents and overall not in ("", "Healthy"):
        incidents = (_unlisted("", None, overall),)
    if not overall:
        told = _value(body.get("Overall Health")) or "nothing"
        return DcgmSurvey(
            incidents=incidents[:INCIDENTS_MAX],
            problem=DcgmProblem.FAILED if found else DcgmProblem.GARBAGE,
            message=f"the overall health in DCGM's report is {printable(told)!r}",
        )
    return DcgmSurvey(
        overall=overall,
        incidents=incidents[:INCIDENTS_MAX],
        incidents_dropped=max(0, len(incidents) - INCIDENTS_MAX),
    )


def recognised(text: str) -> tuple[int | None, int | None]:
    """DCGM error code and Xid that a sentence of a health watch is about; None where it tells none."""
    lower = text.lower()
    code = next((code for code, parts in _SENTENCES if all(part in lower for part in parts)), None)
    xid = _XID.search(text)
    return code, int(xid.group(1)) if xid else None


def _incidents(body: dict[str, Any]) -> Iterator[DcgmIncident]:
    for group, node in body.items():
        for name, entity in _children(node):
            number = int(name) if name.isascii() and name.isdigit() and len(name) < 10 else None
            listed = 0
            for kind, errors in _children(entity):
                for system, detail in _children(errors) if kind == "Errors" else ():
                    listed += 1
                    yield _incident(group, number, system, detail)
            if not listed and _value(entity) not in ("", "Healthy"):
                yield _unlisted(group, number, _value(entity))


def _incident(group: str, number: int | None, system: str, detail: Any) -> DcgmIncident:
    text = _words(detail)
    code, xid = recognised(text)
    return DcgmIncident(
        entity_group=printable(group, 32),
        entity_id=number,
        system=printable(system, 64),
        health=printable(_value(detail), 32),
        text=text,
        code=code,
        xid=xid,
    )


def _unlisted(group: str, number: int | None, health: str) -> DcgmIncident:
    """Something is held, and the report does not say what in any way that is known."""
    return DcgmIncident(
        entity_group=printable(group, 32),
        entity_id=number,
        system="",
        health=printable(health, 32),
        text="no incident is listed",
    )


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    children = node.get("children") if isinstance(node, dict) else None
    if isinstance(children, dict):
        yield from children.items()


def _value(node: Any) -> str:
    value = node.get("value") if isinstance(node, dict) else None
    return value if isinstance(value, str) else ""


def _words(node: Any) -> str:
    """The text that was cut by width; each piece is a string, or a node with one."""
    pieces = node.get("overflow") if isinstance(node, dict) else None
    if not isinstance(pieces, list):
        pieces = [pieces]
    words = [piece if isinstance(piece, str) else _value(piece) for piece in pieces[:PIECES_MAX]]
    return printable(" ".join(words))
