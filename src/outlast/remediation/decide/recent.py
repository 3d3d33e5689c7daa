"""What happened lately in a fleet: repairs begun within the hour, nodes newly bad with one code.

Both are read from incidents, so a restart forgets nothing, and both answer in constant time: old
entries are dropped at most once a second, which is as exact as anybody needs.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from outlast.model.incident import Incident
from outlast.model.policy import Storm
from outlast.remediation.decide.budgets import repair_began
from outlast.remediation.decide.situation import StormSight

HOUR = timedelta(hours=1)
PRUNE_EVERY = timedelta(seconds=1)


class RecentRepairs:
    """Incidents by the time of their first disruption."""

    def __init__(self) -> None:
        self._began: dict[str, tuple[str, datetime]] = {}
        self._by_node: Counter[str] = Counter()
        self._pruned_at: datetime | None = None

    def saw(self, incident: Incident) -> None:
        """Take in an incident as it is now."""
        name, node = incident.metadata.name, incident.spec.node_name
        began = repair_began(incident)
        if began is None or name in self._began:
            return
        if self._pruned_at is None or self._pruned_at - began <= HOUR:
            self._began[name] = (node, began)
            self._by_node[node] += 1

    def __contains__(self, incident: str) -> bool:
        """Whether an incident is counted already."""
        return incident in self._began

    def of_others(self, node_name: str, now: datetime) -> int:
        """Repairs that other nodes began within the last hour."""
        if self._pruned_at is None or now - self._pruned_at >= PRUNE_EVERY:
            self._prune(now)
        return len(self._began) - self._by_node[node_name]

    def _prune(self, now: datetime) -> None:
        self._pruned_at = now
        for name in [n for n, (_, began) in self._began.items() if now - began > HOUR]:
            node, _ = self._began.pop(name)
            self._by_node[node] -= 1
            if not self._by_node[node]:
                del self._by_node[node]


class NewlyBad:
    """Nodes by the code with which they fell sick, within a window."""

    def __init__(self) -> None:
        self._by_code: dict[str, dict[str, datetime]] = {}
        self._pruned_at: datetime | None = None
        self._window = timedelta(0)

    def saw(self, incident: Incident) -> None:
        """Take in the opening of an incident."""
        if not incident.spec.faults:
            return
        name, opened = incident.spec.node_name, incident.spec.opened_at
        if self._pruned_at is not None and self._pruned_at - opened >= self._window:
            return
        nodes = self._by_code.setdefault(incident.spec.faults[0].code, {})
        nodes[name] = max(opened, nodes.get(name, opened))

    def storm(self, storm: Storm, now: datetime) -> StormSight | None:
        """The code with which too many nodes fell sick within the window, where there is one."""
        if self._pruned_at is None or now - self._pruned_at >= PRUNE_EVERY:
            self._prune(now, timedelta(seconds=storm.window_s))
        if not self._by_code:
            return None
        code, nodes = max(self._by_code.items(), key=lambda item: len(item[1]))
        return StormSight(code, len(nodes)) if len(nodes) >= storm.nodes else None

    def _prune(self, now: datetime, window: timedelta) -> None:
        self._pruned_at, self._window = now, window
        for code, nodes in list(self._by_code.items()):
            for name in [n for n, opened in nodes.items() if now - opened >= window]:
                del nodes[name]
            if not nodes:
                del self._by_code[code]
