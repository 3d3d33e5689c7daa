"""Are tables of the kernel about to be full: tracked connections, open files?

A full one drops packets or fails opens of every program on the node, which looks like anything but this.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.finding import HOST_SPACING_S, Assessment, Level, Note, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import Fill, HostSurvey

NAME: Final = "host_tables"
FULL_SHARE: Final = 0.95
NOTED_SHARE: Final = 0.8
POLLS: Final = 2
RANK: Final = 16


def run(view: View) -> Assessment | None:
    """A finding for each table that is all but full."""
    survey = view.newest(HostSurvey)
    if survey is None:
        return None
    tables = {
        "connections": ("the table of tracked connections (nf_conntrack)", survey.connections),
        "open-files": ("the table of open files (fs.file-max)", survey.open_files),
    }
    bad: list[Level] = []
    notes: list[Note] = []
    covers = set()
    for code, (name, fill) in tables.items():
        if fill is None:
            continue
        covers.add(name)
        if fill.share >= FULL_SHARE:
            bad.append(_level(code, name, fill))
        elif fill.share >= NOTED_SHARE:
            notes.append(Note(subsystem=Subsystem.HOST, text=f"{name} is {NOTED_SHARE:.0%} full or more"))
    return Assessment(check=NAME, bad=tuple(bad), notes=tuple(notes), covers=frozenset(covers))


CHECK: Final = LevelCheck(NAME, "tables of the kernel", frozenset({HostSurvey}), run)


def _level(code: str, name: str, fill: Fill) -> Level:
    return Level(
        code=f"host/{code}-full",
        reason=Reason.KERNEL_TABLE_FULL,
        fault_class=FaultClass.TRANSIENT,
        subsystem=Subsystem.HOST,
        scope=Scope.NODE,
        rank=RANK,
        proof=Proof.LEVEL_GOOD,
        polls=POLLS,
        spacing_s=HOST_SPACING_S,
        device=name,
        source=HostSurvey.source,
        text=f"{name} holds {fill.used} of {fill.limit}",
        summary=f"{name[0].upper()}{name[1:]} is {FULL_SHARE:.0%} full or more.",
    )
