"""Where a node stands, in the seven words people see.

The word is derived from the objects each time it is shown; nothing stores it. What a human or the
controller decided wins over what the agent sees: a draining node is draining, whatever its GPUs say.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.model.cluster import Node
from outlast.model.health import NodeHealth
from outlast.model.incident import Incident, Phase
from outlast.model.names import CORDON_ANNOTATION, HOLD_ANNOTATION
from outlast.remediation.page import State
from outlast.remediation.standing import by_health, not_ready

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


def in_service(state: State, *, unschedulable: bool = True) -> bool:
    """Whether new work may come to a node in that state. Of a held node only its cordon tells."""
    if state is State.ON_HOLD:
        return not unschedulable
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
    down = not_ready(node)
    if down:
        return Standing(state=State.UNKNOWN, because=down)
    state, because = by_health(health)
    return Standing(state=state, because=because)


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


def _first_fault(health: NodeHealth | None) -> str:
    return health.status.faults[0].summary if health is not None and health.status.faults else ""
