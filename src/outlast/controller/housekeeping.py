"""What is done at leisure: policy status, closed incidents past their time, Jobs nobody needs."""

from __future__ import annotations

from datetime import timedelta

import structlog

from outlast.controller.fleet import FleetLedger
from outlast.controller.options import ControllerOptions
from outlast.controller.policies import PolicyBook, status_of, write_status
from outlast.controller.steady import SteadyTime
from outlast.controller.world import World
from outlast.model.decision import RemoveRepair
from outlast.model.incident import EndResult, Incident
from outlast.model.policy import REMEDIATION_POLICIES
from outlast.ports.cluster import Cluster, ClusterError, Conflict, EventNote, EventRecorder
from outlast.remediation.act import Performer
from outlast.remediation.decide.faults import still_binding

JOB_KEPT = timedelta(hours=1)
"""A called-off Job goes on occupying its name this long after the incident closed."""
DELETES_MAX = 100
"""Objects deleted in one round, so that tidying never crowds out acting."""

_log = structlog.get_logger(__name__)


class Housekeeping:
    """Tidies up and tells policies what became of them."""

    def __init__(
        self,
        cluster: Cluster,
        world: World,
        book: PolicyBook,
        ledger: FleetLedger,
        performer: Performer,
        recorder: EventRecorder,
        time: SteadyTime,
        options: ControllerOptions,
    ) -> None:
        self._cluster = cluster
        self._world = world
        self._book = book
        self._ledger = ledger
        self._performer = performer
        self._recorder = recorder
        self._time = time
        self._options = options

    async def policy_status(self) -> None:
        """Write the status of each policy where it says something new. Raises Fenced."""
        now = self._time.now()
        for judged in self._book.judged():
            policy = judged.policy
            name = policy.metadata.name
            storm = None
            if judged.in_force is not None:
                storm = self._ledger.storm(name, judged.in_force.storm, now)
            status = status_of(judged, *self._ledger.totals(name), storm, now)
            if status == policy.status:
                continue
            self._performer.guard()
            try:
                await write_status(self._cluster, policy, status)
            except Conflict:
                continue
            except ClusterError as error:
                _log.warning("policy status not written", policy=name, why=str(error))
                continue
            for new in status.conditions:
                old = next((c for c in policy.status.conditions if c.type == new.type), None)
                if old is None or old.status != new.status:
                    bad = (new.type, new.status) in (("Accepted", "False"), ("Storm", "True"))
                    if bad or old is not None:
                        self._recorder.record(
                            EventNote(
                                REMEDIATION_POLICIES,
                                name,
                                new.reason,
                                new.message,
                                uid=policy.metadata.uid,
                                warning=bad,
                            )
                        )

    async def tidy(self) -> None:
        """Delete what nobody needs any more. Raises Fenced."""
        for job in self._idle_jobs():
            await self._quietly(job, None)
        for incident in self._expired():
            await self._quietly("", incident)

    async def _quietly(self, job_name: str, incident: Incident | None) -> None:
        try:
            if incident is not None:
                await self._performer.delete_incident(incident)
            else:
                await self._performer.perform(RemoveRepair(job_name=job_name))
        except ClusterError as error:
            _log.info("not tidied up", why=str(error))

    def _idle_jobs(self) -> list[str]:
        """Repair Jobs whose incident is closed, called-off ones a while later, or whose incident is gone."""
        now = self._time.now()
        incidents = {i.metadata.name: i for i in self._world.all_incidents()}
        idle: list[str] = []
        for job in self._world.jobs.values():
            incident = incidents.get(job.metadata.annotations.get("outlast.dev/incident", ""))
            created = job.metadata.creation_timestamp or now
            end = incident.status.end if incident is not None else None
            if end is not None:
                over = not job.spec.suspend or now - end.at > JOB_KEPT
            else:
                over = incident is None and now - created > JOB_KEPT
            if over:
                idle.append(job.metadata.name)
        return idle[:DELETES_MAX]

    def _expired(self) -> list[Incident]:
        """Closed incidents that are too old, or too many for one node; those whose word still binds stay."""
        now = self._time.now()
        kept_for = timedelta(seconds=self._options.closed_kept_s)
        expired: list[Incident] = []
        for name in {i.spec.node_name for i in self._world.all_incidents()}:
            closed = self._world.closed_incidents(name)
            health = self._world.healths.get(name)
            standing = frozenset(f.id for f in health.status.faults) if health is not None else frozenset()
            kept_max = self._options.closed_kept_per_node
            binding = still_binding(closed, standing, kept_max)
            others = 0
            for incident in closed:
                end = incident.status.end
                old = end is not None and now - end.at > kept_for
                cancelled = end is not None and end.result is EndResult.CANCELLED_BY_HUMAN
                binds = incident.metadata.name in binding and (cancelled or not old)
                others += not binds
                if not binds and (old or others > kept_max):
                    expired.append(incident)
        return expired[:DELETES_MAX]
