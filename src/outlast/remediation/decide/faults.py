"""Which faults call for an answer, which one leads, and what proves that they are over.

Beside the agent's faults there are two that only the controller can see: an agent that fell silent and
a monitor that cannot tell. Both fail closed, and neither ever disrupts anything.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from outlast.model.cluster import Node
from outlast.model.health import Fault, FaultClass, NodeHealth, Scope, Subsystem, Verdict
from outlast.model.incident import EndResult, Incident, Result
from outlast.model.policy import RemediationPolicySpec, Rung
from outlast.remediation.decide.situation import Situation

AGENT_SILENT: Final = "agent/silent"
MONITOR_BLIND: Final = "monitor/unknown"
UNKNOWN_BLOCKS_AFTER: Final = timedelta(minutes=30)
"""A monitor that cannot tell for this long is a fault: longer than a driver upgrade or a slow boot takes."""

_WORST_FIRST: Final = {
    FaultClass.HARDWARE_GONE: 0,
    FaultClass.REBOOT_CURES: 1,
    FaultClass.RESET_CURES: 2,
    FaultClass.MONITOR_HUNG: 3,
    FaultClass.TRANSIENT: 4,
    FaultClass.APPLICATION: 5,
}


def is_ready(node: Node) -> bool:
    """Whether the kubelet says Ready."""
    ready = node.condition("Ready")
    return ready is not None and ready.status == "True"


def agent_is_fresh(situation: Situation, policy: RemediationPolicySpec) -> bool:
    """Whether what the agent last said is still worth acting on."""
    silent_s = situation.agent.silent_s
    return situation.agent.lease is not None and silent_s is not None and silent_s < policy.agent_silent_s


def lacks_evidence(situation: Situation, policy: RemediationPolicySpec) -> str:
    """Why what the agent last said may not move anybody now; empty when it may."""
    node, health = situation.node, situation.health
    if not agent_is_fresh(situation, policy):
        return "the agent is silent, so its evidence is not current"
    if node is None or health is None or not _same_boot(node, health):
        return "the agent's last word is about another boot of the machine, so its evidence is not current"
    return ""


def actionable(situation: Situation, policy: RemediationPolicySpec, now: datetime) -> tuple[Fault, ...]:
    """The faults that stand now and that a node answers for, worst first; application faults are not its."""
    health = situation.health
    stated = health.status.faults if health is not None and not _is_of_another_node(situation) else ()
    faults = [fault for fault in stated if fault.fault_class is not FaultClass.APPLICATION]
    faults.extend(_own_findings(situation, policy, now))
    return tuple(sorted(faults, key=worst_first))


def worst_first(fault: Fault) -> tuple[int, datetime]:
    """Sorting key: the worst class, then the oldest."""
    return _WORST_FIRST[fault.fault_class], fault.opened_at


def blind_for_s(situation: Situation, now: datetime) -> float | None:
    """How long the node's checks have not been able to tell; None while they can, or say what is wrong."""
    status = situation.health.status if situation.health is not None else None
    monitor = status.verdict(Subsystem.MONITOR) if status is not None else None
    if monitor is None or monitor.verdict is not Verdict.UNKNOWN or monitor.since is None:
        return None
    return (now - monitor.since).total_seconds()


def _own_findings(situation: Situation, policy: RemediationPolicySpec, now: datetime) -> list[Fault]:
    node, silent_s = situation.node, situation.agent.silent_s
    if node is None or not is_ready(node) or situation.health is None or _is_of_another_node(situation):
        return []
    if silent_s is not None and silent_s >= policy.agent_silent_s:
        lease = situation.agent.lease
        last_word = lease.spec.renew_time if lease is not None else None
        since = last_word or now - timedelta(seconds=silent_s)
        text = f"the agent on this Ready node has said nothing for more than {policy.agent_silent_s} s"
        return [_finding(AGENT_SILENT, text, since, "the agent renews its Lease")]
    monitor = situation.health.status.verdict(Subsystem.MONITOR)
    known = any(f.subsystem is Subsystem.MONITOR for f in situation.health.status.faults)
    if monitor is None or monitor.verdict is Verdict.HEALTHY or known or monitor.since is None:
        return []
    if monitor.verdict is Verdict.FAULTY or now - monitor.since >= UNKNOWN_BLOCKS_AFTER:
        text = f"the node's checks cannot tell whether it is healthy: {monitor.message or monitor.reason}"
        return [_finding(MONITOR_BLIND, text[:1024], monitor.since, "a completed check")]
    return []


def _finding(code: str, summary: str, since: datetime, clears_by: str) -> Fault:
    return Fault(
        id=code,
        code=code,
        fault_class=FaultClass.MONITOR_HUNG,
        subsystem=Subsystem.MONITOR,
        scope=Scope.NODE,
        summary=summary,
        opened_at=since,
        last_seen_at=since,
        clears_by=clears_by,
    )


def without_cancelled(faults: tuple[Fault, ...], past: tuple[Incident, ...]) -> tuple[Fault, ...]:
    """Drop what a human has said to live with: faults that stood when their incident was cancelled.

    A fault that the cancelled record names with the very time of its opening is accepted however the
    node's clock stands to ours; one of the same id that opened later is a new one.
    """
    accepted: dict[str, datetime] = {}
    named: set[tuple[str, datetime]] = set()
    for incident in past:
        end = incident.status.end
        if end is not None and end.result is EndResult.CANCELLED_BY_HUMAN:
            for fault in (*incident.spec.faults, *incident.status.faults):
                accepted[fault.id] = max(end.at, accepted.get(fault.id, end.at))
                named.add((fault.id, fault.opened_at))
    return tuple(
        f
        for f in faults
        if (f.id, f.opened_at) not in named and (f.id not in accepted or f.opened_at > accepted[f.id])
    )


def still_binding(past: tuple[Incident, ...], standing: frozenset[str], cures_max: int) -> frozenset[str]:
    """Names of closed incidents that decisions still rest on, of `past`, newest first.

    The newest cancel of each fault that stands (`standing`: ids) says that a human lives with it; a cure
    by reboot says that the same fault must not be cured so again, at most `cures_max` of those.
    """
    standing = standing | {AGENT_SILENT, MONITOR_BLIND}
    names: set[str] = set()
    accepted: set[str] = set()
    cures = 0
    for incident in past:
        end = incident.status.end
        if end is None:
            continue
        if end.result is EndResult.CANCELLED_BY_HUMAN:
            spoken = {f.id for f in (*incident.spec.faults, *incident.status.faults)} & standing
            if spoken - accepted:
                names.add(incident.metadata.name)
                accepted |= spoken
        elif _cured_by_reboot(incident) and cures < cures_max:
            names.add(incident.metadata.name)
            cures += 1
    return frozenset(names)


def _cured_by_reboot(incident: Incident) -> bool:
    end = incident.status.end
    return (
        end is not None
        and end.result is EndResult.RETURNED
        and any(
            a.rung is Rung.REBOOT and a.outcome is not None and a.outcome.result is Result.SUCCEEDED
            for a in incident.status.attempts
        )
    )


def same_fault(one: Fault, other: Fault) -> bool:
    """Whether two faults are one trouble coming back: same code on the same device."""
    if one.code != other.code:
        return False
    mine, theirs = one.gpu, other.gpu
    if mine is None or theirs is None:
        return mine is theirs and one.device == other.device
    if mine.serial and theirs.serial:
        return mine.serial == theirs.serial
    return mine.pci_address == theirs.pci_address


def repeats_after_reboot(
    fault: Fault, past: tuple[Incident, ...], policy: RemediationPolicySpec, now: datetime
) -> Incident | None:
    """The incident within the repeat window that cured this very fault by a reboot, where there is one."""
    window = timedelta(seconds=policy.repeat_window_s)
    for incident in past:
        end = incident.status.end
        if end is None or now - end.at > window or not _cured_by_reboot(incident):
            continue
        seen = (*incident.spec.faults, *incident.status.faults)
        if any(same_fault(fault, before) for before in seen):
            return incident
    return None


def lacks_proof(situation: Situation, policy: RemediationPolicySpec, faults: tuple[Fault, ...]) -> str:
    """Why the node is not yet proven healthy after these faults; empty when it is."""
    node, health = situation.node, situation.health
    if node is None:
        return "the node is not there"
    if not is_ready(node):
        return "the node is not Ready"
    if health is None or health.status.checked_at is None:
        return "no completed check in this boot"
    if not _same_boot(node, health):
        return "the last completed check is of an earlier boot"
    if not agent_is_fresh(situation, policy):
        return "the agent is silent"
    if not situation.agent.moving:
        return "the agent was not seen alive since this controller began to watch"
    wanted = {fault.subsystem for fault in faults} | {Subsystem.MONITOR}
    for subsystem in sorted(wanted):
        verdict = health.status.verdict(subsystem)
        if verdict is None or verdict.verdict is not Verdict.HEALTHY:
            return f"{subsystem} is {verdict.verdict if verdict else 'not judged yet'}"
    return ""


def _is_of_another_node(situation: Situation) -> bool:
    """Whether the health object was left behind by an earlier Node of this name, perhaps another machine."""
    node, health = situation.node, situation.health
    if node is None or health is None or not health.status.node_uid:
        return False
    return health.status.node_uid != node.metadata.uid


def _same_boot(node: Node, health: NodeHealth) -> bool:
    if health.status.node_uid and health.status.node_uid != node.metadata.uid:
        return False
    return health.status.boot_id == node.status.node_info.boot_id


def raised(fault: Fault, repeat: Incident | None) -> Fault:
    """The fault with the class that its history earns: a reboot that did not last is gone hardware."""
    if repeat is None or fault.fault_class not in (FaultClass.REBOOT_CURES, FaultClass.RESET_CURES):
        return fault
    return msgspec.structs.replace(fault, fault_class=FaultClass.HARDWARE_GONE)
