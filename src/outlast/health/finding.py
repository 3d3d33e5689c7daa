"""What one check says: something happened (Event) or something is so right now (Level).

Events come from the kernel log and are judged once; levels are probed again and again and are what
decides. Neither is a fault yet: the verdict correlates, debounces and clears them.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem

RANK_LAST = 20
"""Ranks run from 1 (the device is lost) to this (says nothing about a cause)."""

POLL_SPACING_S = 15.0
"""Usual seconds between two polls of NVML or the PCI bus; slower sources say their own with each level."""
DETAIL_SPACING_S = 60.0
"""The same for what NVML is asked about once a minute only."""
SLOW_SPACING_S = 30.0
"""RDMA devices and processes."""
HOST_SPACING_S = 60.0
"""Disks, file systems and tables of the kernel."""
SPACING_SLACK = 0.8
"""Polls that agree may be so much closer than usual; a burst of them is still one look."""


class Role(StrEnum):
    """How an event takes part in a burst of events."""

    LEADER = "leader"
    """Opens a fault at once."""
    FOLLOWER = "follower"
    """Often an echo: waits a moment for its leader."""
    APPLICATION = "application"
    """Made by a program: waits likewise and never opens a fault of the node."""
    MODIFIER = "modifier"
    """Says more about a fault that is open."""
    INFORMATIONAL = "informational"
    """Recorded."""
    UNEXPECTED = "unexpected"
    """Nobody knows what it means here: Unknown, never Healthy and never a reason to drain."""


class Proof(StrEnum):
    """What has to be seen before a fault is over."""

    LEVEL_GOOD = "LevelGood"
    RECOVERY_NONE = "RecoveryNone"
    MEMORY_CLEAN = "MemoryClean"
    READABLE = "Readable"
    NEW_BOOT_AND_PRESENT = "NewBootAndPresent"
    HARDWARE_LEFT = "HardwareLeft"
    JOB_END = "JobEnd"
    EXPIRY = "Expiry"
    FABRIC_GOOD = "FabricGood"
    FABRIC_RECOVERED = "FabricRecovered"
    SRAM_CLEAN = "SramClean"
    REPAIR_DONE = "RepairDone"
    QUIET = "Quiet"


PROOF_TEXT = {
    Proof.LEVEL_GOOD: "the same check finds it good",
    Proof.RECOVERY_NONE: "the GPU answers and asks for no recovery, after a reset or reboot",
    Proof.MEMORY_CLEAN: "the GPU answers, asks for no recovery and has no memory row waiting for a reset "
    "(a memory test would be better proof and is not asked for)",
    Proof.READABLE: "the GPU answers again and asks for no recovery",
    Proof.NEW_BOOT_AND_PRESENT: "after a reboot the GPU is on the bus, answers and asks for no recovery",
    Proof.HARDWARE_LEFT: "the board is replaced",
    Proof.JOB_END: "the program ends",
    Proof.EXPIRY: "it does not come back",
    Proof.FABRIC_GOOD: "the GPU answers, asks for no recovery, and its links are good for 10 minutes",
    Proof.FABRIC_RECOVERED: "the GPU asks for no recovery, its fabric is complete and persistence mode is on",
    Proof.SRAM_CLEAN: "after a reset or reboot the GPU answers, asks for no recovery and is below its limit "
    "of SRAM errors (a deep check is wanted too)",
    Proof.REPAIR_DONE: "the GPU answers, asks for no recovery and has no repair waiting",
    Proof.QUIET: "the GPU answers, asks for no recovery and it does not come back",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is said, about what, and what would follow if it stands."""

    code: str
    """Catalogue entry, such as xid/79 or efa/missing."""
    reason: Reason
    fault_class: FaultClass
    subsystem: Subsystem
    scope: Scope
    rank: int
    proof: Proof
    summary: str
    source: str
    text: str
    """The evidence in the source's own words."""
    expiry_s: float = 0
    gpu: str = ""
    """PCI address, where it is about one GPU."""
    instance: int | None = None
    device: str = ""

    @property
    def key(self) -> str:
        """What the finding is about: a GPU (or one instance of it), another device, or the node."""
        if self.gpu:
            return self.gpu if self.instance is None else f"{self.gpu}/{self.instance}"
        return self.device or "node"


class Event(Finding, frozen=True, kw_only=True):
    """Something that happened, in kernel order."""

    role: Role
    sequence: int
    timestamp_us: int
    replayed: bool = False
    """From before the agent's first start in this boot."""
    previous_xid: int | None = None
    pid: int | None = None
    """Host process id that the line names."""
    process: str = ""
    """Its name as printed; chosen by the program, so only ever compared."""
    unit: str = ""
    """Which part of the GPU, where the line says so: the same unit failing different jobs is suspicious."""
    link: int | None = None
    blames_peer: bool = False
    """The GPU reports what the other end of one of its links did."""
    joins_any_time: bool = False
    """Belongs to whatever fault is open on its GPU, however old that is."""
    asks_recovery: bool = False
    count_min: int = 1
    """How many must come on the same key and code within the window before a fault opens."""
    count_window_s: float = 0.0
    """Looked back from the newest, in kernel time; of no meaning while `count_min` is 1."""
    occurrences: int = 1
    """How many this one record stands for, at least: the kernel prints some of a flood only."""


class Level(Finding, frozen=True, kw_only=True):
    """Something that is so now."""

    polls: int = 1
    """Polls in a row that must agree before it stands ..."""
    spacing_s: float = POLL_SPACING_S
    """... and the usual time between two of them: something new makes all sources look at once."""
    clean_polls: int = 2
    clean_span_s: float = 60.0
    """Good polls, and the time between the first and the last of them, before it is over."""

    @property
    def span_s(self) -> float:
        """Seconds that lie at least between the first and the last poll that agree."""
        return (self.polls - 1) * self.spacing_s * SPACING_SLACK


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Worth saying, but no fault: stands in the message of a verdict and needs no proof.

    The text holds no number that moves, because each change of it is a write to the cluster.
    """

    subsystem: Subsystem
    text: str
    doubt: Reason | None = None
    """Set: too much for Healthy and too little for a fault, so the verdict is Unknown for this reason."""


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """All levels of one check after one poll."""

    check: str
    bad: tuple[Level, ...] = ()
    notes: tuple[Note, ...] = ()
    covers: frozenset[str] | None = None
    """Keys this poll could judge; None means everything the check looks at."""
