"""Limits with their present use: how far the platform may go, and how far it has gone.

A limit nobody can see is a mystery when it stops something, so every one of them is a number and a bar.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from outlast.model.incident import Incident
from outlast.model.policy import RemediationPolicy, RemediationPolicySpec
from outlast.remediation.decide.budgets import IN_FLIGHT, repair_began, unavailable_cap
from outlast.web.state import FleetState


class Limit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A limit and its use."""

    name: str
    used: int
    most: int
    policy: str
    field: str
    """Where in the policy it is set."""
    remark: str = ""

    @property
    def reached(self) -> bool:
        """Whether it holds something back, or would with the next step."""
        return self.used >= self.most


def limits_of(
    policy: RemediationPolicy, state: FleetState, now: datetime, *, short: bool = False
) -> tuple[Limit, ...]:
    """The limits of one policy; `short` leaves those that a headline has no room for."""
    spec = policy.status.in_force or policy.spec
    name = policy.metadata.name
    mine = [i for i in state.incidents.values() if i.spec.policy == name and not i.spec.observe_only]
    acting = [i for i in mine if i.status.end is None and i.status.phase in IN_FLIGHT]
    found = [
        Limit(
            name="out of service",
            used=policy.status.unavailable,
            most=unavailable_cap(spec.budgets, policy.status.nodes),
            policy=name,
            field="spec.budgets.maxUnavailable, maxUnavailablePercent",
            remark=f"of {policy.status.nodes:,} nodes, whoever took them out",
        ),
        Limit(
            name="repairs in flight",
            used=len(acting),
            most=spec.budgets.max_repairs_in_flight,
            policy=name,
            field="spec.budgets.maxRepairsInFlight",
            remark="drains, reboots and replacements at once",
        ),
    ]
    if short:
        return tuple(found)
    found.append(
        Limit(
            name="repairs begun in the last hour",
            used=sum(1 for i in mine if (at := repair_began(i)) and now - at < timedelta(hours=1)),
            most=spec.budgets.max_repairs_per_hour,
            policy=name,
            field="spec.budgets.maxRepairsPerHour",
        )
    )
    if spec.budgets.max_repairs_per_domain is not None:
        found.append(_per_domain(spec, acting, state, name))
    return tuple(found)


def _per_domain(spec: RemediationPolicySpec, acting: list[Incident], state: FleetState, policy: str) -> Limit:
    """The domain that uses most of its share."""
    used: dict[str, int] = {}
    for incident in acting:
        node = state.nodes.get(incident.spec.node_name)
        domain = node.metadata.labels.get(spec.budgets.failure_domain_label, "") if node else ""
        used[domain] = used.get(domain, 0) + 1
    worst = max(used, key=lambda d: used[d], default="")
    return Limit(
        name="repairs in one failure domain",
        used=used.get(worst, 0),
        most=spec.budgets.max_repairs_per_domain or 0,
        policy=policy,
        field="spec.budgets.maxRepairsPerDomain",
        remark=f"most in {worst}" if worst else f"by label {spec.budgets.failure_domain_label}",
    )
