"""Where a node stands, in the seven words people see.

The word is derived from the objects each time it is shown; nothing stores it. What a human or the
controller decided wins over what the agent sees: a draining node is draining, whatever its GPUs say.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.model.cluster import Node
from outlast.model.health import NodeHealth, Subsystem, Verdict
from outlast.model.incident import Incident, Phase
from outlast.model.names import CORDON_ANNOTATION, HOLD_ANNOTATION
from outlast.remediation.page import State

ORDER: Final = (
    State.ON_HOLD,
    State.DRAINING,
    State.REPAIRING,
    State.BLOCKED,
    State.UNKNOWN,
    State.WATCHED,
    State.HEALTHY,
)
"""The words in the order in which they ask for attention."""

_OUT_OF_SERVICE = frozenset({State.ON_HOLD, State.DRAINING, State.REPAIRING, State.BLOCKED})


def slug(state: State) -> str:
    """The word as it stands in addresses and class names."""
    return state.value.replace(" ", "-")


def in_service(state: State) -> bool:
    """Whether new work may come to a node in that state."""
    return state not in _OUT_OF_SERVICE


_OF_PHASE = {
    Phase.WAITING: State.WATCHED,
    Phase.BLOCKED: State.BLOCKED,
    Phase.CHECKPOINTING: State.DRAINING,
    Phase.DRAINING: State.DRAINING,
    Phase.REPAIRING: State.REPAIRING,
    Phase.VERIFYING: State.REPAIRING,
    Phase.WATCHED: State.WATCHED,
    Phase.ON_HOLD: State.ON_HOLD,
}


class Standing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node's word and the sentence behind it."""

    state: State
    because: str = ""


def standing(node: Node, health: NodeHealth | None, incident: Incident | None) -> Standing:
    """Judge where a node stands. `incident` is its open one, None when there is none."""
    hold = node.metadata.annotations.get(HOLD_ANNOTATION)
    if hold is not None:
        return Standing(state=State.ON_HOLD, because=f"held by a human: {hold}" if hold else "held")
    if incident is not None and incident.status.end is None:
        return in_incident(incident)
    if CORDON_ANNOTATION in node.metadata.annotations and node.spec.unschedulable:
        return Standing(state=State.BLOCKED, because=_first_fault(health) or "blocked by outlast")
    if node.spec.unschedulable:
        return Standing(state=State.BLOCKED, because="cordoned by somebody else")
    ready = node.condition("Ready")
    if ready is not None and ready.status != "True":
        return Standing(state=State.UNKNOWN, because=f"Ready is {ready.status}: {ready.reason}")
    return _by_health(health)


def in_incident(incident: Incident) -> Standing:
    """The incident's phase decides; under Observe nothing was done, so the node is only watched."""
    status = incident.status
    faults = status.faults or incident.spec.faults
    because = faults[0].summary if faults else status.fault
    if incident.spec.observe_only and status.phase is not Phase.ON_HOLD:
        return Standing(state=State.WATCHED, because=because)
    if status.phase is Phase.ON_HOLD and status.blocked_by:
        because = status.blocked_by[0]
    return Standing(state=_OF_PHASE.get(status.phase, State.BLOCKED), because=because)


def _by_health(health: NodeHealth | None) -> Standing:
    """Only the agent's word is left. Silence is not health."""
    if health is None or health.status.checked_at is None:
        return Standing(state=State.UNKNOWN, because="no completed check yet")
    if health.status.faults:
        return Standing(state=State.WATCHED, because=_first_fault(health))
    for found in health.status.verdicts:
        if found.verdict is Verdict.FAULTY:
            return Standing(state=State.WATCHED, because=found.message or found.reason)
    for subsystem in (Subsystem.MONITOR, Subsystem.GPU):
        verdict = health.status.verdict(subsystem)
        if verdict is not None and verdict.verdict is Verdict.UNKNOWN:
            return Standing(state=State.UNKNOWN, because=verdict.message or verdict.reason)
    return Standing(state=State.HEALTHY)


def _first_fault(health: NodeHealth | None) -> str:
    return health.status.faults[0].summary if health is not None and health.status.faults else ""
