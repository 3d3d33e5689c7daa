"""One machine of a log: its lines go through the agent's own judge, in virtual time.

Nothing is judged here. Lines of the same tenth of a second are judged together, waiting events when they
are due, and of a flood of one line only the first of each second; all of it is counted.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.checks import EVENT_CHECKS
from outlast.health.finding import Event, Proof
from outlast.health.replay.clock import Course, VirtualTime
from outlast.health.replay.line import SECOND_US, LogLine
from outlast.health.replay.story import (
    PIDS_MAX,
    Code,
    Entry,
    FaultStory,
    Tally,
    Where,
)
from outlast.health.sources import kernel_text
from outlast.health.sources.facts import DriverLoadedFact
from outlast.health.verdict import Judgement, JudgeState, Moment, Settings, judge, start
from outlast.health.verdict.judge import Input
from outlast.health.verdict.report import published_fault
from outlast.health.verdict.state import FAULTS_KEPT_MAX, WINDOW_S, OpenFault
from outlast.model.health import FaultState
from outlast.model.observation import (
    GpuSurvey,
    KernelLogCaughtUp,
    KernelRecord,
    MachineFacts,
    PciSurvey,
)

TOGETHER_US: Final = 100_000
TOGETHER_MAX: Final = 64
SAME_PER_SECOND_MAX: Final = 64
"""Lines that differ only in numbers behind the code: in one second of the log, this many are judged."""
SHAPES_MAX: Final = 4_096
SHAPE_CHARACTERS: Final = 256
FAULTS_WAITING_MAX: Final = FAULTS_KEPT_MAX // 2
"""With more faults than this, those of earlier boots are left to history, to make room."""
DUE_MAX: Final = 64
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_YEARS_US: Final = 3_000 * 366 * 86_400 * SECOND_US
_NUMBERS_DECIDE: Final = tuple(f"): {code}" for code in (*range(144, 151), 154))
"""Ends of the head of lines whose numbers say what they mean: NVLink 5 events, recovery actions."""
_NO_DIGITS: Final = {ord(digit): None for digit in "0123456789"}
_OPENER: Final = re.compile(r"_k(\d{1,20})$")
_NO_PROBES: Final = "a log has no probes"
_SILENCE_ENDS: Final = frozenset({Proof.EXPIRY, Proof.JOB_END})


class Book(Protocol):
    """Where a machine writes what happened; shared by all machines of a replay, and bounded."""

    def where(self, number: int) -> Where:
        """File and line of a line's number in the whole replay."""
        ...

    def tell(self, entry: Entry) -> None:
        """One more event of the timeline."""
        ...

    def open(self, story: FaultStory) -> bool:
        """One more fault, which gets its number; False when there is no room."""
        ...

    def tally(self, tally: Tally) -> bool:
        """One more kind of line; False when there is no room."""
        ...


class Machine:
    """Judges the lines of one machine. `host` is its name, empty where the log names none."""

    def __init__(self, host: str, book: Book, catalogue: Catalogue, settings: Settings) -> None:
        self.host = host
        self.boots = 1
        self.repeated = 0
        self.time = VirtualTime()
        self._book = book
        self._catalogue = catalogue
        self._boot_id = ""
        self._fresh = True
        """Nothing was judged since the boot began."""
        self._number = 0
        self._batch: list[KernelRecord] = []
        self._batch_us = 0
        self._memory = kernel_text.LineMemory()
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._second = -1
        self._shapes: dict[tuple[str, str], tuple[int, tuple[Tally, ...]]] = {}
        self._stories: dict[str, FaultStory] = {}
        self._known: dict[str, OpenFault] = {}
        self._conditions: dict[str, str] = {}
        now = Moment(_EPOCH, 0.0)
        self._state: JudgeState = start(self._name_boot(), "", settings, now)
        self._due_us: int | None = None
        self._judge([KernelLogCaughtUp()], 0)

    @property
    def faults_dropped(self) -> int:
        """More faults than the judge keeps of one machine."""
        return self._state.faults_dropped

    def take(self, line: LogLine, number: int) -> None:
        """One line, in the order of the log."""
        self._number = number
        if line.boundary is not None:
            self._boundary(line.boundary, line)
            return
        if line.boot_id and line.boot_id != self._boot_id:
            self._boundary(line.boot_id, line)
        elif line.text.startswith("Linux version ") or line.uptime_us == 0:
            if self.time.repeats(line):
                self.repeated += 1
                return
            self._boundary("", line)
        else:
            course = self.time.advance(line)
            if course is Course.REPEATED:
                self.repeated += 1
                return
            if course is Course.NEW_BOOT:
                self._boundary("", line)
        if not line.text:
            return
        at_us = min(self.time.elapsed_us, _YEARS_US)
        shape = self._shape(line.text, at_us)
        known = self._shapes.get(shape)
        if known is not None and known[0] >= SAME_PER_SECOND_MAX:
            for tally in known[1]:
                tally.count += 1
                tally.last_number = number
            return
        record = KernelRecord(sequence=number, timestamp_us=at_us, priority=line.priority, text=line.text)
        if not kernel_text.interesting(record):
            return
        self._fresh = False
        self._shapes[shape] = ((known[0] if known is not None else 0) + 1, self._tallied(record))
        if self._batch and (
            record.timestamp_us - self._batch_us >= TOGETHER_US or len(self._batch) >= TOGETHER_MAX
        ):
            self._flush()
        self._pass_time(record.timestamp_us)
        if not self._batch:
            self._batch_us = record.timestamp_us
        self._batch.append(record)

    def finish(self) -> None:
        """The log is over: judge what waits for echoes that won't come."""
        self._flush()
        for _ in range(DUE_MAX):
            if self._due_us is None or not self._state.held:
                break
            self._judge([], self._due_us)
        for story in self._stories.values():
            keys = {story.gpu, story.device, "node"}
            story.lines = sum(
                tally.count
                for (key, code), tally in self._tallies.items()
                if key in keys and any(c.code == code for c in story.codes)
            )
        for tally in self._tallies.values():
            tally.pids = len(tally.pid_set)
            tally.last = self._book.where(tally.last_number)

    # --- boots

    def _name_boot(self) -> str:
        return self._boot_id or f"boot{self.boots:04d}"

    def _boundary(self, boot_id: str, line: LogLine) -> None:
        """With this line, the first of it, another boot begins."""
        if self._fresh:
            # Several marks of one boot, or the log's beginning.
            if boot_id and boot_id != self._boot_id:
                self._boot_id = boot_id
                self._judge([MachineFacts(boot_id=boot_id)], self._now_us())
            self.time.boot()
            self.time.advance(line)
            return
        self._flush()
        if self._state.held:
            self._judge([], max(self._due_us or 0, self._now_us()))
        self.boots += 1
        self._boot_id, self._fresh = boot_id, True
        self.time.boot()
        self.time.advance(line)
        self._memory = kernel_text.LineMemory()
        self._tell("boot", f"boot {self.boots} begins", self._book.where(self._number))
        self._judge([MachineFacts(boot_id=self._name_boot()), KernelLogCaughtUp()], self._now_us())

    # --- counting

    def _shape(self, text: str, at_us: int) -> tuple[str, str]:
        """What a line has in common with those of a flood that it belongs to."""
        second = at_us // SECOND_US
        if second != self._second or len(self._shapes) > SHAPES_MAX:
            self._second = second
            self._shapes.clear()
        head, _, rest = text[:SHAPE_CHARACTERS].partition(",")
        return head, rest if head.endswith(_NUMBERS_DECIDE) else rest.translate(_NO_DIGITS)

    def _tallied(self, record: KernelRecord) -> tuple[Tally, ...]:
        fact, self._memory = kernel_text.read(record, self._memory)
        if fact is None:
            return ()
        if isinstance(fact, DriverLoadedFact):
            self._tell("driver", f"NVIDIA driver {fact.version} loads", self._book.where(record.sequence))
        events = [event for check in EVENT_CHECKS if (event := check.run(fact, self._catalogue)) is not None]
        pid = str(getattr(fact, "pid", "") or "")
        return tuple(tally for event in events if (tally := self._count(event, record, pid)) is not None)

    def _count(self, event: Event, record: KernelRecord, pid: str) -> Tally | None:
        key = (event.key.partition("/")[0], event.code)
        tally = self._tallies.get(key)
        where, at = self._book.where(record.sequence), self.time.at()
        if tally is None:
            tally = Tally(
                code=event.code,
                role=event.role,
                key=event.key,
                host=self.host,
                summary=event.summary,
                first=where,
                last=where,
                first_at=at,
                burst_line=record.sequence,
                burst_us=record.timestamp_us,
                burst_boot=self.boots,
            )
            if not self._book.tally(tally):
                return None
            self._tallies[key] = tally
        quiet_us = record.timestamp_us - tally.burst_us
        if quiet_us > WINDOW_S * SECOND_US or tally.burst_boot != self.boots:
            tally.burst_line, tally.burst_boot = record.sequence, self.boots
        tally.burst_us = record.timestamp_us
        tally.count += 1
        tally.last_number, tally.last_at = record.sequence, at
        if pid and len(tally.pid_set) < PIDS_MAX:
            tally.pid_set.add(pid)
        return tally

    # --- judging

    def _now_us(self) -> int:
        return min(self.time.elapsed_us, _YEARS_US)

    def _flush(self) -> None:
        if self._batch:
            records, self._batch = self._batch, []
            self._judge(list(records), records[-1].timestamp_us)

    def _pass_time(self, until_us: int) -> None:
        """Let everything happen that was due before this moment."""
        if self._batch:
            if self._due_us is None or self._due_us > until_us:
                return
            self._flush()
        for _ in range(DUE_MAX):
            if self._due_us is None or self._due_us > until_us:
                break
            self._judge([], self._due_us)
        self._expire(until_us)

    def _expire(self, until_us: int) -> None:
        """Faults that end by silence alone end in a log too; two polls, as the agent's."""
        for fault in self._state.faults:
            if fault.state is not FaultState.OPEN or any(c.proof not in _SILENCE_ENDS for c in fault.codes):
                continue
            expiry_s = max(code.expiry_s for code in fault.codes)
            span_s = max(code.clean_span_s for code in fault.codes)
            first_us = int((fault.evidence_monotonic + expiry_s) * SECOND_US) + 1
            if expiry_s > 0 and first_us + span_s * SECOND_US < until_us:
                for at_us in (first_us, first_us + int(span_s * SECOND_US) + 1):
                    polls: list[Input] = [
                        PciSurvey(readable=False, message=_NO_PROBES),
                        GpuSurvey(message=_NO_PROBES),
                    ]
                    self._judge(polls, at_us)

    def _judge(self, inputs: list[Input], at_us: int) -> None:
        seconds = at_us / SECOND_US
        now = Moment(_EPOCH + timedelta(microseconds=at_us), seconds)
        answer = judge(self._state, inputs, now, self._catalogue)
        self._state = answer.state
        self._due_us = None
        if answer.due_s is not None:
            self._due_us = max(at_us + 1, int((seconds + answer.due_s) * SECOND_US) + 1)
        self._note(answer, at_us)
        if len(self._state.faults) > FAULTS_WAITING_MAX:
            self._make_room()

    def _make_room(self) -> None:
        standing = tuple(f for f in self._state.faults if f.state is FaultState.OPEN)
        if len(standing) < len(self._state.faults):
            self._state = msgspec.structs.replace(self._state, faults=standing)

    # --- telling

    def _tell(
        self, kind: str, text: str, where: Where | None = None, story: FaultStory | None = None, at: str = ""
    ) -> None:
        self._book.tell(
            Entry(
                kind=kind,
                at=at or self.time.at(),
                text=text,
                host=self.host,
                boot=self.boots,
                where=where,
                fault=story.number if story else None,
                gpu=story.gpu if story else "",
            )
        )

    def _note(self, answer: Judgement, at_us: int) -> None:
        at = self.time.at(at_us)
        opened = {fault.id for fault in answer.opened}
        for fault in answer.state.faults:
            if self._known.get(fault.id) is not fault:
                self._note_fault(fault, at, stands_again=fault.id in opened)
        for ended in answer.ended:
            story = self._stories.get(ended.fault.id)
            if story is not None:
                story.ended = f"{ended.ending}: no new evidence for as long as it takes"
                self._tell("ended", f"fault {story.number} is over: no new evidence", None, story, at)
        self._known = {fault.id: fault for fault in answer.state.faults}
        for condition in answer.conditions:
            before = self._conditions.get(condition.type, "Unknown")
            self._conditions[condition.type] = condition.status
            # Nothing is found good in a log, so only what is found bad, or no longer stands, is news.
            if condition.status != before and "False" in (condition.status, before):
                said = f"{condition.type} {before} -> {condition.status} ({condition.reason})"
                self._tell("condition", said, None, None, at)

    def _note_fault(self, fault: OpenFault, at: str, *, stands_again: bool) -> None:
        story = self._stories.get(fault.id)
        public = published_fault(fault)
        if story is None:
            where = self._opening(fault)
            story = FaultStory(
                number=0,
                id=fault.id,
                host=self.host,
                boot=self.boots,
                gpu=public.gpu.pci_address if public.gpu else "",
                device=public.device,
                subsystem=public.subsystem,
                scope=public.scope,
                root=public.code,
                fault_class=public.fault_class,
                summary=fault.root.summary,
                opened_at=at,
                where=where,
                codes=[],
                evidence=public.evidence[0].text if public.evidence else "",
                state=public.state,
                clears_by=public.clears_by,
            )
            if not self._book.open(story):
                return
            self._stories[fault.id] = story
            about = fault.key if fault.key != "node" else "the node"
            text = f"fault {story.number} opens on {about}: {public.code}, {public.fault_class}"
            self._tell("opened", text, where, story, at)
        elif stands_again:
            story.ended = ""
            self._tell(
                "again", f"fault {story.number} stands again", self._book.where(self._number), story, at
            )
        self._join(story, fault, at)
        if public.fault_class != story.fault_class or public.code != story.root:
            text = f"fault {story.number} is now {public.fault_class}, root {public.code}"
            self._tell("class", text, None, story, at)
        if public.code in fault.evidence_codes:
            story.evidence = fault.evidence[fault.evidence_codes.index(public.code)].text
        story.root, story.fault_class, story.summary = public.code, public.fault_class, fault.root.summary
        story.state, story.clears_by, story.scope = public.state, public.clears_by, public.scope
        story.subsystem = public.subsystem

    def _join(self, story: FaultStory, fault: OpenFault, at: str) -> None:
        known = {code.code for code in story.codes}
        for code in fault.codes:
            if code.code in known:
                continue
            tally = self._tally_of(fault, code.code)
            where = self._book.where(tally.burst_line if tally else self._number)
            if not story.codes:
                where = story.where
            else:
                self._tell("joined", f"fault {story.number}: {code.code} joins", where, story, at)
            if tally is not None:
                tally.in_fault = True
            story.codes.append(
                Code(code=code.code, fault_class=code.fault_class, summary=code.summary, at=at, where=where)
            )

    def _tally_of(self, fault: OpenFault, code: str) -> Tally | None:
        key = fault.key.partition("/")[0]
        return self._tallies.get((key, code))

    def _opening(self, fault: OpenFault) -> Where:
        opener = _OPENER.search(fault.id)
        return self._book.where(int(opener[1]) if opener else self._number)
