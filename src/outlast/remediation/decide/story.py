"""The pen with which a decision is written: collects the next record, acts, notes and limits of one look.

It lives for one call of `decide` and keeps the record inside its bounds: the newest decisions, the
oldest finished attempts moved into a count, texts cut to their limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from outlast.model.decision import Act, Note, Step
from outlast.model.health import MESSAGE_MAX, Fault
from outlast.model.incident import (
    ATTEMPTS_MAX,
    BECAUSE_MAX,
    BECAUSE_TEXT_MAX,
    BLOCKED_BY_MAX,
    DECISIONS_MAX,
    Attempt,
    DecisionRecord,
    Incident,
    IncidentStatus,
    NextStep,
    Outcome,
    Result,
)
from outlast.model.policy import Rung
from outlast.remediation.decide.situation import FleetView, RulingPolicy, Situation

UID_SHOWN = 8
"""Characters of an incident's uid in names; enough to tell two incidents of one name apart."""


@dataclass(slots=True)
class Story:
    """One incident during one look."""

    situation: Situation
    incident: Incident
    ruling: RulingPolicy
    fleet: FleetView
    now: datetime
    status: IncidentStatus
    faults: tuple[Fault, ...] = ()
    """Actionable now, worst first, with the class their history earns."""
    acts: list[Act] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    look_s: float | None = None
    needs_pods: bool = False

    @property
    def name(self) -> str:
        """Name of the incident."""
        return self.incident.metadata.name

    @property
    def token(self) -> str:
        """The incident in names of other objects: one that was deleted and opened again is another one."""
        uid = self.incident.metadata.uid[:UID_SHOWN]
        return f"{self.name}-{uid}" if uid else self.name

    def request_id(self, attempt: Attempt) -> str:
        """An attempt as pods see it. Attempt ids alone come again in a later incident of the same pods."""
        return f"{self.token}.{attempt.id}"

    @property
    def attempt(self) -> Attempt | None:
        """The attempt whose outcome is open."""
        return self.status.open_attempt

    def record(self, **changes: Any) -> None:
        """Change fields of the record."""
        self.status = msgspec.structs.replace(self.status, **changes)

    def mark(self, milestone: str, at: datetime | None = None) -> None:
        """Note the time of a milestone."""
        self.record(timings=msgspec.structs.replace(self.status.timings, **{milestone: at or self.now}))

    def decide(self, rung: Rung, reason: str, message: str) -> None:
        """Record a decision unless it is the one that stands already."""
        last = self.status.decisions[-1] if self.status.decisions else None
        if last is not None and (last.rung, last.reason, last.message) == (rung, reason, message):
            return
        entry = DecisionRecord(at=self.now, rung=rung, reason=reason, message=message[:MESSAGE_MAX])
        if last is not None and (last.rung, last.reason) == (rung, reason):
            kept = (*self.status.decisions[:-1], msgspec.structs.replace(entry, at=last.at))
        else:
            kept = (*self.status.decisions, entry)
        self.record(decisions=kept[-DECISIONS_MAX:])

    def begin(
        self,
        rung: Rung,
        reason: str,
        because: tuple[str, ...],
        *,
        deadline_s: float | None = None,
        boot_id: str = "",
        job_name: str = "",
        at: datetime | None = None,
    ) -> Attempt:
        """Write the intent of a rung. The epoch grows with it and names it."""
        epoch = self.status.epoch + 1
        attempt = Attempt(
            id=f"{epoch}-{rung}",
            rung=rung,
            started_at=at or self.now,
            deadline_at=None if deadline_s is None else self.now + timedelta(seconds=deadline_s),
            reason=reason,
            because=tuple(text[:BECAUSE_TEXT_MAX] for text in because[:BECAUSE_MAX]),
            boot_id=boot_id,
            job_name=job_name,
        )
        attempts = (*self.status.attempts, attempt)
        dropped = max(0, len(attempts) - ATTEMPTS_MAX)
        self.record(
            epoch=epoch,
            step=rung,
            attempts=attempts[dropped:],
            attempts_dropped=self.status.attempts_dropped + dropped,
        )
        return attempt

    def finish(self, attempt: Attempt, result: Result, message: str) -> None:
        """Write the outcome of an attempt."""
        outcome = Outcome(at=self.now, result=result, message=message[:MESSAGE_MAX])
        closed = msgspec.structs.replace(attempt, outcome=outcome)
        self.record(attempts=tuple(closed if a.id == attempt.id else a for a in self.status.attempts))

    def past_deadline(self, attempt: Attempt) -> bool:
        """Whether an attempt has used up its time; if not, look again when it has."""
        if attempt.deadline_at is None:
            return False
        left_s = (attempt.deadline_at - self.now).total_seconds()
        if left_s > 0:
            self.look_in(left_s)
        return left_s <= 0

    def block_by(self, text: str) -> None:
        """Name a limit that holds the incident back now."""
        if text and text not in self.blocked:
            self.blocked.append(text)

    def tell(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Say a sentence on the node."""
        self.notes.append(Note(reason=reason, message=message[:MESSAGE_MAX], warning=warning))

    def expect(self, rung: Rung, message: str, at: datetime | None = None) -> None:
        """Say what happens next if nothing changes."""
        self.record(next=NextStep(rung=rung, at=at, message=message[:MESSAGE_MAX]))

    def look_in(self, seconds: float) -> None:
        """Look again after this time at the latest."""
        self.look_s = seconds if self.look_s is None else min(self.look_s, seconds)

    def to_step(self) -> Step:
        """The finished page."""
        if self.needs_pods:
            return Step(incident=self.name, needs_pods=True)
        blocked = tuple(text[:BECAUSE_TEXT_MAX] for text in self.blocked[:BLOCKED_BY_MAX])
        self.record(blocked_by=blocked, blocked_by_text=blocked[0] if blocked else "")
        return Step(
            incident=self.name,
            status=self.status if self.status != self.incident.status else None,
            acts=tuple(self.acts),
            notes=tuple(self.notes),
            look_again_s=self.look_s,
        )
