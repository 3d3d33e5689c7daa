"""The list of incidents: the open ones first, then the newest of the closed."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from outlast.model.incident import Incident
from outlast.model.policy import Rung
from outlast.remediation.page import State
from outlast.web.standing import in_incident
from outlast.web.state import FleetState
from outlast.web.wording import between, fault_name, words_of

CLOSED_SHOWN_MAX: Final = 200


class Row(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One incident."""

    name: str
    node: str
    state: State | None
    """Absent once it is closed."""
    fault: str
    summary: str
    step: str
    blocked_by: str
    opened_at: datetime
    lasted: str
    end: str
    observe_only: bool


class IncidentsPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The page as data."""

    now: datetime
    synced: bool
    open: tuple[Row, ...]
    closed: tuple[Row, ...]
    closed_total: int


def incidents(state: FleetState, now: datetime) -> IncidentsPage:
    """Build the list."""
    newest_first = sorted(state.incidents.values(), key=lambda i: i.spec.opened_at, reverse=True)
    closed = [i for i in newest_first if i.status.end is not None]
    return IncidentsPage(
        now=now,
        synced=state.synced,
        open=tuple(row(i, now) for i in newest_first if i.status.end is None),
        closed=tuple(row(i, now) for i in closed[:CLOSED_SHOWN_MAX]),
        closed_total=len(closed),
    )


def highest_step(incident: Incident) -> Rung:
    """How far up the ladder an incident went; where it stands, while nothing was taken."""
    taken = [attempt.rung for attempt in incident.status.attempts]
    return max(taken, key=lambda rung: rung.height, default=incident.status.step)


def row(incident: Incident, now: datetime) -> Row:
    """One line of the list."""
    status = incident.status
    faults = status.faults or incident.spec.faults
    end = status.end
    return Row(
        name=incident.metadata.name,
        node=incident.spec.node_name,
        state=None if end is not None else in_incident(incident).state,
        fault=fault_name(status.fault or (faults[0].code if faults else "")),
        summary=faults[0].summary if faults else "",
        step=words_of(highest_step(incident)),
        blocked_by=status.blocked_by[0] if status.blocked_by and end is None else "",
        opened_at=incident.spec.opened_at,
        lasted=between(incident.spec.opened_at, end.at if end is not None else now),
        end=words_of(end.result) if end is not None else "",
        observe_only=incident.spec.observe_only,
    )
