"""The explain page as data: what, why, what next, how to overrule.

One pure function builds it (`explain.explain`); terminal, web and JSON only lay it out, so all of them
tell the same story. Texts are finished sentences or phrases; only the lay-out is left to the reader.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec


class State(StrEnum):
    """The seven words people see for a node."""

    HEALTHY = "healthy"
    WATCHED = "watched"
    """Back in service, on probation; or sick and only observed."""
    BLOCKED = "blocked"
    DRAINING = "draining"
    REPAIRING = "repairing"
    ON_HOLD = "on hold"
    UNKNOWN = "unknown"


class Line(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One line of a section: a time where it has one, a short head, the sentence, a remark to its right."""

    head: str
    text: str = ""
    at: datetime | None = None
    remark: str = ""
    """A short aside: the delay after detection, or "confirms"."""
    bad: bool = False
    """The line names a failure; layouts may mark it, and must not mark it by colour alone."""


class Milestone(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A span of the story, for a timeline drawn to scale."""

    name: str
    started_at: datetime
    ended_at: datetime | None = None
    """Absent while it runs."""
    failed: bool = False


class ExplainPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything an engineer needs at 3 a.m., in reading order."""

    node: str
    state: State
    in_service: bool
    """Whether the scheduler may place new work on the node."""
    headline: str
    """Such as "OUT OF SERVICE, draining (step 3 of 5)"."""
    incident: str = ""
    """Name of the incident; empty where there is none."""
    opened_at: datetime | None = None
    ended_at: datetime | None = None
    observe_only: bool = False
    policy: str = ""
    happened: tuple[Line, ...] = ()
    did: tuple[Line, ...] = ()
    why: tuple[Line, ...] = ()
    blocked_by: tuple[Line, ...] = ()
    next: tuple[Line, ...] = ()
    overrule: tuple[str, ...] = ()
    """Commands that change the outcome, ready to paste."""
    pods: tuple[Line, ...] = ()
    """Pods on the node that are still to be moved, with what holds each back."""
    timeline: tuple[Milestone, ...] = ()
