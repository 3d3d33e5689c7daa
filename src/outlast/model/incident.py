"""What is being done about a node: the Incident object, one out-of-service story from block to end.

Everything that acts is recorded here first: an attempt's intent is written before the act, its outcome
once, after it. The schema carries those rules, so the API server enforces them. `status.epoch` grows with
every intent and never falls; it names attempts and Jobs, which is what makes an act happen once.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from outlast.model.cluster import Kind, KubernetesObject, Resource
from outlast.model.health import FAULTS_MAX, Fault, LongText, ShortText
from outlast.model.names import API_VERSION
from outlast.model.policy import Rung

ATTEMPTS_MAX: Final = 32
DECISIONS_MAX: Final = 32
BECAUSE_MAX: Final = 8
BECAUSE_TEXT_MAX: Final = 512
BLOCKED_BY_MAX: Final = 8

BecauseText = Annotated[str, Meta(max_length=BECAUSE_TEXT_MAX)]


class Phase(StrEnum):
    """Where the story stands; the words people see are in docs and on every page."""

    WAITING = "Waiting"
    """Nothing was done to the node yet: the policy only observes, or a limit holds the block back."""
    BLOCKED = "Blocked"
    """No new work; waiting for the next step, or for the fault to clear."""
    CHECKPOINTING = "Checkpointing"
    DRAINING = "Draining"
    REPAIRING = "Repairing"
    VERIFYING = "Verifying"
    WATCHED = "Watched"
    """Back in service, on probation."""
    ON_HOLD = "OnHold"
    """Needs a human; `blockedBy` says why."""
    CLOSED = "Closed"


class Result(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TIMED_OUT = "TimedOut"
    CANCELLED = "Cancelled"
    NEVER_RAN = "NeverRan"
    """The machine answers, and the repair pod still never started there: says nothing about the machine."""


class EndResult(StrEnum):
    """How an incident ended."""

    RETURNED = "Returned"
    """The node is proven healthy and back in service."""
    REPLACED = "Replaced"
    """The node was replaced, or is gone."""
    CANCELLED_BY_HUMAN = "CancelledByHuman"
    NOT_NEEDED = "NotNeeded"
    """The fault cleared by proof before anything disruptive was done."""


class MachineIdentity(Resource, frozen=True, kw_only=True):
    """Which machine a node is, beyond its name."""

    provider_id: Annotated[ShortText, Meta(description="spec.providerID of the Node")] = msgspec.field(
        name="providerID", default=""
    )
    system_uuid: Annotated[ShortText, Meta(description="SMBIOS UUID as the kubelet gives it")] = (
        msgspec.field(name="systemUUID", default="")
    )


class Outcome(Resource, frozen=True, kw_only=True):
    """What came of an attempt; written once."""

    at: Annotated[datetime, Meta(description="When it was known")]
    result: Annotated[Result, Meta(description="How it ended")]
    message: Annotated[LongText, Meta(description="One sentence for people")] = ""


class Attempt(Resource, frozen=True, kw_only=True):
    """One rung taken: the intent (immutable) and, later, its outcome (write-once)."""

    id: Annotated[ShortText, Meta(description="Key of this list: epoch and rung")]
    rung: Annotated[Rung, Meta(description="The step")]
    started_at: Annotated[datetime, Meta(description="When the intent was written")]
    deadline_at: Annotated[datetime | None, Meta(description="When the next step is taken instead")] = None
    reason: Annotated[ShortText, Meta(description="PascalCase reason")] = ""
    because: Annotated[
        tuple[BecauseText, ...], Meta(max_length=BECAUSE_MAX, description="What it rests on")
    ] = ()
    boot_id: Annotated[ShortText, Meta(description="Boot of the machine before the act")] = msgspec.field(
        name="bootID", default=""
    )
    job_name: Annotated[ShortText, Meta(description="Repair Job that carries it out")] = ""
    outcome: Annotated[Outcome | None, Meta(description="Written once, after the act")] = None


class DecisionRecord(Resource, frozen=True, kw_only=True):
    """One decision, with why; also those that chose to wait."""

    at: Annotated[datetime, Meta(description="When it was first taken")]
    rung: Annotated[Rung, Meta(description="The step it is about")]
    reason: Annotated[ShortText, Meta(description="PascalCase reason")]
    message: Annotated[LongText, Meta(description="One sentence for people")] = ""


class NextStep(Resource, frozen=True, kw_only=True):
    """What happens next if nothing changes."""

    rung: Annotated[Rung, Meta(description="The step")]
    at: Annotated[datetime | None, Meta(description="At the latest; absent when it waits for a human")] = None
    message: Annotated[LongText, Meta(description="One sentence for people")] = ""


class Timings(Resource, frozen=True, kw_only=True):
    """Wall times of the milestones; durations are differences of these, for people and reports."""

    detected_at: Annotated[datetime | None, Meta(description="First evidence of the leading fault")] = None
    blocked_at: Annotated[datetime | None, Meta(description="No new work from here")] = None
    checkpoint_requested_at: Annotated[datetime | None, Meta(description="Jobs were asked to checkpoint")] = (
        None
    )
    checkpoint_done_at: Annotated[
        datetime | None, Meta(description="The checkpoints are durable, or the wait is over")
    ] = None
    drain_started_at: Annotated[datetime | None, Meta(description="First eviction")] = None
    drained_at: Annotated[datetime | None, Meta(description="No pod is left to move")] = None
    acted_at: Annotated[datetime | None, Meta(description="The newest repair was started")] = None
    came_back_at: Annotated[datetime | None, Meta(description="The machine runs a new boot")] = None
    verified_at: Annotated[datetime | None, Meta(description="A completed check of that boot is clean")] = (
        None
    )
    returned_at: Annotated[datetime | None, Meta(description="Back in service")] = None


class End(Resource, frozen=True, kw_only=True):
    """The end of the story."""

    at: Annotated[datetime, Meta(description="When")]
    result: Annotated[EndResult, Meta(description="How")]
    message: Annotated[LongText, Meta(description="One sentence for people")] = ""


class IncidentSpec(Resource, frozen=True, kw_only=True):
    """Identity and opening; never changes."""

    node_name: Annotated[str, Meta(max_length=253, description="The node")]
    node_uid: Annotated[ShortText, Meta(description="uid of the Node object at opening")] = msgspec.field(
        name="nodeUID"
    )
    opened_at: Annotated[datetime, Meta(description="When the node was taken out")]
    machine: Annotated[MachineIdentity, Meta(description="Which machine it is")] = MachineIdentity()
    boot_id: Annotated[ShortText, Meta(description="Boot of the machine at opening")] = msgspec.field(
        name="bootID", default=""
    )
    policy: Annotated[ShortText, Meta(description="The RemediationPolicy in force at opening")] = ""
    observe_only: Annotated[bool, Meta(description="Opened under Observe: decided, explained, not done")] = (
        False
    )
    faults: Annotated[
        tuple[Fault, ...], Meta(max_length=FAULTS_MAX, description="The faults that opened it")
    ] = ()


class IncidentStatus(Resource, frozen=True, kw_only=True):
    """The story so far."""

    epoch: Annotated[int, Meta(ge=0, description="Grows with each intent; never falls")] = 0
    phase: Annotated[Phase, Meta(description="Where it stands")] = Phase.BLOCKED
    step: Annotated[Rung, Meta(description="The rung it stands on")] = Rung.BLOCK_NEW_WORK
    fault: Annotated[ShortText, Meta(description="Code of the fault that leads, for kubectl")] = ""
    faults: Annotated[
        tuple[Fault, ...], Meta(max_length=FAULTS_MAX, description="Union of faults seen during it")
    ] = ()
    attempts: Annotated[
        tuple[Attempt, ...], Meta(max_length=ATTEMPTS_MAX, description="Every rung taken")
    ] = ()
    attempts_dropped: Annotated[int, Meta(ge=0, description="Older attempts moved to history")] = 0
    decisions: Annotated[
        tuple[DecisionRecord, ...], Meta(max_length=DECISIONS_MAX, description="Newest last")
    ] = ()
    blocked_by: Annotated[
        tuple[BecauseText, ...], Meta(max_length=BLOCKED_BY_MAX, description="Limits that hold it back now")
    ] = ()
    blocked_by_text: Annotated[LongText, Meta(description="The first of blockedBy, for kubectl")] = ""
    next: Annotated[NextStep | None, Meta(description="What happens next if nothing changes")] = None
    timings: Annotated[Timings, Meta(description="Milestones")] = Timings()
    pods_total: Annotated[int, Meta(ge=0, description="Pods to move when the drain began")] = 0
    pods_left: Annotated[int, Meta(ge=0, description="Pods still to move")] = 0
    end: Annotated[End | None, Meta(description="The end; absent while it runs")] = None

    @property
    def open_attempt(self) -> Attempt | None:
        """The attempt whose outcome is not known yet; there is at most one."""
        return next((a for a in reversed(self.attempts) if a.outcome is None), None)


class Incident(KubernetesObject, frozen=True, kw_only=True):
    """One out-of-service story of one node."""

    spec: IncidentSpec
    status: IncidentStatus = IncidentStatus()


INCIDENTS = Kind(API_VERSION, "Incident", "incidents", False, Incident)
