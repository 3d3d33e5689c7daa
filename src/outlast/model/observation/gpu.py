"""GPUs as NVML sees them. A tool that hung says so, and a value nobody gave is None, never zero."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from outlast.model.observation.base import Reading, Survey


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


class GpuSurvey(Survey, frozen=True, kw_only=True):
    """One pass over all GPUs by NVML."""

    source: ClassVar[str] = "NVML"

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
