"""One Struct a table: what a row of a catalogue file holds, and which values contradict each other.

A file of the user's is read into the same shapes, so a row that would act against its own class is
refused when it is read and not when a GPU is sick.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from outlast.health.finding import RANK_LAST, Proof, Role
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.policy import Rung

XID_CODE_MAX = 99_999
TEXT_CHARS_MAX = 400

Code = Annotated[int, Meta(ge=0, le=XID_CODE_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=80)]
Text = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARS_MAX)]
Bits = Annotated[str, Meta(pattern="^[01-]{32}$")]
"""Bit 31 first; a dash is any bit."""
Hex = Annotated[str, Meta(pattern="^0x[0-9a-fA-F]{1,8}$")]


class Urgency(StrEnum):
    """When the first rung is due."""

    NOW = "now"
    AT_DRAIN = "at-drain"
    """The next time the node is empty anyway; jobs may go on until then."""
    WHEN_IDLE = "when-idle"
    """Nothing but a check, once no job is in its way."""
    NEVER = "never"
    """Nothing is to be done to the node."""


_CURES = {
    FaultClass.TRANSIENT: (Rung.WATCH, Rung.BLOCK_NEW_WORK),
    FaultClass.APPLICATION: (Rung.WATCH,),
    FaultClass.RESET_CURES: (Rung.RESET_GPU, Rung.HOLD),
    FaultClass.REBOOT_CURES: (Rung.REBOOT, Rung.HOLD),
    FaultClass.HARDWARE_GONE: (Rung.REPLACE, Rung.HOLD),
    FaultClass.MONITOR_HUNG: (Rung.WATCH, Rung.BLOCK_NEW_WORK, Rung.HOLD),
}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What every row says: what cures it, how much it covers, when, and a sentence for people."""

    KEYS: ClassVar[tuple[str, ...]] = ("code",)
    """The columns that name a row; an override with the same ones replaces it."""

    fault_class: FaultClass = msgspec.field(name="class")
    scope: Scope
    rung: Rung
    """The step that cures it, where the policy's ladder has it."""
    urgency: Urgency = Urgency.NOW
    text: Text

    def __post_init__(self) -> None:
        if self.rung not in _CURES[self.fault_class]:
            allowed = " or ".join(_CURES[self.fault_class])
            raise ValueError(f"class {self.fault_class} goes with rung {allowed}, not {self.rung}")
        if self.rung is Rung.WATCH and self.urgency in (Urgency.NOW, Urgency.AT_DRAIN):
            raise ValueError(f"rung {self.rung} goes with urgency never or when-idle, not {self.urgency}")
        if self.rung is not Rung.WATCH and self.urgency is Urgency.NEVER:
            raise ValueError(f"rung {self.rung} needs an urgency other than never")

    @property
    def key(self) -> tuple[object, ...]:
        """The values of the key columns."""
        return tuple(getattr(self, name) for name in self.KEYS)


CountMin = Annotated[int, Meta(ge=1, le=1_000_000)]
CountWindow = Annotated[int, Meta(ge=0, le=30 * 86_400)]
_COUNTED = (Role.LEADER, Role.APPLICATION)


class XidEntry(Entry, frozen=True, kw_only=True):
    """What one Xid code means; one row of `xid.csv`."""

    code: Code
    name: Name
    severity: Annotated[str, Meta(pattern="^(info|warning|error|fatal)$")]
    """For people; decisions use class and role."""
    role: Role
    rank: Annotated[int, Meta(ge=1, le=RANK_LAST)]
    """Position in the order of causes: within one burst the smallest is the root."""
    subsystem: Subsystem
    reason: Reason
    proof: Proof
    expiry_s: Annotated[int, Meta(ge=0)]
    """Without a probe that can confirm it, the fault is over after this long; 0 means never."""
    count_min: CountMin = 1
    """A leader: this many within the window on one GPU make a fault. A program's code: this many jobs."""
    count_window_s: CountWindow = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count_min > 1 and (self.role not in _COUNTED or not self.count_window_s):
            raise ValueError("count_min above 1 goes with role leader or application and a count_window_s")
        mine = self.role in (Role.APPLICATION, Role.FOLLOWER)
        if self.fault_class is FaultClass.APPLICATION and not mine:
            raise ValueError(f"class {self.fault_class} goes with role application or follower")
        if self.role is Role.APPLICATION and self.fault_class is not FaultClass.APPLICATION:
            raise ValueError(f"role {self.role} goes with class {FaultClass.APPLICATION}")


class SwitchSeverity(StrEnum):
    """How bad an NVSwitch code can get, as the fabric manager's own documentation sorts them."""

    ALWAYS_FATAL = "always-fatal"
    POTENTIALLY_FATAL = "potentially-fatal"
    NON_FATAL = "non-fatal"


class SxidEntry(Entry, frozen=True, kw_only=True):
    """What one SXid code of an NVSwitch means; one row of `sxid.csv`."""

    code: Code
    name: Name
    severity: SwitchSeverity


class NvlinkSeverity(StrEnum):
    """How bad one event of an NVLink 5 unit is."""

    NON_FATAL = "Non-fatal"
    LINK_FATAL = "Link Fatal"
    FATAL = "Fatal"


class NvlinkEntry(Entry, frozen=True, kw_only=True):
    """What one event of an NVLink 5 unit (Xid 144-150) means; one row of `nvlink5.csv`."""

    KEYS: ClassVar[tuple[str, ...]] = ("xid", "unit", "bits", "subcode", "status")

    xid: Annotated[int, Meta(ge=144, le=150)]
    unit: Annotated[str, Meta(pattern="^[A-Z0-9_]{1,40}(/[A-Z0-9_]{1,40}){0,3}$")]
    """The unit as the line prints it; several names of the same are separated by a slash."""
    bits_before_r575: Bits
    bits: Bits
    """What the first word of the line looks like, on drivers before R575 and since."""
    subcode: Annotated[int, Meta(ge=0, le=63)]
    status: Hex
    """The second word."""
    severity: NvlinkSeverity
    origin: str
    """Where such an event comes from: HW, SW, HW/SW, FW or NA."""
    blames_peer: bool
    """The other end of the link is the likely origin."""

    @property
    def fatal(self) -> bool:
        """Whether the line is expected to say Fatal."""
        return self.severity is not NvlinkSeverity.NON_FATAL


class DcgmEntry(Entry, frozen=True, kw_only=True):
    """What one error code of DCGM's health watches and diagnostics means; one row of `dcgm.csv`."""

    code: Code
    name: Name
    """Without the prefix DCGM_FR_."""
    severity: str
    """DCGM's own: MONITOR, ISOLATE, UNKNOWN, TRIAGE, CONFIG or RESET."""
    category: str
    subsystem: Subsystem


class WatchKind(StrEnum):
    """What a row of `dcgm-health.csv` names."""

    SYSTEM = "system"
    STATUS = "status"


class DcgmWatch(msgspec.Struct, frozen=True, kw_only=True):
    """A health watch of DCGM, or a value that one can have; one row of `dcgm-health.csv`."""

    KEYS: ClassVar[tuple[str, ...]] = ("kind", "name")

    kind: WatchKind
    value: int
    """The bit of a watch, the number of a status."""
    name: Name
    words: str
    """How `dcgmi` prints it; several forms are separated by a slash."""
    subsystem: Subsystem
    text: Text

    @property
    def key(self) -> tuple[object, ...]:
        """The values of the key columns."""
        return (self.kind, self.name)


class HardwareEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine type should have; one row of `hardware.csv`."""

    KEYS: ClassVar[tuple[str, ...]] = ("instance_type",)

    instance_type: Name
    gpus: int = 0
    efa: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        """The values of the key columns."""
        return (self.instance_type,)


class KernelLineEntry(Entry, frozen=True, kw_only=True):
    """What one kind of kernel line without an NVIDIA code means; one row of `kernel-lines.csv`."""

    KEYS: ClassVar[tuple[str, ...]] = ("kind",)

    kind: Annotated[str, Meta(pattern="^[a-z]{2,12}/[a-z0-9-]{2,32}$")]
    subsystem: Subsystem
    role: Role
    rank: Annotated[int, Meta(ge=1, le=RANK_LAST)]
    reason: Reason
    proof: Proof
    expiry_s: Annotated[int, Meta(ge=0)]
    count_min: CountMin = 1
    """This many within the window, on the same device, make a fault; fewer are only counted."""
    count_window_s: CountWindow = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count_min > 1 and (self.role is not Role.LEADER or not self.count_window_s):
            raise ValueError("count_min above 1 goes with role leader and a count_window_s")
        if (self.fault_class is FaultClass.APPLICATION) is not (self.role is Role.APPLICATION):
            raise ValueError(f"class {FaultClass.APPLICATION} goes with role application and no other")
        if self.proof is Proof.EXPIRY and not self.expiry_s:
            raise ValueError(f"proof {self.proof} needs an expiry_s")
