"""Every metric of the controller in one table, what it counts, and the page. See agent/metrics.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import outlast
from outlast.adapters.linux.own_process import OwnProcess, own_process
from outlast.adapters.metrics_page import MetricsPage, parse_address
from outlast.model.incident import IncidentStatus, Phase, Result
from outlast.model.metrics import Family, Metric, Series, Shape, render, single
from outlast.model.policy import Rung

if TYPE_CHECKING:
    from outlast.controller.main import Controller
    from outlast.ports.clock import Clock

BUILD_INFO: Final = Metric(
    name="outlast_build_info",
    shape=Shape.GAUGE,
    about="Always 1; the version is a label.",
    labels=("version",),
)
LEADER: Final = Metric(
    name="outlast_controller_leader",
    shape=Shape.GAUGE,
    about="1 for the replica that may write, 0 for the others.",
)
SYNCED: Final = Metric(
    name="outlast_controller_synced",
    shape=Shape.GAUGE,
    about="1 while every cache follows its collection; nothing new is disrupted otherwise.",
)
NODES: Final = Metric(name="outlast_nodes", shape=Shape.GAUGE, about="Nodes that this replica knows.")
INCIDENTS: Final = Metric(
    name="outlast_incidents_open",
    shape=Shape.GAUGE,
    about="Incidents that run, by phase; those that only observe count as Waiting.",
    labels=("phase",),
    series_max=len(Phase),
)
HELD_BACK: Final = Metric(
    name="outlast_incidents_held_back",
    shape=Shape.GAUGE,
    about="Incidents that run and whose next step a limit, a budget or a person holds back.",
)
ACTIONS: Final = Metric(
    name="outlast_actions_total",
    shape=Shape.COUNTER,
    about="Rungs taken by this replica, by how they ended.",
    labels=("rung", "result"),
    series_max=len(Rung) * len(Result),
)
BLOCKED: Final = Metric(
    name="outlast_decisions_held_back_total",
    shape=Shape.COUNTER,
    about="Times that an incident began to be held back by a limit, a budget or a person.",
)
TROUBLE: Final = Metric(
    name="outlast_reconcile_failures_total",
    shape=Shape.COUNTER,
    about="Looks at a node that ended with an error and are tried again.",
)
MEMORY: Final = Metric(
    name="process_resident_memory_bytes", shape=Shape.GAUGE, about="Resident memory of the controller."
)
CPU: Final = Metric(
    name="process_cpu_seconds_total", shape=Shape.COUNTER, about="Processor time of the controller."
)

METRICS: Final = (
    *(BUILD_INFO, LEADER, SYNCED, NODES, INCIDENTS, HELD_BACK, ACTIONS, BLOCKED, TROUBLE, MEMORY, CPU),
)


class Activity:
    """What a replica did since it started."""

    def __init__(self) -> None:
        self.actions: Counter[tuple[str, str]] = Counter()
        self.held_back = 0
        self.failures = 0

    def wrote(self, before: IncidentStatus, after: IncidentStatus) -> None:
        """A record of an incident was put down."""
        unsettled = {attempt.id for attempt in before.attempts if attempt.outcome is None}
        known = {attempt.id for attempt in before.attempts}
        for attempt in after.attempts:
            if attempt.outcome is not None and (attempt.id in unsettled or attempt.id not in known):
                self.actions[attempt.rung.value, attempt.outcome.result.value] += 1
        self.held_back += bool(after.blocked_by and not before.blocked_by)


def served(address: str, controller: Controller, clock: Clock) -> MetricsPage:
    """The page of a running controller. Raises ValueError for an address that is none."""
    return MetricsPage(
        parse_address(address),
        clock=clock,
        page=lambda: page(controller, own_process()),
        health=lambda: (True, "the event loop turns\n"),
    )


def page(controller: Controller, process: OwnProcess) -> bytes:
    """The page for Prometheus."""
    values = dict(_values(controller, process))
    return render(Family(metric, values[metric.name]) for metric in METRICS)


def _values(controller: Controller, process: OwnProcess) -> Iterator[tuple[str, Series]]:
    world, activity = controller.world, controller.activity
    running = [incident for incident in world.all_incidents() if incident.status.phase is not Phase.CLOSED]
    phases = Counter(
        Phase.WAITING if incident.spec.observe_only else incident.status.phase for incident in running
    )
    yield BUILD_INFO.name, (((outlast.__version__,), 1),)
    yield LEADER.name, single(controller.leads)
    yield SYNCED.name, single(world.synced)
    yield NODES.name, single(len(world.nodes.values()))
    open_phases = (phase for phase in Phase if phase is not Phase.CLOSED)
    yield INCIDENTS.name, (((phase.value,), phases[phase]) for phase in open_phases)
    yield HELD_BACK.name, single(sum(bool(incident.status.blocked_by) for incident in running))
    yield ACTIONS.name, activity.actions.items()
    yield BLOCKED.name, single(activity.held_back)
    yield TROUBLE.name, single(activity.failures)
    yield MEMORY.name, single(process.memory_bytes)
    yield CPU.name, single(process.cpu_s)
