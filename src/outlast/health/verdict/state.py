"""What the judge remembers between two judgements, and the limits of it.

Wall time is in here for people only. Spans are monotonic; spans that reach over a reboot are counted in
seconds that the machine ran, so a step of the clock changes no verdict.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from outlast.health.checks.declaration import KnownGpu, KnownPort
from outlast.health.counters import CounterBook
from outlast.health.finding import Event, Level, Note, Proof, Role
from outlast.health.reasons import Reason
from outlast.health.sources.kernel_text import LineMemory
from outlast.model.cluster import Condition
from outlast.model.health import (
    FAULTS_MAX,
    Evidence,
    Fault,
    FaultClass,
    FaultState,
    Gpu,
    GpuIdentity,
    NodeHealthStatus,
    Scope,
    Subsystem,
    Verdict,
)
from outlast.model.observation import GpuSurvey, PciSurvey, Survey

STATE_VERSION: Final = 2
STATE_VERSIONS_READ: Final = frozenset({1, 2})
"""Version 1 lacks what is remembered of jobs, counts and earlier faults, and nothing else."""

FAULTS_KEPT_MAX: Final = 2 * FAULTS_MAX
HELD_MAX: Final = 256
"""Events that wait for their leader. Beyond it the oldest are judged at once."""
RECENT_MAX: Final = 64
"""Application and informational events that are remembered."""
UNEXPLAINED_MAX: Final = 16
CODES_PER_FAULT_MAX: Final = 8

HOLD_BACK_S: Final = 5.0
"""How long a follower waits for its leader. A burst of one cause takes well under a second."""
WINDOW_S: Final = 180.0
"""A burst lasts until this long after its last leader ..."""
WINDOW_END_S: Final = 900.0
"""... and never longer than this after its first."""
STALE_S: Final = 120.0
"""A survey older than this vouches for nothing."""
INITIALIZING_S: Final = 300.0
"""After the driver's banner, or the agent's first start in a boot, devices may still arrive."""
STALE_INTERVALS: Final = 3
"""A source that is silent for this many of its own intervals is not known any more ..."""
CADENCE_MIN_S: Final = 40.0
"""... but never sooner than three times this."""
CADENCE_MAX_S: Final = 600.0
SOURCES_MAX: Final = 32
REPEATS_MAX: Final = 128
"""Application errors remembered to be counted by job."""
SUSPICIONS_MAX: Final = 16
PAST_MAX: Final = 32
"""Ended faults that are remembered, to see that one comes back."""
TALLIES_MAX: Final = 64
MARKS_MAX: Final = 64
"""Occurrences of one thing that is counted; beyond it the two oldest melt together."""
OWNERS_MAX: Final = 1024
REMOVALS_MAX: Final = 64
PIDS_PER_FAULT_MAX: Final = 8
DAY_S: Final = 86_400.0
WITNESS_S: Final = 1800.0
"""A second witness against a hung driver counts for this long."""


class Moment(msgspec.Struct, frozen=True):
    """Now: wall time for people, monotonic seconds for spans."""

    wall: datetime
    monotonic: float


class ApplicationRule(StrEnum):
    """What follows when different jobs fail in the same way on one GPU."""

    OFF = "off"
    SHADOW = "shadow"
    """Said, and nothing is blocked: how the rule would have judged."""
    BLOCK = "block"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may say."""

    expected_gpus: int | None = None
    expected_efa: int | None = None
    """None: from the machine type and from what was seen."""
    application_rule: ApplicationRule = ApplicationRule.SHADOW
    trust_user_records: bool = False
    """For tests that write to /dev/kmsg, where user space cannot use the kernel's facility."""
    pace: float = 1.0
    """Share of the usual time that polls must be apart to count as several: smaller for an agent that is told
    to poll faster, 0 where somebody waits for the answer."""
    note: str = ""
    """Said in the message of GPUMonitorReady, such as the privilege profile."""


class FaultCode(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One code that belongs to a fault."""

    code: str
    fault_class: FaultClass
    reason: Reason
    rank: int
    proof: Proof
    expiry_s: float
    subsystem: Subsystem
    scope: Scope
    summary: str
    level: bool
    check: str = ""
    """The level check that says so, and that must look again before the fault can be over."""
    polled_by: str = ""
    """The source whose polls count towards the proof."""
    clean_polls: int = 2
    clean_span_s: float = 60.0
    blames_peer: bool = False


class OpenFault(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A fault with the codes that joined it, the best-ranked first."""

    id: str
    key: str
    codes: tuple[FaultCode, ...]
    opened_at: datetime
    last_seen_at: datetime
    boot_id: str
    gpu: GpuIdentity | None = None
    device: str = ""
    state: FaultState = FaultState.OPEN
    first_us: int | None = None
    last_leader_us: int | None = None
    evidence: tuple[Evidence, ...] = ()
    evidence_codes: tuple[str, ...] = ()
    """The code of each evidence, so that a flood of one code cannot push out the others."""
    action_seen: bool = False
    """The driver asked for a recovery since this opened, so that "none" proves that it happened."""
    second_witness: bool = False
    live: bool = True
    """Seen by an agent as it happened, or confirmed by a level; else it is only read in the log's past."""
    evidence_monotonic: float = 0.0
    seen_monotonic: float = 0.0
    """When `last_seen_at` last moved."""
    quiet_since: float = 0.0
    """Since when the kernel log would have told of it: an expiry counts from here."""
    watched_since: float | None = None
    """Since when every poll has found its GPU readable and asking for nothing."""
    watched_at: float = 0.0
    clean_since: float | None = None
    clean_polls: int = 0
    pids: tuple[int, ...] = ()
    """Processes that its lines name."""
    echoes: tuple[str, ...] = ()
    """Other GPUs whose link errors are echoes of this one."""
    repeated: bool = False
    """It came back within a day of a proven repair: the repair did not cure it."""

    @property
    def root(self) -> FaultCode:
        """The cause: the smallest rank, the earliest of equals."""
        return self.codes[0]

    @property
    def fault_class(self) -> FaultClass:
        """The strongest cure that any of its codes needs; what is only history blocks and never drains."""
        if not self.live:
            return FaultClass.TRANSIENT
        strongest = self.codes[0].fault_class
        for code in self.codes:
            if STRENGTH[code.fault_class] > STRENGTH[strongest]:
                strongest = code.fault_class
        return NEXT_CURE.get(strongest, strongest) if self.repeated else strongest


STRENGTH: Final = {
    FaultClass.APPLICATION: 0,
    FaultClass.TRANSIENT: 1,
    FaultClass.MONITOR_HUNG: 2,
    FaultClass.RESET_CURES: 3,
    FaultClass.REBOOT_CURES: 4,
    FaultClass.HARDWARE_GONE: 5,
}


NEXT_CURE: Final = {
    FaultClass.RESET_CURES: FaultClass.REBOOT_CURES,
    FaultClass.REBOOT_CURES: FaultClass.HARDWARE_GONE,
}
"""What to try when a cure did not hold."""


class Held(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event that waits for its leader."""

    event: Event
    due: float


class Recent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event that is no fault of the node, for people and for counting."""

    code: str
    gpu: str
    role: Role
    at: datetime


class Repeat(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An application error of one job on one GPU."""

    gpu: str
    """Serial, UUID or address: what is known of the board, so that the count follows it."""
    code: str
    job: str
    at_s: float
    """In seconds that the machine ran."""
    unit: str = ""
    software: bool = False
    """The job failed on several GPUs at once, so it says nothing about any of them."""


class Suspicion(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Different jobs failed alike on one GPU."""

    gpu: str
    address: str
    code: str
    jobs: int
    blocks: bool
    """Enough of them that new work is kept away, where the rule is in force."""
    at_s: float


class Past(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A fault that a repair ended."""

    gpu: str
    kind: str
    at_s: float


class Tally(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Occurrences of something that only counts in numbers, in kernel time."""

    key: str
    code: str
    boot_id: str
    marks: tuple[tuple[int, int], ...] = ()


class Owner(msgspec.Struct, frozen=True, gc=False):
    """Which pod a process belonged to, and when that was last seen."""

    pod: str
    at: float


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """A program that the driver took off a GPU (Xid 45), or a task stuck in the kernel."""

    process: str
    at: float
    pid: int | None = None
    gpu: str = ""
    in_driver: bool = False


class Unexplained(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A code that nobody knows: its GPU is not vouched for until it checks clean."""

    gpu: str
    code: str
    clean_since: float | None = None
    clean_polls: int = 0


class LevelState(msgspec.Struct, frozen=True):
    """A level that holds now, for how many polls in a row, and when the first and the newest were."""

    check: str
    level: Level
    polls: int
    since: float
    seen: float

    @property
    def stands(self) -> bool:
        """Enough polls agree, and not all of them within a moment."""
        return self.polls >= self.level.polls and self.seen - self.since >= self.level.span_s


class Standing(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A published verdict and when it last flipped."""

    subsystem: Subsystem
    verdict: Verdict
    reason: Reason
    since: datetime


class Answer(msgspec.Struct, frozen=True):
    """The last answer, which holds until something changes or this moment comes."""

    status: NodeHealthStatus
    conditions: tuple[Condition, ...]
    until: float
    shown: tuple[tuple[OpenFault, Fault], ...] = ()
    """How each fault was shown, so that only those that changed are put into words again."""
    inventory: tuple[Gpu, ...] = ()
    inventory_of: tuple[tuple[KnownGpu, ...], PciSurvey | None, GpuSurvey | None] = ((), None, None)


class JudgeState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Everything between two judgements."""

    version: int
    boot_id: str = ""
    instance_type: str = ""
    settings: Settings = Settings()
    faults: tuple[OpenFault, ...] = ()
    faults_dropped: int = 0
    unexplained: tuple[Unexplained, ...] = ()
    held: tuple[Held, ...] = ()
    recent: tuple[Recent, ...] = ()
    levels: tuple[LevelState, ...] = ()
    standing: tuple[Standing, ...] = ()
    known_gpus: tuple[KnownGpu, ...] = ()
    known_efa: tuple[str, ...] = ()
    known_ports: tuple[KnownPort, ...] = ()
    learned_gpus: int = 0
    learned_efa: int = 0
    repeats: tuple[Repeat, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    past: tuple[Past, ...] = ()
    tallies: tuple[Tally, ...] = ()
    running_base_s: float = 0.0
    """Seconds that the machine ran in earlier boots, as far as they were seen."""
    uptime_s: float = 0.0
    checked_at: datetime | None = None
    """Last completed full check in this boot."""
    heard_us: int = 0
    """Kernel time of the newest line that was judged in this boot ..."""
    heard: tuple[tuple[int, int], ...] = ()
    """... and time and sequence of the last ones: a log that is read again tells nothing new."""
    # Not kept over a restart of the process:
    first_start: bool = True
    """No earlier process of ours judged this boot, so what the log already holds is history."""
    off_bus: LineMemory = LineMemory()
    pci: PciSurvey | None = None
    gpu: GpuSurvey | None = None
    surveys: dict[str, Survey] = {}
    """Newest survey of each further source, by its name."""
    surveyed_at: dict[str, float] = {}
    counters: CounterBook = CounterBook()
    judged: dict[str, float] = {}
    """When each level check last could judge anything, in monotonic seconds."""
    notes: dict[str, tuple[Note, ...]] = {}
    """What each level check has to say beside its levels."""
    surveyed: float | None = None
    """Monotonic time of the last complete survey."""
    asked: bool = False
    """A survey has returned in this process, with whatever answer."""
    quiet_from: float = 0.0
    """Monotonic time from which devices should all be there."""
    gpus_complete: bool = False
    efa_complete: bool = False
    ports_complete: bool = False
    """All expected ones have been seen in this boot, so a missing one is not just late."""
    kernel_log_lost: str = ""
    kernel_log_read: bool = False
    kernel_log_source: str = ""
    """Which way to the kernel log is open, where there are several."""
    gaps: int = 0
    untrusted: int = 0
    witness: float | None = None
    cadence: dict[str, float] = {}
    """The longest usual pause of each source."""
    owners: dict[int, Owner] = {}
    removals: tuple[Removal, ...] = ()
    stuck: tuple[Removal, ...] = ()
    suspended_s: float | None = None
    probes: int = 0
    """Grows when something asks for a look at once."""
    answer: Answer | None = None


def ran_s(state: JudgeState, now: Moment) -> float:
    """Seconds that the machine ran, over all boots: a clock that nobody can step."""
    return state.running_base_s + now.monotonic
