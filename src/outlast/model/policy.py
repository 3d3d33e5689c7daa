"""What may be done: ladders per fault class, budgets, deadlines. The RemediationPolicy object.

A policy is data. `Observe` is the default: everything is judged, decided and explained, and nothing
but our own objects is written. Every number here is a limit that the user can see and change.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from outlast.model.cluster import Condition, Kind, KubernetesObject, Resource
from outlast.model.health import FaultClass
from outlast.model.names import API_VERSION

AtLeastZero = Annotated[int, Meta(ge=0)]
Seconds = Annotated[int, Meta(ge=0, le=7 * 24 * 3600)]


class Mode(StrEnum):
    """Observe writes only our own objects; Enforce acts."""

    OBSERVE = "Observe"
    ENFORCE = "Enforce"


class Rung(StrEnum):
    """The steps, mildest first; comparison is by this order."""

    WATCH = "Watch"
    BLOCK_NEW_WORK = "BlockNewWork"
    REQUEST_CHECKPOINT = "RequestCheckpoint"
    DRAIN = "Drain"
    END_JOB = "EndJob"
    RESET_GPU = "ResetGPU"
    REBOOT = "Reboot"
    REPLACE = "Replace"
    HOLD = "Hold"

    @property
    def height(self) -> int:
        """Position on the ladder; higher disrupts more."""
        return _HEIGHTS[self]


_HEIGHTS = {rung: height for height, rung in enumerate(Rung)}


class Ladder(Resource, frozen=True, kw_only=True):
    """The path of one fault class: these rungs in this order, each at most `tries` times."""

    fault_class: Annotated[FaultClass, Meta(description="Which faults take this path")] = msgspec.field(
        name="class"
    )
    rungs: Annotated[tuple[Rung, ...], Meta(min_length=1, max_length=9, description="In this order")]


class Deadlines(Resource, frozen=True, kw_only=True):
    """How long each step may take before the next one is taken instead."""

    checkpoint_s: Annotated[Seconds, Meta(description="Wait for a requested checkpoint")] = msgspec.field(
        name="checkpointSeconds", default=300
    )
    drain_s: Annotated[Seconds, Meta(description="Wait for evictions, PodDisruptionBudgets included")] = (
        msgspec.field(name="drainSeconds", default=600)
    )
    reboot_s: Annotated[Seconds, Meta(description="From the repair Job to a new boot id and Ready")] = (
        msgspec.field(name="rebootSeconds", default=1200)
    )
    verify_s: Annotated[Seconds, Meta(description="From the new boot id to a completed, clean check")] = (
        msgspec.field(name="verifySeconds", default=600)
    )
    replace_s: Annotated[Seconds, Meta(description="From the hand-over to the node being gone")] = (
        msgspec.field(name="replaceSeconds", default=1800)
    )


class AfterDrainDeadline(StrEnum):
    """The end state of a drain that could not finish in time."""

    HOLD = "Hold"
    PROCEED = "Proceed"


class Budgets(Resource, frozen=True, kw_only=True):
    """Limits on disruption. Nodes that others cordoned or that are NotReady count as unavailable."""

    max_unavailable: Annotated[
        AtLeastZero | None, Meta(description="Most nodes of this policy out of service at once")
    ] = None
    max_unavailable_percent: Annotated[
        int, Meta(ge=0, le=100, description="The same in percent of the policy's nodes; at least one node")
    ] = 10
    max_repairs_in_flight: Annotated[
        int, Meta(ge=0, description="Most drains, resets, reboots and replacements at once")
    ] = 5
    max_repairs_per_hour: Annotated[int, Meta(ge=0, description="Most repairs begun in any hour")] = 20
    failure_domain_label: Annotated[
        str, Meta(max_length=316, description="Node label that names a rack, zone or NVLink domain")
    ] = "topology.kubernetes.io/zone"
    max_repairs_per_domain: Annotated[
        AtLeastZero | None, Meta(description="Most repairs in flight in one failure domain")
    ] = None


class Storm(Resource, frozen=True, kw_only=True):
    """Many nodes newly bad with one code: stop disrupting, keep blocking, call a human."""

    nodes: Annotated[int, Meta(ge=2, description="This many nodes newly faulty with one code ...")] = 5
    window_s: Annotated[Seconds, Meta(description="... within this time is a storm")] = msgspec.field(
        name="windowSeconds", default=600
    )


class ReplaceWith(StrEnum):
    """Who replaces a machine."""

    KARPENTER_HANDOVER = "karpenter-handover"
    NONE = "none"


class RemediationPolicySpec(Resource, frozen=True, kw_only=True):
    """What a human decided."""

    node_selector: Annotated[
        dict[str, str], Meta(description="Labels a node must have; empty selects every node with GPUs")
    ] = {}
    priority: Annotated[int, Meta(description="The highest policy that selects a node rules it")] = 0
    mode: Annotated[Mode, Meta(description="Observe decides and explains, Enforce acts")] = Mode.OBSERVE
    ladders: Annotated[
        tuple[Ladder, ...], Meta(max_length=6, description="Paths that differ from the defaults")
    ] = ()
    deadlines: Annotated[Deadlines, Meta(description="How long each step may take")] = Deadlines()
    after_drain_deadline: Annotated[
        AfterDrainDeadline, Meta(description="Hold for a human, or go on with pods still there")
    ] = AfterDrainDeadline.HOLD
    budgets: Annotated[Budgets, Meta(description="Limits on disruption")] = Budgets()
    storm: Annotated[Storm, Meta(description="When to stop disrupting altogether")] = Storm()
    reboot_tries: Annotated[int, Meta(ge=0, le=5, description="Reboots in one incident")] = 1
    repeat_window_s: Annotated[
        Seconds, Meta(description="The same fault again within this time enters one rung higher")
    ] = msgspec.field(name="repeatWindowSeconds", default=24 * 3600)
    probation_s: Annotated[
        Seconds, Meta(description="A returned node is watched this long before its incident closes")
    ] = msgspec.field(name="probationSeconds", default=0)
    replace_with: Annotated[ReplaceWith, Meta(description="Who replaces a machine; none holds it")] = (
        ReplaceWith.KARPENTER_HANDOVER
    )
    backdate_handover: Annotated[
        bool,
        Meta(description="Publish the hand-over with the fault's own time, so Karpenter acts at once"),
    ] = False
    agent_silent_s: Annotated[
        Seconds, Meta(description="A Ready node whose agent Lease is older than this is blocked")
    ] = msgspec.field(name="agentSilentSeconds", default=180)


class RemediationPolicyStatus(Resource, frozen=True, kw_only=True):
    """What the controller made of it."""

    observed_generation: Annotated[int, Meta(description="The spec generation in force")] = 0
    nodes: Annotated[int, Meta(description="Nodes it rules")] = 0
    unavailable: Annotated[int, Meta(description="Of them out of service now, whoever took them out")] = 0
    conditions: Annotated[tuple[Condition, ...], Meta(max_length=8, description="Accepted, Storm")] = ()
    in_force: Annotated[
        RemediationPolicySpec | None,
        Meta(description="The last spec that was accepted; it rules while a newer one is not"),
    ] = None


class RemediationPolicy(KubernetesObject, frozen=True, kw_only=True):
    """What may be done to which nodes."""

    spec: RemediationPolicySpec = RemediationPolicySpec()
    status: RemediationPolicyStatus = RemediationPolicyStatus()


REMEDIATION_POLICIES = Kind(API_VERSION, "RemediationPolicy", "remediationpolicies", False, RemediationPolicy)
