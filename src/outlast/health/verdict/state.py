"""What the judge remembers, and the part of it that outlives the process.

Monotonic times and half-done proofs are not kept: after a restart a proof starts again, which costs a
minute and can never clear a fault too early.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from outlast.health.checks.declaration import KnownGpu, KnownPort
from outlast.health.counters import CounterBook, rebaselined
from outlast.health.finding import Event, Level, Note, Proof, Role
from outlast.health.reasons import Reason
from outlast.health.sources.kernel_text import OffBusMemory
from outlast.model.health import (
    FAULTS_MAX,
    Evidence,
    FaultClass,
    FaultState,
    GpuIdentity,
    Scope,
    Subsystem,
    Verdict,
)
from outlast.model.observation import GpuSurvey, PciSurvey, Survey

STATE_VERSION: Final = 1
STATE_BYTES_MAX: Final = 60 * 1024
"""Above this, evidence is thinned out before saving; the file's own limit is 64 KiB."""

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
WITNESS_S: Final = 1800.0
"""A second witness against a hung driver counts for this long."""


class Moment(msgspec.Struct, frozen=True):
    """Now: wall time for people, monotonic seconds for spans."""

    wall: datetime
    monotonic: float


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may say."""

    expected_gpus: int | None = None
    expected_efa: int | None = None
    """None: from the machine type and from what was seen."""
    trust_user_records: bool = False
    """For tests that write to /dev/kmsg, where user space cannot use the kernel's facility."""
    note: str = ""
    """Said in the message of GPUMonitorReady, such as the privilege profile."""


class FaultCode(msgspec.Struct, frozen=True, kw_only=True):
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


class OpenFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault with the codes that joined it; the best-ranked code is its root."""

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
    clean_since: float | None = None
    clean_polls: int = 0

    @property
    def root(self) -> FaultCode:
        """The cause: the smallest rank, the earliest of equals."""
        return min(self.codes, key=lambda code: code.rank)

    @property
    def fault_class(self) -> FaultClass:
        """The strongest cure that any of its codes needs; what is only history blocks and never drains."""
        if not self.live:
            return FaultClass.TRANSIENT
        return max((code.fault_class for code in self.codes), key=_STRENGTH.__getitem__)


_STRENGTH: Final = {
    FaultClass.APPLICATION: 0,
    FaultClass.TRANSIENT: 1,
    FaultClass.MONITOR_HUNG: 2,
    FaultClass.RESET_CURES: 3,
    FaultClass.REBOOT_CURES: 4,
    FaultClass.HARDWARE_GONE: 5,
}


class Held(msgspec.Struct, frozen=True):
    """An event that waits for its leader."""

    event: Event
    due: float


class Recent(msgspec.Struct, frozen=True):
    """An event that is no fault of the node, for people and for counting."""

    code: str
    gpu: str
    role: Role
    at: datetime


class Unexplained(msgspec.Struct, frozen=True, kw_only=True):
    """A code that nobody knows: its GPU is not vouched for until it checks clean."""

    gpu: str
    code: str
    clean_since: float | None = None
    clean_polls: int = 0


class LevelState(msgspec.Struct, frozen=True):
    """A level that holds now, and for how many polls."""

    check: str
    level: Level
    polls: int

    @property
    def stands(self) -> bool:
        """Enough polls agree."""
        return self.polls >= self.level.polls


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A published verdict and when it last flipped."""

    subsystem: Subsystem
    verdict: Verdict
    reason: Reason
    since: datetime


class JudgeState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything between two judgements."""

    version: int = STATE_VERSION
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
    checked_at: datetime | None = None
    """Last completed full check in this boot."""
    # Not kept over a restart of the process:
    first_start: bool = True
    """No earlier process of ours judged this boot, so what the log already holds is history."""
    off_bus: OffBusMemory = OffBusMemory()
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
    gaps: int = 0
    untrusted: int = 0
    witness: float | None = None


def start(boot_id: str, instance_type: str, settings: Settings, now: Moment) -> JudgeState:
    """State of an agent that remembers nothing."""
    return JudgeState(
        boot_id=boot_id,
        instance_type=instance_type,
        settings=settings,
        quiet_from=now.monotonic + INITIALIZING_S,
    )


def restore(
    content: bytes | None, boot_id: str, instance_type: str, settings: Settings, now: Moment
) -> tuple[JudgeState, str]:
    """State from a saved content, and why it could not be used (empty when it was, or there was none).

    In a new boot, faults wait for proof, levels are probed anew, and Healthy needs a new check.
    """
    fresh = start(boot_id, instance_type, settings, now)
    if content is None:
        return fresh, ""
    try:
        saved = msgspec.json.decode(content, type=JudgeState)
    except (msgspec.DecodeError, RecursionError) as error:
        return fresh, f"the saved state is unreadable: {str(error)[:200]}"
    if saved.version != STATE_VERSION:
        return fresh, f"the saved state has version {saved.version}, this is {STATE_VERSION}"
    kept = msgspec.structs.replace(
        saved,
        settings=settings,
        instance_type=instance_type,
        quiet_from=now.monotonic + INITIALIZING_S,
        first_start=False,
        faults=tuple(
            msgspec.structs.replace(fault, evidence_monotonic=now.monotonic, clean_since=None, clean_polls=0)
            for fault in saved.faults[:FAULTS_KEPT_MAX]
        ),
        held=tuple(Held(held.event, now.monotonic + HOLD_BACK_S) for held in saved.held[:HELD_MAX]),
        surveyed=now.monotonic if saved.checked_at is not None else None,
        witness=None,
    )
    return rebooted(kept, boot_id, now), ""


def rebooted(state: JudgeState, boot_id: str, now: Moment) -> JudgeState:
    """The state in the boot `boot_id`; unchanged when it is still the same boot."""
    if boot_id == state.boot_id or not boot_id:
        return state
    waiting = tuple(
        msgspec.structs.replace(
            fault,
            state=FaultState.AWAITING_PROOF,
            evidence_monotonic=now.monotonic,
            clean_since=None,
            clean_polls=0,
        )
        for fault in state.faults
    )
    return msgspec.structs.replace(
        state,
        boot_id=boot_id,
        faults=waiting,
        held=(),
        levels=(),
        unexplained=(),
        checked_at=None,
        first_start=True,
        off_bus=OffBusMemory(),
        pci=None,
        gpu=None,
        surveys={},
        surveyed_at={},
        judged={},
        notes={},
        counters=rebaselined(),
        surveyed=None,
        asked=False,
        quiet_from=now.monotonic + INITIALIZING_S,
        gpus_complete=False,
        efa_complete=False,
        ports_complete=False,
        kernel_log_read=False,
        witness=None,
    )


def to_bytes(state: JudgeState) -> bytes:
    """The part that outlives the process, at most `STATE_BYTES_MAX` long."""
    durable = msgspec.structs.replace(
        state,
        settings=Settings(),
        levels=(),
        off_bus=OffBusMemory(),
        pci=None,
        gpu=None,
        surveys={},
        surveyed_at={},
        judged={},
        notes={},
        counters=rebaselined(),
        surveyed=None,
        asked=False,
        first_start=True,
        quiet_from=0.0,
        gpus_complete=False,
        efa_complete=False,
        ports_complete=False,
        kernel_log_lost="",
        kernel_log_read=False,
        witness=None,
        gaps=0,
        untrusted=0,
        # The hour is enough: the time itself would make every poll a write to the disk.
        checked_at=state.checked_at and state.checked_at.replace(minute=0, second=0, microsecond=0),
        faults=tuple(
            msgspec.structs.replace(fault, evidence_monotonic=0.0, clean_since=None, clean_polls=0)
            for fault in state.faults
        ),
        unexplained=tuple(
            msgspec.structs.replace(entry, clean_since=None, clean_polls=0) for entry in state.unexplained
        ),
        held=tuple(Held(held.event, 0.0) for held in state.held),
    )
    content = msgspec.json.encode(durable)
    for evidence_max in (2, 1):
        if len(content) <= STATE_BYTES_MAX:
            break
        durable = msgspec.structs.replace(
            durable,
            recent=(),
            held=durable.held[-16:],
            faults=tuple(_thin(f, evidence_max) for f in durable.faults),
        )
        content = msgspec.json.encode(durable)
    return content


def _thin(fault: OpenFault, evidence_max: int) -> OpenFault:
    return msgspec.structs.replace(
        fault, evidence=fault.evidence[:evidence_max], evidence_codes=fault.evidence_codes[:evidence_max]
    )
