"""How much may be out of service or under repair, and when trouble is so wide that repairs stop.

Each check returns the limit that says no, in words for people, or an empty text. Counts leave the node
itself out, so asking twice for the same node gives the same answer.
"""

from __future__ import annotations

from datetime import datetime

from outlast.model.incident import Incident, Phase
from outlast.model.policy import Budgets
from outlast.remediation.decide.ladder import DISRUPTIVE
from outlast.remediation.decide.situation import FleetView, StormSight

IN_FLIGHT = frozenset({Phase.CHECKPOINTING, Phase.DRAINING, Phase.REPAIRING, Phase.VERIFYING})
"""Phases in which an incident uses up a repair slot."""


def unavailable_cap(budgets: Budgets, nodes: int) -> int:
    """Most nodes out of service at once: the smaller of count and percent, which has a floor of one."""
    percent = budgets.max_unavailable_percent
    cap = max(1, nodes * percent // 100) if percent else 0
    return cap if budgets.max_unavailable is None else min(cap, budgets.max_unavailable)


def refuses_block(budgets: Budgets, fleet: FleetView) -> str:
    """Why one more node may not be taken out of service now."""
    cap = unavailable_cap(budgets, fleet.nodes)
    if fleet.unavailable < cap:
        return ""
    return f"budget maxUnavailable: {fleet.unavailable} of at most {cap} nodes are out of service already"


def refuses_repair(budgets: Budgets, fleet: FleetView) -> str:
    """Why one more repair may not begin now."""
    if fleet.storm is not None:
        return storm_text(fleet.storm)
    if fleet.repairs_in_flight >= budgets.max_repairs_in_flight:
        return (
            f"budget maxRepairsInFlight: {fleet.repairs_in_flight} of at most "
            f"{budgets.max_repairs_in_flight} repairs are under way"
        )
    per_domain = budgets.max_repairs_per_domain
    if per_domain is not None and fleet.domain and fleet.repairs_in_domain >= per_domain:
        return (
            f"budget maxRepairsPerDomain: {fleet.repairs_in_domain} of at most {per_domain} "
            f"repairs are under way in {budgets.failure_domain_label}={fleet.domain}"
        )
    if fleet.repairs_last_hour >= budgets.max_repairs_per_hour:
        return (
            f"budget maxRepairsPerHour: {fleet.repairs_last_hour} of at most "
            f"{budgets.max_repairs_per_hour} repairs began within the last hour"
        )
    return ""


def storm_text(storm: StormSight) -> str:
    """The storm as a limit that holds repairs back."""
    return (
        f"storm: {storm.nodes} nodes newly bad with {storm.code}; repairs stop until a human or time ends it"
    )


def repair_began(incident: Incident) -> datetime | None:
    """When an incident first disrupted anything."""
    return min((a.started_at for a in incident.status.attempts if a.rung in DISRUPTIVE), default=None)
