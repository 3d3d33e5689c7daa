"""One incident: the explain page, with its timeline to scale and every attempt as it was recorded."""

from __future__ import annotations

from datetime import datetime

import msgspec

from outlast.model.incident import Incident
from outlast.remediation.page import ExplainPage
from outlast.web.views.timeline import Timeline, timeline
from outlast.web.wording import ago, between, clock_time, fault_name, words_of


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One rung taken."""

    id: str
    rung: str
    started_at: datetime
    lasted: str
    result: str
    message: str
    because: tuple[str, ...]


class IncidentPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The page as data."""

    now: datetime
    synced: bool
    name: str
    fault: str
    opened: str
    lasted: str
    end: str
    """How it ended, in two words; empty while it runs."""
    explain: ExplainPage
    timeline: Timeline | None
    attempts: tuple[AttemptRow, ...]
    attempts_dropped: int


def incident_page(incident: Incident, explained: ExplainPage, now: datetime, *, synced: bool) -> IncidentPage:
    """Build the page around an explanation made by the domain."""
    status = incident.status
    end = status.end
    opened = incident.spec.opened_at
    return IncidentPage(
        now=now,
        synced=synced,
        name=incident.metadata.name,
        fault=fault_name(status.fault) if status.fault else "",
        opened=f"{clock_time(opened)} UTC, {ago(opened, now)}",
        lasted=between(opened, end.at if end is not None else now),
        end=words_of(end.result) if end is not None else "",
        explain=explained,
        timeline=timeline(explained.timeline, now),
        attempts=tuple(
            AttemptRow(
                id=a.id,
                rung=words_of(a.rung),
                started_at=a.started_at,
                lasted=between(a.started_at, a.outcome.at if a.outcome is not None else now),
                result=words_of(a.outcome.result) if a.outcome is not None else "running",
                message=a.outcome.message if a.outcome is not None else "",
                because=a.because,
            )
            for a in status.attempts
        ),
        attempts_dropped=status.attempts_dropped,
    )
