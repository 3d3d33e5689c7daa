"""Counts for budgets, kept up to date by differences: one node's change costs the same in any fleet.

Each node contributes a few facts to its policy. A block or repair that is on its way is reserved here
before its request is sent, so that many workers together never pass a limit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from outlast.model.cluster import Node
from outlast.model.incident import Incident
from outlast.model.policy import Storm
from outlast.remediation.decide import FleetView, RulingPolicy, StormSight
from outlast.remediation.decide.budgets import IN_FLIGHT
from outlast.remediation.decide.opening import POLICY_NAME_MAX, is_unavailable
from outlast.remediation.decide.recent import NewlyBad, RecentRepairs


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one node adds to the counts of its policy."""

    policy: str = ""
    unavailable: bool = False
    repairing: bool = False
    domain: str = ""


@dataclass(slots=True)
class _Counts:
    nodes: int = 0
    unavailable: int = 0
    repairing: int = 0
    by_domain: Counter[str] = field(default_factory=Counter)
    repairs: RecentRepairs = field(default_factory=RecentRepairs)
    newly_bad: NewlyBad = field(default_factory=NewlyBad)


def _key(policy: str) -> str:
    """A policy as incidents name it, so that both sides of a budget count under one name."""
    return policy[:POLICY_NAME_MAX]


def contribution(node: Node | None, incident: Incident | None, ruling: RulingPolicy | None) -> Contribution:
    """A node's facts."""
    if node is None or ruling is None:
        return Contribution()
    repairing = incident is not None and not incident.spec.observe_only and incident.status.phase in IN_FLIGHT
    domain = node.metadata.labels.get(ruling.spec.budgets.failure_domain_label, "")
    return Contribution(_key(ruling.name), is_unavailable(node), repairing, domain)


class FleetLedger:
    """Counts by policy, with reservations."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}
        self._nodes: dict[str, Contribution] = {}
        self._reserved_blocks: set[str] = set()
        self._reserved_repairs: dict[str, str] = {}
        self._facts: dict[str, Contribution] = {}

    def put(self, node_name: str, facts: Contribution) -> None:
        """A node's facts changed, or are told again."""
        self._facts[node_name] = facts
        self._apply(node_name)

    def drop(self, node_name: str) -> None:
        """A node is gone."""
        self._reserved_blocks.discard(node_name)
        self._reserved_repairs.pop(node_name, None)
        self._facts.pop(node_name, None)
        self._apply(node_name)

    def reserve_block(self, node_name: str) -> None:
        """Count a node as unavailable although its cordon is only on its way."""
        self._reserved_blocks.add(node_name)
        self._apply(node_name)

    def reserve_repair(self, node_name: str, incident: str) -> None:
        """Count a node as under repair, and its incident as begun, although the record is only on its way."""
        self._reserved_repairs[node_name] = incident
        self._apply(node_name)

    def settle(self, node_name: str) -> None:
        """What was on its way has arrived or failed: the facts alone count again."""
        self._reserved_blocks.discard(node_name)
        self._reserved_repairs.pop(node_name, None)
        self._apply(node_name)

    def _apply(self, node_name: str) -> None:
        facts = self._facts.get(node_name)
        wanted = facts
        if facts is not None:
            wanted = Contribution(
                facts.policy,
                facts.unavailable or node_name in self._reserved_blocks,
                facts.repairing or node_name in self._reserved_repairs,
                facts.domain,
            )
        before = self._nodes.get(node_name)
        if before == wanted:
            return
        if before is not None:
            self._add(before, -1)
        if wanted is None:
            self._nodes.pop(node_name, None)
            return
        self._nodes[node_name] = wanted
        self._add(wanted, 1)

    def _add(self, facts: Contribution, sign: int) -> None:
        if not facts.policy:
            return
        counts = self._counts.setdefault(facts.policy, _Counts())
        counts.nodes += sign
        counts.unavailable += sign * facts.unavailable
        counts.repairing += sign * facts.repairing
        if facts.repairing and facts.domain:
            counts.by_domain[facts.domain] += sign

    def saw_incident(self, incident: Incident) -> None:
        """Take in what an incident means for the hour's repairs and for storms."""
        if incident.spec.observe_only:
            return
        counts = self._counts.setdefault(_key(incident.spec.policy), _Counts())
        counts.repairs.saw(incident)
        counts.newly_bad.saw(incident)

    def storm(self, policy: str, storm: Storm, now: datetime) -> StormSight | None:
        """The storm of a policy, where there is one."""
        counts = self._counts.get(_key(policy))
        if counts is None:
            return None
        return counts.newly_bad.storm(storm, now)

    def view(self, node_name: str, ruling: RulingPolicy, now: datetime) -> FleetView:
        """The other nodes of a policy, as a decision about this node sees them."""
        counts = self._counts.get(_key(ruling.name), _Counts())
        own = self._nodes.get(node_name, Contribution())
        ours = own.policy == _key(ruling.name)
        same_domain = counts.by_domain[own.domain] if own.domain else 0
        return FleetView(
            nodes=max(1, counts.nodes),
            unavailable=counts.unavailable - (ours and own.unavailable),
            repairs_in_flight=counts.repairing - (ours and own.repairing),
            repairs_in_domain=same_domain - (ours and own.repairing and bool(own.domain)),
            domain=own.domain,
            repairs_last_hour=counts.repairs.of_others(node_name, now) + self._beginning(node_name, ruling),
            storm=self.storm(ruling.name, ruling.spec.storm, now),
        )

    def _beginning(self, node_name: str, ruling: RulingPolicy) -> int:
        """Other nodes of a policy whose first disruption is on its way to the record."""
        counts = self._counts.get(_key(ruling.name), _Counts())
        return sum(
            self._facts.get(name, Contribution()).policy == _key(ruling.name)
            and incident not in counts.repairs
            for name, incident in self._reserved_repairs.items()
            if name != node_name
        )

    def totals(self, policy: str) -> tuple[int, int]:
        """Nodes of a policy, and how many of them are out of service."""
        counts = self._counts.get(_key(policy), _Counts())
        return counts.nodes, counts.unavailable
