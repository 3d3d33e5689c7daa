"""The agent of one node: sources feed one judge, the judge feeds the publishers; each in its own loop.

The kernel log never waits for a poll: its lines are judged and published while NVML hangs. All state
is in one value, saved to disk before the log position, so a restart loses no fault and invents none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from random import Random
from typing import TypeVar

import msgspec
import structlog

from outlast.agent.conditions import ConditionPublisher
from outlast.agent.lease import LeaseRenewer
from outlast.agent.node_health import NodeHealthPublisher
from outlast.agent.options import (
    BACKOFF_MAX_S,
    FIRST_LOOK_MAX_S,
    FORGOTTEN_SHOWN_S,
    INBOX_MAX,
    SAVE_AGAIN_S,
    SAVE_SPACING_S,
    Options,
)
from outlast.agent.quiesce import Quiesce
from outlast.agent.sources import ask, survey_bus, survey_gpus
from outlast.agent.telemetry import SURVEY_LIMIT_S, Telemetry
from outlast.agent.telling import Teller
from outlast.agent.waiting import news_or_time
from outlast.health.catalogue import Catalogue, builtin
from outlast.health.checks.gpu_presence import counted
from outlast.health.sources.kernel_text import interesting
from outlast.health.verdict import Judgement, JudgeState, Moment, judge, restore, to_bytes
from outlast.health.verdict.broken import place_of
from outlast.health.verdict.judge import Input
from outlast.model.observation import KernelLogLost, KernelRecord, Survey
from outlast.model.observation.agent_state import AgentStateSurvey
from outlast.ports.clock import Clock
from outlast.ports.cluster import Cluster, EventRecorder
from outlast.ports.node import GpuReader, KernelLog, Machine, PciBus, Polled, StateFile, Wanted

log = structlog.get_logger("outlast.agent")
S = TypeVar("S", bound=Survey)


class Agent:
    """Watches one node and publishes its health until cancelled."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        kernel_log: KernelLog,
        gpu_reader: GpuReader,
        pci: PciBus,
        machine: Machine,
        state_file: StateFile,
        clock: Clock,
        rng: Random,
        options: Options,
        events: EventRecorder | None = None,
        catalogue: Catalogue | None = None,
        polled: Sequence[Polled] = (),
        quiesce_file: StateFile | None = None,
    ) -> None:
        self._kernel_log = kernel_log
        self._gpu_reader = gpu_reader
        self._pci = pci
        self._machine = machine
        self._state_file = state_file
        self._clock = clock
        self._rng = rng
        self._options = options
        self._polled = [(source, asyncio.Event()) for source in polled]
        self._teller = Teller(options.node_name, clock, events)
        self._catalogue = catalogue if catalogue is not None else builtin()
        self.telemetry = Telemetry(clock)
        self.conditions = ConditionPublisher(cluster, options, clock, rng, self.telemetry)
        self.node_health = NodeHealthPublisher(cluster, options, clock, rng, self.telemetry)
        self.lease = LeaseRenewer(cluster, options, clock, rng, self.telemetry)
        self._inbox: list[Input] = []
        self._mail = asyncio.Event()
        self._probe_gpu = asyncio.Event()
        self._probe_pci = asyncio.Event()
        self._save_due = asyncio.Event()
        self.quiesce = Quiesce(options.node_name, clock, quiesce_file, self._probe_gpu.set)
        self.conditions.on_node = self.quiesce.saw
        self._saved: bytes | None = None
        self._saved_s = 0.0
        self._forgotten = ""
        self._kept = AgentStateSurvey()
        self._broken: dict[str, str] = {}
        self._started_s = clock.monotonic()
        self._state = self._restored()
        self.judgement: Judgement | None = None
        """The last answer of the judge."""

    async def run(self) -> None:
        """Run until cancelled; an error in any loop ends all of them."""
        self._judge([self._machine.facts(), survey_bus(self._pci)])
        loops = {
            "kernel log": self._follow_kernel_log(),
            "judge": self._judge_for_ever(),
            "gpu poll": self._poll_gpus(),
            "pci poll": self._poll_bus(),
            **{f"{source.name} poll": self._poll(source, probe) for source, probe in self._polled},
            "publish conditions": self.conditions.run(),
            "publish NodeHealth": self.node_health.run(),
            "own node": self.conditions.follow(),
            "lease": self.lease.run(),
            "save": self._save_for_ever(),
        }
        try:
            async with asyncio.TaskGroup() as group:
                for name, loop in loops.items():
                    group.create_task(loop, name=f"{self._options.node_name}: {name}")
        finally:
            self._save()
            for source, _ in self._polled:
                await source.surveyor.aclose()

    # --- sources

    async def _follow_kernel_log(self) -> None:
        while True:
            try:
                await self._read_kernel_log()
                return
            except Exception as error:
                log.error("reading the kernel log failed", node=self._options.node_name, exc_info=error)
                self._deliver(KernelLogLost(message=f"reading the kernel log failed ({place_of(error)})"))
            await self._clock.sleep(BACKOFF_MAX_S)

    async def _read_kernel_log(self) -> None:
        async with aclosing(self._kernel_log.records()) as items:
            async for item in items:
                self._save_due.set()
                self.telemetry.heard(item)
                if isinstance(item, KernelRecord) and not interesting(item):
                    continue
                self._inbox.append(item)
                self._mail.set()
                if len(self._inbox) >= INBOX_MAX:
                    await self._clock.sleep(0)
                    self._read_inbox()

    async def _poll_gpus(self) -> None:
        await self.quiesce.first_sight()
        news = False
        while True:
            if self.quiesce.active:
                self._deliver(await self.quiesce.release(self._gpu_reader))
            else:
                asked = survey_gpus(self._gpu_reader, self._state.pci, closely=news)
                survey = await self._timed("gpu poll", asked)
                self.telemetry.leaked_workers = survey.leaked_workers
                self._deliver(survey)
            wait_s = self.quiesce.wait_s(self._options.poll_interval_s)
            self.telemetry.alive("gpu poll", wait_s + SURVEY_LIMIT_S)
            news = await news_or_time(self._probe_gpu, self._clock, wait_s)

    async def _poll_bus(self) -> None:
        while True:
            await news_or_time(self._probe_pci, self._clock, self._options.poll_interval_s)
            self._inbox += [self._machine.facts(), self._kept]
            begun_s = self._clock.monotonic()
            survey = survey_bus(self._pci)
            self.telemetry.surveyed(survey, self._clock.monotonic() - begun_s)
            self.telemetry.alive("pci poll", self._options.poll_interval_s + SURVEY_LIMIT_S)
            self._deliver(survey)

    async def _poll(self, source: Polled, probe: asyncio.Event) -> None:
        name = f"{source.name} poll"
        while True:
            if not source.asks_gpus:
                self._deliver(await self._timed(name, self._asked(source)))
            elif not self.quiesce.active:
                with self.quiesce.asking(source.name):
                    survey = await self._timed(name, self._asked(source))
                self._deliver(survey)
            self.telemetry.alive(name, source.interval_s + SURVEY_LIMIT_S)
            await news_or_time(probe, self._clock, source.interval_s)

    async def _asked(self, source: Polled) -> Survey:
        """What a source says; of one whose own code fails: that it does, and the agent goes on."""
        answer = await ask(source, self._wanted())
        known = self._broken.pop(source.name, "")
        if isinstance(answer, Exception):
            self._broken[source.name] = place_of(answer)
            if self._broken[source.name] != known:
                log.error(
                    "a source failed", node=self._options.node_name, source=source.name, exc_info=answer
                )
        if known or self._broken:
            broken = tuple(f"{name} ({place})" for name, place in sorted(self._broken.items()))
            self._kept = msgspec.structs.replace(self._kept, broken=broken)
        return self._kept if isinstance(answer, Exception) else answer

    async def _timed(self, loop: str, survey: Awaitable[S]) -> S:
        self.telemetry.alive(loop, SURVEY_LIMIT_S)
        begun_s = self._clock.monotonic()
        answer = await survey
        self.telemetry.surveyed(answer, self._clock.monotonic() - begun_s)
        return answer

    def _wanted(self) -> Wanted:
        pci, gpu = self._state.pci, self._state.gpu
        pids = {pid for reading in (gpu.gpus if gpu else ()) for pid in reading.process_ids or ()}
        return Wanted(tuple(counted(pci)) if pci else (), tuple(sorted(pids)))

    def _deliver(self, reading: Input) -> None:
        self._inbox.append(reading)
        self._mail.set()

    # --- judge

    async def _judge_for_ever(self) -> None:
        while True:
            due_s = self.judgement.due_s if self.judgement else None
            await news_or_time(self._mail, self._clock, due_s)
            self._read_inbox()

    def _read_inbox(self) -> None:
        readings, self._inbox = self._inbox, []
        self._judge(readings)

    def _judge(self, readings: list[Input]) -> None:
        now = Moment(self._clock.now(), self._clock.monotonic())
        answer = judge(self._state, readings, now, self._catalogue)
        before, self._state, self.judgement = self._state, answer.state, answer
        if answer.probe:
            self._probe_gpu.set()
            self._probe_pci.set()
            for _, probe in self._polled:
                probe.set()
        self._teller.tell(before, answer, self.conditions.node_uid)
        self._save_due.set()
        if self._has_looked(now):
            self.conditions.want(answer.conditions, answer.status.checked_at)
            self.node_health.want(answer.status, self.conditions.node_uid, self.quiesce.status)

    def _has_looked(self, now: Moment) -> bool:
        """A restart must not publish "not yet checked" over what the last process knew."""
        waited = now.monotonic - self._started_s >= FIRST_LOOK_MAX_S
        return self._state.asked or bool(self._state.faults) or waited

    # --- memory

    def _restored(self) -> JudgeState:
        facts = self._machine.facts()
        now = Moment(self._clock.now(), self._clock.monotonic())
        content = self._state_file.load()
        state, problem = restore(content, facts.boot_id, facts.instance_type, self._options.settings, now)
        problem = problem or self._unread()
        if problem:
            log.warning("starting without memory", node=self._options.node_name, problem=problem)
        self._forgotten = problem
        return state

    def _unread(self) -> str:
        why = self._state_file.problem
        return f"the saved state is unreadable: {why}" if why else ""

    async def _save_for_ever(self) -> None:
        while True:
            await self._save_due.wait()
            self._save_due.clear()
            self._save()
            await self._clock.sleep(SAVE_SPACING_S)

    def _save(self) -> None:
        """State first, position second: a crash in between re-reads lines that are known already."""
        if self._inbox:
            self._read_inbox()
        content = to_bytes(self._state)
        now_s = self._clock.monotonic()
        stale = now_s - self._saved_s >= SAVE_AGAIN_S
        kept = True
        if content != self._saved or stale:
            kept = self._state_file.save(content)
            self._saved, self._saved_s = (content, now_s) if kept else (None, now_s)
        if kept:
            self._kernel_log.save_position()
        self._tell_kept("" if kept else self._state_file.problem or "the disk refuses", now_s)

    def _tell_kept(self, unsaved: str, now_s: float) -> None:
        """Whether the state outlives us is a reading like any other."""
        known = now_s - self._started_s < FORGOTTEN_SHOWN_S
        forgotten = self._forgotten if known else ""
        survey = msgspec.structs.replace(self._kept, unsaved=unsaved, forgotten=forgotten)
        if survey != self._kept:
            self._kept = survey
            self._deliver(survey)
