"""What the sources of a node deliver: readings, not yet judged.

A source that fails delivers its failure as a reading too, so that "the tool hung" is never mistaken
for "the GPU is bad" or, worse, for "nothing to report".
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

KERNEL_FACILITY = 0
"""Only records of this facility come from the kernel; user space can write all others to /dev/kmsg."""

KERNEL_LINE_BYTES_MAX = 64 * 1024
"""A longer line is cut here, and the cut is reported as a gap."""

KERNEL_PROPERTIES_MAX = 16


class Reading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all readings."""


class KernelRecord(Reading, frozen=True, kw_only=True):
    """One kernel log record. `text` is unescaped and may hold several lines."""

    sequence: int
    timestamp_us: int
    """Kernel clock since boot; orders records, joins nothing else."""
    priority: int
    """facility * 8 + level, as /dev/kmsg gives it."""
    flags: str = "-"
    text: str = ""
    properties: tuple[str, ...] = ()
    """The record's own `KEY=value` lines (SUBSYSTEM, DEVICE); never to be searched as text."""
    replayed: bool = False
    """Was already in the log when the reader opened it; its arrival time says nothing about its age."""

    @property
    def facility(self) -> int:
        """0 for the kernel itself."""
        return self.priority >> 3


class KernelLogGap(Reading, frozen=True, kw_only=True):
    """Records were lost (overwritten before they were read) or could not be parsed."""

    lost: int
    """How many at least; 0 where only the kind of trouble is known."""
    reason: str


class KernelLogCaughtUp(Reading, frozen=True, kw_only=True):
    """All that was in the log has been delivered: the log is readable, and what follows is live.

    Comes once after each successful opening, so also tells that a lost log is back.
    """

    replayed: int = 0
    """Records delivered since the opening."""


class KernelLogLost(Reading, frozen=True, kw_only=True):
    """The kernel log cannot be read at all; the reader keeps trying."""

    message: str


class SurveyProblem(StrEnum):
    """Why a survey has no or only part of an answer."""

    HUNG = "Hung"
    """A call missed its deadline; the worker was killed and not waited for."""
    CRASHED = "Crashed"
    GARBAGE = "Garbage"
    LIBRARY_MISSING = "LibraryMissing"
    DRIVER_NOT_LOADED = "DriverNotLoaded"
    DRIVER_MISMATCH = "DriverMismatch"
    NO_PERMISSION = "NoPermission"
    TOO_MANY_LEAKED_WORKERS = "TooManyLeakedWorkers"
    FAILED = "Failed"


class GpuReading(Reading, frozen=True, kw_only=True):
    """One GPU as NVML sees it. None means "not supported or not readable", never zero."""

    pci_address: str
    """Lower case dddd:bb:dd.f."""
    index: int | None = None
    uuid: str = ""
    serial: str = ""
    name: str = ""
    error: str = ""
    """Name of the NVML return that made this GPU unreadable, such as GPU_IS_LOST; empty when readable."""
    recovery_action: int | None = None
    """NVML field 230: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    ecc_uncorrected_volatile: int | None = None
    temperature_c: int | None = None
    clocks_event_reasons: int | None = None
    mig_enabled: bool | None = None
    persistence_enabled: bool | None = None
    """Off: the driver forgets recovery actions 2 and 3 when its last client leaves."""
    sram_threshold_exceeded: bool | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    fabric_state: int | None = None
    """0 not supported, 1 not started, 2 in progress, 3 completed."""
    fabric_summary: int | None = None
    """0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity."""
    process_ids: tuple[int, ...] | None = None
    """Host process ids that compute on this GPU, at most 64."""


class GpuSurvey(Reading, frozen=True, kw_only=True):
    """One pass over all GPUs by NVML."""

    gpus: tuple[GpuReading, ...] = ()
    driver_version: str = ""
    complete: bool = False
    """Every GPU asked for has answered, well or badly."""
    problem: SurveyProblem | None = None
    problem_gpu: str = ""
    """PCI address of the GPU whose call hung or crashed; empty when it was the driver as a whole."""
    message: str = ""
    duration_s: float = 0.0
    leaked_workers: int = 0


class PciDevice(Reading, frozen=True, kw_only=True):
    """One PCI function as sysfs shows it."""

    address: str
    vendor: int
    device: int
    class_code: int
    driver: str = ""
    link_width: int | None = None
    link_width_max: int | None = None
    responds: bool = True
    """False when configuration space reads as all ones: the device is gone though still listed."""


class PciSurvey(Reading, frozen=True, kw_only=True):
    """All NVIDIA display functions and Amazon EFA functions of the machine, virtual functions left out."""

    gpus: tuple[PciDevice, ...] = ()
    efa: tuple[PciDevice, ...] = ()
    """EFA functions that the efa driver runs: these count."""
    efa_unbound: tuple[PciDevice, ...] = ()
    """EFA functions that are on the bus without the efa driver."""
    message: str = ""
    """Why the bus could not be read; empty when it could."""
    readable: bool = True


class MachineFacts(Reading, frozen=True, kw_only=True):
    """What does not change within a boot."""

    boot_id: str
    instance_type: str = ""
    kernel_release: str = ""
