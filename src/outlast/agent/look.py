"""One look at a machine through the agent's own sources and judge, without an agent and without a cluster.

So a person, or Slurm, gets the verdict that the agent would publish. Debounce needs several polls: they are
made some seconds apart while something is in doubt. What could not be looked at is Unknown, and said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from outlast.agent.sources import ask, survey_bus, survey_gpus
from outlast.health.catalogue import Catalogue
from outlast.health.sources import kernel_text
from outlast.health.sources.facts import DriverLoadedFact
from outlast.health.sources.kernel_text import LineMemory
from outlast.health.verdict import Judgement, Moment, Settings, judge, restore
from outlast.health.verdict.broken import place_of
from outlast.health.verdict.judge import Input
from outlast.health.verdict.state import INITIALIZING_S, LevelState
from outlast.model.health import FaultState
from outlast.model.observation import (
    GpuSurvey,
    KernelLogCaughtUp,
    KernelLogGap,
    KernelLogLost,
    KernelRecord,
    MachineFacts,
    PciSurvey,
    Survey,
    SurveyProblem,
)
from outlast.ports.clock import Clock
from outlast.ports.node import GpuReader, KernelLog, Machine, PciBus, Polled, Wanted

AGAIN_S: Final = 1.0
"""Between the first two polls: enough for a counter to move."""
DOUBT_S: Final = 3.0
"""Between polls while a check waits for others to agree; a GPU that is being reset comes back meanwhile."""
POLLS_MIN: Final = 2
POLLS_MAX: Final = 4
"""Checks that want more agreeing polls than this (a driver away for 30 minutes) stay undecided here."""
SETTLE_POLL_S: Final = 10.0
EXPENSIVE_S: Final = 2.0
"""A source that took longer is asked once."""
BATCH_RECORDS: Final = 1000

T = TypeVar("T")


class Seen(StrEnum):
    """What became of a source."""

    READ = "read"
    PARTLY = "partly"
    FAILED = "failed"
    NOTHING = "nothing there"


class SourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one source could be looked through."""

    name: str
    seen: Seen
    message: str
    duration_s: float = 0.0


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the look ended with."""

    judgement: Judgement
    facts: MachineFacts
    sources: tuple[SourceReport, ...]
    remembered: bool
    """The agent of this machine left its memory, and the look went on from it."""
    polls: int
    at_s: float
    """Seconds since boot, to tell the age of kernel lines."""

    @property
    def pci(self) -> PciSurvey | None:
        """The newest look at the bus."""
        return self.judgement.state.pci

    @property
    def gpu(self) -> GpuSurvey | None:
        """The newest answer of NVML."""
        return self.judgement.state.gpu


class Look:
    """Looks once.

    `deadline_s` is for all of it together; whatever has not answered by then is Unknown. `settle_s`: go on
    polling for so long while a fault of the past waits for the proof that it is over.
    """

    def __init__(
        self,
        *,
        machine: Machine,
        pci: PciBus,
        gpu_reader: GpuReader,
        kernel_log: KernelLog,
        polled: tuple[Polled, ...],
        memory: bytes | None,
        settings: Settings,
        catalogue: Catalogue,
        clock: Clock,
        deadline_s: float,
        settle_s: float = 0.0,
    ) -> None:
        self._machine = machine
        self._bus = pci
        self._gpu_reader = gpu_reader
        self._kernel_log = kernel_log
        self._polled = polled
        self._catalogue = catalogue
        self._clock = clock
        self._until_s = clock.monotonic() + deadline_s
        self._settle_until_s = clock.monotonic() + settle_s
        self._facts = machine.facts()
        self._reports: dict[str, SourceReport] = {}
        self._polls = 0
        self._state, problem = restore(
            memory,
            self._facts.boot_id,
            self._facts.instance_type,
            msgspec.structs.replace(settings, pace=0.0),
            self._moment(),
        )
        self._remembered = memory is not None and not problem
        # The judge counts from the agent's start, in doubt; here the machine's own start is known.
        self._state = msgspec.structs.replace(self._state, quiet_from=INITIALIZING_S)
        self._judgement: Judgement | None = None

    async def run(self) -> Found:
        """Poll until nothing is in doubt, at most `POLLS_MAX` times and never past the deadline."""
        await self._poll(first=True)
        while self._left_s() > 0 and (pause_s := self._pause_s()) is not None:
            await self._clock.sleep(min(pause_s, self._left_s()))
            await self._poll(first=False)
        return self.found()

    def absorb(self, survey: Survey) -> Found:
        """Judge one more survey, such as the results of active checks."""
        self._judge([survey])
        return self.found()

    def found(self) -> Found:
        """What is known by now."""
        assert self._judgement is not None, "nothing was looked at yet"
        return Found(
            judgement=self._judgement,
            facts=self._facts,
            sources=tuple(self._reports[name] for name in self._order() if name in self._reports),
            remembered=self._remembered,
            polls=self._polls,
            at_s=self._clock.monotonic(),
        )

    def _order(self) -> tuple[str, ...]:
        return ("PCI bus", "kernel log", "NVML", *(source.name for source in self._polled))

    # --- polling

    async def _poll(self, *, first: bool) -> None:
        self._polls += 1
        pci = survey_bus(self._bus)
        self._report_pci(pci)
        self._judge([self._machine.facts(), pci])
        async with asyncio.TaskGroup() as group:
            log = group.create_task(self._read_log()) if first else None
            gpus = group.create_task(self._ask_gpus(pci))
            others = [group.create_task(self._ask(source)) for source in self._polled if self._cheap(source)]
        if log is not None:
            self._judge(log.result())
        self._judge([gpus.result()])
        self._judge([survey for task in others if (survey := task.result()) is not None])

    def _pause_s(self) -> float | None:
        """Seconds until another poll may change the answer; None when it would not."""
        waits = any(fault.state is FaultState.AWAITING_PROOF for fault in self._state.faults)
        if waits and self._clock.monotonic() < self._settle_until_s:
            return min(SETTLE_POLL_S, self._settle_until_s - self._clock.monotonic())
        if self._polls >= POLLS_MAX:
            return None
        if any(_in_doubt(entry, self._polls) for entry in self._state.levels) or self._state.held:
            return DOUBT_S
        return AGAIN_S if self._polls < POLLS_MIN and self._something_to_poll() else None

    def _something_to_poll(self) -> bool:
        gpu = self._state.gpu
        return bool(self._polled) or (gpu is not None and bool(gpu.gpus) and gpu.problem is None)

    def _cheap(self, source: Polled) -> bool:
        report = self._reports.get(source.name)
        return report is None or report.duration_s <= EXPENSIVE_S

    async def _read_log(self) -> list[Input]:
        """Everything of the log that can matter, up to its present end."""
        inputs: list[Input] = []
        records, interesting, lost = 0, 0, 0
        start_s = self._clock.monotonic()

        async def read() -> Input | None:
            nonlocal records, interesting, lost
            async with aclosing(self._kernel_log.records()) as items:
                async for item in items:
                    match item:
                        case KernelRecord():
                            records += 1
                            if kernel_text.interesting(item):
                                interesting += 1
                                self._note_driver_start(item)
                                inputs.append(item)
                        case KernelLogGap():
                            lost += item.lost
                            inputs.append(item)
                        case _:
                            return item
                    if len(inputs) >= BATCH_RECORDS:
                        self._judge(inputs)
                        inputs.clear()
            return None

        end = await self._within(read)
        if end is None:
            message = f"the kernel log was not read to its end in time ({records} lines were)"
            end = KernelLogLost(message=message)
        inputs.append(end)
        if isinstance(end, KernelLogLost):
            seen, message = (Seen.PARTLY if records else Seen.FAILED), end.message
        else:
            new = " since the agent's last look" if self._remembered else " of this boot"
            overwritten = f"; at least {lost} were overwritten" if lost else ""
            way = f" from {end.source}" if isinstance(end, KernelLogCaughtUp) and end.source else ""
            seen = Seen.READ
            message = f"{records} lines{new}{way}, {interesting} of interest{overwritten}"
        self._report("kernel log", seen, message, start_s)
        return inputs

    def _note_driver_start(self, record: KernelRecord) -> None:
        """Devices may arrive late after the driver was loaded; the judge only counts that for live lines."""
        fact, _ = kernel_text.read(record, LineMemory())
        if isinstance(fact, DriverLoadedFact):
            quiet_from = record.timestamp_us / 1_000_000 + INITIALIZING_S
            if quiet_from > self._state.quiet_from:
                self._state = msgspec.structs.replace(self._state, quiet_from=quiet_from)

    async def _ask_gpus(self, pci: PciSurvey) -> GpuSurvey:
        start_s = self._clock.monotonic()
        survey = await self._within(lambda: survey_gpus(self._gpu_reader, pci, closely=True))
        if survey is None:
            message = "no answer before the deadline of the whole check"
            survey = GpuSurvey(problem=SurveyProblem.HUNG, message=message)
        answered = sum(1 for gpu in survey.gpus if not gpu.error)
        said = f"{answered} of {len(survey.gpus)} GPUs answer, driver {survey.driver_version}"
        seen = Seen.READ
        if survey.problem is not None:
            seen, said = (Seen.PARTLY if survey.gpus else Seen.FAILED), survey.message or survey.problem
        elif not survey.gpus:
            seen, said = Seen.NOTHING, survey.message
        self._report("NVML", seen, said, start_s)
        return survey

    async def _ask(self, source: Polled) -> Survey | None:
        start_s = self._clock.monotonic()
        survey = await self._within(lambda: ask(source, self._wanted()))
        if isinstance(survey, Exception):
            self._report(source.name, Seen.FAILED, f"asking it failed ({place_of(survey)})", start_s)
            return None
        if survey is None:
            self._report(
                source.name, Seen.FAILED, "no answer before the deadline of the whole check", start_s
            )
            return None
        seen, message = _own_words(survey)
        self._report(source.name, seen, message, start_s)
        return survey

    def _wanted(self) -> Wanted:
        pci, gpu = self._state.pci, self._state.gpu
        pids = {pid for reading in (gpu.gpus if gpu else ()) for pid in reading.process_ids or ()}
        return Wanted(tuple(device.address for device in pci.gpus) if pci else (), tuple(sorted(pids)))

    # --- judging

    def _judge(self, inputs: list[Input]) -> None:
        self._judgement = judge(self._state, inputs, self._moment(), self._catalogue)
        self._state = self._judgement.state

    def _moment(self) -> Moment:
        return Moment(self._clock.now(), self._clock.monotonic())

    # --- time and words

    def _left_s(self) -> float:
        return self._until_s - self._clock.monotonic()

    async def _within(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        try:
            async with asyncio.timeout(max(0.0, self._left_s())):
                return await ask()
        except TimeoutError:
            return None

    def _report_pci(self, pci: PciSurvey) -> None:
        if not pci.readable:
            self._report("PCI bus", Seen.FAILED, pci.message, self._clock.monotonic())
            return
        efa = len(pci.efa) + len(pci.efa_unbound)
        message = f"{_count(len(pci.gpus), 'NVIDIA GPU')}, {_count(efa, 'EFA device')}"
        seen = Seen.READ if pci.gpus or efa else Seen.NOTHING
        self._report("PCI bus", seen, message, self._clock.monotonic())

    def _report(self, name: str, seen: Seen, message: str, start_s: float) -> None:
        spent_s = self._clock.monotonic() - start_s
        self._reports[name] = SourceReport(name=name, seen=seen, message=message, duration_s=spent_s)


def _in_doubt(entry: LevelState, polls: int) -> bool:
    return not entry.stands and entry.level.polls - entry.polls <= POLLS_MAX - polls


def _own_words(survey: Survey) -> tuple[Seen, str]:
    """How a source speaks of itself: its problem or message, where it has one."""
    problem = getattr(survey, "problem", None)
    message = str(getattr(survey, "message", "") or problem or "")
    if problem or getattr(survey, "readable", True) is False:
        return Seen.FAILED, message or "could not be read"
    return (Seen.PARTLY, message) if message else (Seen.READ, "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
