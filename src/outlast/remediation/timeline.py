"""An incident as spans on a line: when it was seen, and what each attempt took. Pure."""

from __future__ import annotations

from typing import Final

from outlast.model.incident import Incident, Result
from outlast.model.policy import Rung
from outlast.remediation.page import Milestone

BAD_RESULTS: Final = (Result.FAILED, Result.TIMED_OUT, Result.NEVER_RAN)
_SPANS: Final = {
    Rung.REQUEST_CHECKPOINT: "checkpoint",
    Rung.DRAIN: "drain",
    Rung.REBOOT: "repair",
    Rung.REPLACE: "replace",
}


def timeline(incident: Incident) -> tuple[Milestone, ...]:
    """Each attempt as a span, in order; a reboot ends when the machine is back, its check is a span too."""
    times, status = incident.status.timings, incident.status
    end = status.end.at if status.end is not None else None
    milestones = []
    if times.detected_at is not None:
        milestones.append(
            Milestone(name="detect", started_at=times.detected_at, ended_at=times.blocked_at or end)
        )
    for attempt in status.attempts:
        name = _SPANS.get(attempt.rung)
        if name is None:
            continue
        outcome = attempt.outcome
        stop = outcome.at if outcome is not None else end
        failed = outcome is not None and outcome.result in BAD_RESULTS
        back = times.came_back_at
        came_back = back is not None and attempt.started_at <= back and (stop is None or back <= stop)
        if attempt.rung is Rung.REBOOT and back is not None and came_back:
            milestones.append(Milestone(name=name, started_at=attempt.started_at, ended_at=back))
            milestones.append(Milestone(name="verify", started_at=back, ended_at=stop, failed=failed))
        else:
            milestones.append(
                Milestone(name=name, started_at=attempt.started_at, ended_at=stop, failed=failed)
            )
    return tuple(milestones)
