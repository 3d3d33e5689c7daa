"""The first look at a sick node: which incident to open, and whether the node may be blocked at once.

The block comes before the object that records it: its annotation holds the intent, and the incident's
name is derived from node and fault, so a crash between the two heals by looking at the node.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

from outlast.model.cluster import Node
from outlast.model.decision import (
    NODE_NAME_MAX,
    Act,
    Block,
    Cordon,
    Note,
    Release,
    Step,
    TakeBack,
    cordon_of,
)
from outlast.model.health import FAULTS_MAX, Fault, FaultState
from outlast.model.incident import IncidentSpec, MachineIdentity
from outlast.model.names import (
    ACCELERATED_HARDWARE_READY,
    DO_NOT_DISRUPT_ANNOTATION,
    HOLD_ANNOTATION,
    MANAGED_ANNOTATION,
)
from outlast.model.policy import Mode, RemediationPolicySpec
from outlast.remediation.decide.budgets import refuses_block
from outlast.remediation.decide.faults import (
    UNKNOWN_BLOCKS_AFTER,
    actionable,
    blind_for_s,
    is_ready,
    raised,
    repeats_after_reboot,
    without_cancelled,
    worst_first,
)
from outlast.remediation.decide.ladder import executable, ladder_for
from outlast.remediation.decide.situation import FleetView, RulingPolicy, Situation

HANDOVER_REASON = "OutlastReplace"
TAKEN_BACK_REASON = "OutlastReturned"
"""Our two reasons on AcceleratedHardwareReady; any other reason is somebody else's condition."""
POLICY_NAME_MAX = 128
"""Of a policy's name in an incident."""
JOB_NAME_MAX = 63
"""A Job's name becomes a label value of its pods."""
LOOK_AT_SILENT_S = 60.0
"""Least time between two looks at a node whose agent stays silent."""


def machine_of(node: Node) -> MachineIdentity:
    """Which machine stands behind a Node object."""
    return MachineIdentity(
        provider_id=node.spec.provider_id[:128], system_uuid=node.status.node_info.system_uuid[:128]
    )


def same_machine(one: MachineIdentity, other: MachineIdentity) -> bool:
    """Whether two identities surely mean one machine."""
    if one.provider_id and other.provider_id:
        return one.provider_id == other.provider_id
    return bool(one.system_uuid) and one.system_uuid == other.system_uuid


def incident_name(node: Node, fault: Fault | None, *, observed: bool, taken: frozenset[str]) -> str:
    """A name that follows from node, fault and its opening, so that finding it again needs no memory."""
    opening = (fault.id, fault.opened_at.isoformat()) if fault is not None else ("none", "")
    seed = "\n".join((node.metadata.uid, *opening, "observed" if observed else "enforced"))
    base = f"{node.metadata.name[:NODE_NAME_MAX]}-{hashlib.sha256(seed.encode()).hexdigest()[:8]}"
    name, again = base, 1
    while name in taken:
        again += 1
        name = f"{base}-{again}"
    return name


def repair_job_name(incident: str, epoch: int) -> str:
    """The name that makes the repair Job of an intent unique: a DNS label of at most 63 characters."""
    plain = f"outlast-{incident}-{epoch}".replace(".", "-")
    if len(plain) <= JOB_NAME_MAX:
        return plain
    digest = hashlib.sha256(incident.encode()).hexdigest()[:12]
    kept = plain[: JOB_NAME_MAX - len(digest) - len(str(epoch)) - 2].rstrip("-")
    return f"{kept}-{digest}-{epoch}"


def standing_faults(situation: Situation, policy: RemediationPolicySpec, now: datetime) -> tuple[Fault, ...]:
    """Faults that call for an answer under this policy, with the class their history earns.

    What stands now comes before what only waits for its proof, then the worst, then the oldest.
    """
    faults = without_cancelled(actionable(situation, policy, now), situation.past)
    wanted = [f for f in faults if executable(ladder_for(f.fault_class, policy))]
    earned = [raised(f, repeats_after_reboot(f, situation.past, policy, now)) for f in wanted]
    return tuple(sorted(earned, key=lambda f: (f.state is not FaultState.OPEN, *worst_first(f))))


def hands_off(node: Node) -> str:
    """The human's word that forbids touching this node; empty where there is none."""
    reason = node.metadata.annotations.get(HOLD_ANNOTATION)
    if reason is not None:
        return f"{HOLD_ANNOTATION}: {reason or 'no reason given'}"
    if is_unmanaged(node):
        return f"{MANAGED_ANNOTATION}=false"
    return ""


def is_unmanaged(node: Node) -> bool:
    """Whether a human told us to watch this node and do nothing."""
    return node.metadata.annotations.get(MANAGED_ANNOTATION) == "false"


def is_unavailable(node: Node) -> bool:
    """Whether the scheduler or the kubelet has taken the node out of service already."""
    return node.spec.unschedulable or not is_ready(node)


def may_block(node: Node, ruling: RulingPolicy, fleet: FleetView) -> str:
    """The limit that forbids blocking this node now; empty when it may be blocked."""
    if ruling.spec.mode is Mode.OBSERVE:
        return f"policy {ruling.name} is in mode Observe"
    forbidden = hands_off(node)
    if forbidden:
        return forbidden
    return "" if is_unavailable(node) else refuses_block(ruling.spec.budgets, fleet)


def block_act(node: Node, incident: str, epoch: int, fault: Fault, now: datetime) -> Block:
    """The block of a node for a fault, with the intent that travels in it."""
    cordon = Cordon(
        incident=incident,
        node_uid=node.metadata.uid,
        epoch=epoch,
        fault_class=fault.fault_class,
        reason=fault.code,
        since=now,
        prior_do_not_disrupt=node.metadata.annotations.get(DO_NOT_DISRUPT_ANNOTATION),
    )
    return Block(node=node.metadata.name, node_uid=node.metadata.uid, cordon=cordon)


def open_incident(situation: Situation, ruling: RulingPolicy, fleet: FleetView, now: datetime) -> Step:
    """The step for a node without an open incident: usually nothing."""
    node = situation.node
    if node is None:
        return Step()
    taken = frozenset(incident.metadata.name for incident in situation.past)
    if has_stray_hand_over(node):
        # A crash left it, or its incident was deleted: nobody wants the machine replaced any more.
        text = "no open incident asks for a replacement any more"
        uid = node.metadata.uid
        return Step(acts=(TakeBack(node=node.metadata.name, node_uid=uid, message=text, since=now),))
    cordon = cordon_of(node)
    if cordon is not None and cordon.incident in taken:
        release = Release(node=node.metadata.name, node_uid=node.metadata.uid, incident=cordon.incident)
        return Step(incident=cordon.incident, acts=(release,))
    faults = standing_faults(situation, ruling.spec, now)
    if cordon is not None:
        spec = _spec(node, ruling, faults, cordon.since, observed=False)
        # The block came first and its look said nothing of an incident, so that is told here.
        notes = (_opening_note(faults[0], cordon.incident, observed=False),) if faults else ()
        return Step(incident=cordon.incident, open=spec, notes=notes)
    if not faults:
        return Step()
    observed = ruling.spec.mode is Mode.OBSERVE or is_unmanaged(node)
    name = incident_name(node, faults[0], observed=observed, taken=taken)
    acts: list[Act] = []
    if not observed and not node.spec.unschedulable and not may_block(node, ruling, fleet):
        acts.append(block_act(node, name, 1, faults[0], now))
    spec = _spec(node, ruling, faults, now, observed=observed)
    note = _opening_note(faults[0], name, observed=observed)
    return Step(incident=name, open=spec, acts=tuple(acts), notes=(note,))


def _opening_note(fault: Fault, incident: str, *, observed: bool) -> Note:
    return Note(
        reason="FaultObserved" if observed else "IncidentOpened",
        message=f"{fault.summary} ({fault.code}); incident {incident}",
        warning=True,
    )


def has_stray_hand_over(node: Node) -> bool:
    """Whether the node carries a hand-over of ours."""
    condition = node.condition(ACCELERATED_HARDWARE_READY)
    return condition is not None and (condition.status, condition.reason) == ("False", HANDOVER_REASON)


def _spec(
    node: Node, ruling: RulingPolicy, faults: tuple[Fault, ...], now: datetime, *, observed: bool
) -> IncidentSpec:
    return IncidentSpec(
        node_name=node.metadata.name,
        node_uid=node.metadata.uid,
        opened_at=now,
        machine=machine_of(node),
        boot_id=node.status.node_info.boot_id,
        policy=ruling.name[:POLICY_NAME_MAX],
        observe_only=observed,
        faults=faults[:FAULTS_MAX],
    )


def wake_time_s(situation: Situation, policy: RemediationPolicySpec, now: datetime) -> float | None:
    """When time alone would turn a quiet node into a sick one: its agent silent, or its checks blind."""
    silent_s, node = situation.agent.silent_s, situation.node
    if node is None or not is_ready(node):
        return None
    left = [] if silent_s is None else [policy.agent_silent_s - silent_s]
    blind_s = blind_for_s(situation, now)
    if blind_s is not None:
        left.append(UNKNOWN_BLOCKS_AFTER.total_seconds() - blind_s)
    # What is over already wakes nobody; a Lease or a verdict that moves does, or the next silence.
    ahead = [seconds for seconds in left if seconds > 0]
    if ahead:
        return max(1.0, min(ahead))
    return max(LOOK_AT_SILENT_S, policy.agent_silent_s) if left else None
