"""The invariants of remediation, checked on the store after each step of a simulation.

Each returns the violations it finds, in words. They look at objects and at the truth of the simulated
machines, never at the controller, so they cannot share its mistakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from outlast.model.cluster import NODES, Node
from outlast.model.decision import cordon_of
from outlast.model.health import FaultClass
from outlast.model.incident import INCIDENTS, Incident, Phase
from outlast.model.policy import RemediationPolicySpec, Rung
from outlast.sim.apiserver import Store

REPAIRING: Final = frozenset({Phase.CHECKPOINTING, Phase.DRAINING, Phase.REPAIRING, Phase.VERIFYING})
DISRUPTIVE: Final = frozenset({Rung.REQUEST_CHECKPOINT, Rung.DRAIN, Rung.REBOOT, Rung.REPLACE})


@dataclass(slots=True)
class Scene:
    """What one moment looks like."""

    nodes: dict[str, Node]
    incidents: list[Incident]
    policy: RemediationPolicySpec
    reboots: dict[str, int] = field(default_factory=dict)
    """Machine -> reboots that really happened."""
    evicted: list[str] = field(default_factory=list)
    """uids of pods that really ended."""
    foreign_cordons: frozenset[str] = frozenset()
    """Nodes that a human cordoned and nobody gave back."""


def scene_of(store: Store, policy: RemediationPolicySpec) -> Scene:
    """Read a store."""
    nodes = [msgspec.json.decode(entry.raw, type=Node) for entry in store.entries(NODES)]
    incidents = [msgspec.json.decode(entry.raw, type=Incident) for entry in store.entries(INCIDENTS)]
    return Scene({node.metadata.name: node for node in nodes}, incidents, policy)


def budgets_hold(scene: Scene) -> Iterable[str]:
    """Never more nodes blocked by us, or repairs under way, than the policy allows."""
    budgets, total = scene.policy.budgets, len(scene.nodes)
    percent = budgets.max_unavailable_percent
    cap = max(1, total * percent // 100) if percent else 0
    if budgets.max_unavailable is not None:
        cap = min(cap, budgets.max_unavailable)
    ours = [name for name, node in scene.nodes.items() if cordon_of(node) and node.spec.unschedulable]
    if len(ours) > cap:
        yield f"{len(ours)} nodes are blocked, at most {cap} may be: {sorted(ours)}"
    repairing = [i.spec.node_name for i in scene.incidents if i.status.phase in REPAIRING]
    if len(repairing) > budgets.max_repairs_in_flight:
        most = budgets.max_repairs_in_flight
        yield f"{len(repairing)} repairs at once, at most {most}: {sorted(repairing)}"


def disruption_is_recorded(scene: Scene) -> Iterable[str]:
    """No machine rebooted more often than incidents say; each disruption has its reason on record."""
    recorded: Counter[str] = Counter()
    for incident in scene.incidents:
        for attempt in incident.status.attempts:
            recorded[incident.spec.node_name] += attempt.rung is Rung.REBOOT
            if attempt.rung in DISRUPTIVE and not attempt.because:
                yield f"{incident.metadata.name}: {attempt.id} does not say why"
    for name, count in scene.reboots.items():
        if count > recorded[name]:
            yield f"{name} rebooted {count} times, {recorded[name]} intents are on record"


def nothing_twice(scene: Scene) -> Iterable[str]:
    """Epochs name attempts uniquely, and at most one intent of an incident is open."""
    for incident in scene.incidents:
        ids = [attempt.id for attempt in incident.status.attempts]
        if len(set(ids)) != len(ids):
            yield f"{incident.metadata.name}: an attempt is recorded twice: {ids}"
        open_ = [a.id for a in incident.status.attempts if a.outcome is None]
        if len(open_) > 1:
            yield f"{incident.metadata.name}: {len(open_)} intents are open: {open_}"
    for uid, times in Counter(scene.evicted).items():
        if times > 1:
            yield f"pod {uid} ended {times} times"


def foreign_marks_stay(scene: Scene) -> Iterable[str]:
    """A human's cordon is never undone by us."""
    for name in scene.foreign_cordons:
        node = scene.nodes.get(name)
        if node is not None and not node.spec.unschedulable:
            yield f"{name}: somebody else's cordon was undone"


def unknown_never_drains(scene: Scene) -> Iterable[str]:
    """An incident that rests only on a hung or silent monitor disrupts nothing."""
    for incident in scene.incidents:
        faults = (*incident.spec.faults, *incident.status.faults)
        unknown = all(f.fault_class is FaultClass.MONITOR_HUNG and not f.second_witness for f in faults)
        disrupted = [a.id for a in incident.status.attempts if a.rung in DISRUPTIVE]
        if faults and unknown and disrupted:
            yield f"{incident.metadata.name}: {disrupted} on nothing but a monitor that cannot tell"


def observed_is_untouched(scene: Scene) -> Iterable[str]:
    """An incident that only observes has no attempts."""
    for incident in scene.incidents:
        if incident.spec.observe_only and incident.status.attempts:
            yield f"{incident.metadata.name}: observed, and yet {incident.status.attempts[0].id}"


def waiting_is_explained(scene: Scene) -> Iterable[str]:
    """What does not move says why, and what comes next: nothing is "in progress" for ever."""
    for incident in scene.incidents:
        status = incident.status
        if status.phase in (Phase.WAITING, Phase.ON_HOLD) and status.decisions and not status.blocked_by:
            yield f"{incident.metadata.name}: {status.phase} without a reason"
        if status.phase is Phase.CLOSED and status.end is None:
            yield f"{incident.metadata.name}: closed without an end"
        if status.phase in REPAIRING and status.open_attempt is None and not status.blocked_by:
            yield f"{incident.metadata.name}: {status.phase} without an open intent or a reason to wait"


def nothing_is_stranded(scene: Scene) -> Iterable[str]:
    """For the end of a simulation: no cordon of ours without an open incident, no open intent left."""
    open_names = {i.metadata.name for i in scene.incidents if i.status.phase is not Phase.CLOSED}
    for name, node in scene.nodes.items():
        cordon = cordon_of(node)
        if cordon is not None and cordon.incident not in open_names:
            yield f"{name}: cordoned by {cordon.incident}, which is not open"
    for incident in scene.incidents:
        if incident.status.phase is Phase.CLOSED and incident.status.open_attempt is not None:
            yield f"{incident.metadata.name}: closed with an open intent"


Checker = Callable[[Scene], Iterable[str]]
ALWAYS: Final[tuple[Checker, ...]] = (
    budgets_hold,
    disruption_is_recorded,
    nothing_twice,
    foreign_marks_stay,
    unknown_never_drains,
    observed_is_untouched,
    waiting_is_explained,
)
AT_THE_END: Final[tuple[Checker, ...]] = (nothing_is_stranded,)


def violations(scene: Scene, checkers: Iterable[Checker] = ALWAYS) -> list[str]:
    """Everything that is wrong with a moment."""
    return [f"{checker.__name__}: {text}" for checker in checkers for text in checker(scene)]
