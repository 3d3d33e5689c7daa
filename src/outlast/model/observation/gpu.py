"""GPUs as NVML sees them. A tool that hung says so, and a value nobody gave is None, never zero."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, Final

from outlast.model.observation.base import CounterReading, Reading, Survey

_U32_MAX: Final = 2**32 - 1
_U64_MAX: Final = 2**64 - 1
LINKS_NAMED_MAX: Final = 1024
"""Names of links that are kept: 16 GPUs have 288, and names are asked for with every reading."""


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
    RELEASED = "Released"
    """Nobody was asked, on purpose: somebody needs the GPUs without clients."""
    FAILED = "Failed"


class GpuDetail(Reading, frozen=True, kw_only=True):
    """The signals of one GPU that change slowly or cost much, read about once a minute."""

    ecc_enabled: bool | None = None
    ecc_corrected_aggregate: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    remap_histogram: tuple[int, int, int, int, int] | None = None
    """Memory banks by the spare rows they have left: all, most, some, few, none."""
    rows_inactive_corrected: int | None = None
    rows_inactive_uncorrected: int | None = None
    """Row replacements that were undone, because a whole bank was replaced instead."""
    banks_remapped: int | None = None
    banks_inactive: int | None = None
    bank_groups_full: int | None = None
    bank_groups_exhausted: int | None = None
    bank_remap_pending: bool | None = None
    channel_repair_pending: bool | None = None
    tpc_repair_pending: bool | None = None
    memory_unrepairable: bool | None = None
    pages_retired_corrected: int | None = None
    pages_retired_uncorrected: int | None = None
    pages_pending: bool | None = None
    """Volta and older, which retire pages where newer GPUs replace rows."""
    pcie_width_max: int | None = None
    pcie_generation_max: int | None = None
    """The most that this GPU in this slot can do."""
    shutdown_margin_c: int | None = None
    slowdown_margin_c: int | None = None
    """`temperature_margin_c` at which the hardware shuts down, and at which it slows down."""
    nvlinks: tuple[bool, ...] | None = None
    """Whether each link is up; empty or None where the GPU has none."""
    nvlink_errors: dict[str, tuple[int | None, ...]] = {}
    """Error counters by name, one value a link."""
    c2c_errors: dict[str, int] = {}
    power_smoothing_enabled: bool | None = None
    power_smoothing_life_percent: int | None = None
    """What is left of the life of the circuit that smooths the power draw."""


class GpuReading(Reading, frozen=True, kw_only=True):
    """One GPU as NVML sees it. None means "not supported or not readable", never zero."""

    pci_address: str
    """Lower case dddd:bb:dd.f."""
    index: int | None = None
    minor: int | None = None
    """N of /dev/nvidiaN."""
    device_node: str = ""
    """What is wrong with /dev/nvidiaN; empty when nothing is, or when it was not looked at."""
    uuid: str = ""
    serial: str = ""
    name: str = ""
    error: str = ""
    """Name of the NVML return that made this GPU unreadable, such as GPU_IS_LOST; empty when readable."""
    recovery_action: int | None = None
    """NVML field 230: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    """Rows replaced over the life of the board, by the kind of error that made it necessary."""
    ecc_corrected_volatile: int | None = None
    ecc_uncorrected_volatile: int | None = None
    """Since the driver was loaded."""
    sram_uncorrected: int | None = None
    """Over the life of the board."""
    sram_threshold_exceeded: bool | None = None
    temperature_c: int | None = None
    temperature_margin_c: int | None = None
    """Degrees left until the GPU has to slow down."""
    clocks_event_reasons: int | None = None
    sw_thermal_ns: int | None = None
    hw_thermal_ns: int | None = None
    power_brake_ns: int | None = None
    """How long the clocks were held down for this reason, since the driver was loaded."""
    performance_state: int | None = None
    """0 is the highest, 15 the lowest."""
    pcie_width: int | None = None
    pcie_generation: int | None = None
    pcie_errors: dict[str, int] = {}
    mig_enabled: bool | None = None
    mig_pending: bool | None = None
    """The mode after the next reset."""
    mig_instances: tuple[int, ...] | None = None
    """Ids of the GPU instances, at most 16."""
    mig_changed: bool = False
    """The layout moves: in each of the last polls the instances were others than before."""
    persistence_enabled: bool | None = None
    """Off: the driver forgets recovery actions 2 and 3 when its last client leaves."""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    fabric_state: int | None = None
    """0 not supported, 1 not started, 2 in progress, 3 completed."""
    fabric_status: int | None = None
    """NVML return code of the completed probe; 0 is success."""
    fabric_clique: int | None = None
    fabric_health_mask: int | None = None
    fabric_summary: int | None = None
    """0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity."""
    process_ids: tuple[int, ...] | None = None
    """Host process ids that compute on this GPU, at most 64."""
    process_instances: dict[int, int] = {}
    """GPU instance of each process that computes in one."""
    detail: GpuDetail | None = None

    def counters(self) -> Iterable[CounterReading]:
        """Counters that every poll reads."""
        for name in _COUNTERS:
            value = getattr(self, name)
            if value is not None:
                yield CounterReading(device=self.pci_address, name=name, value=value, limit=_U64_MAX)
        for name, value in self.pcie_errors.items():
            yield CounterReading(device=self.pci_address, name=f"pcie_{name}", value=value, limit=_U32_MAX)


_COUNTERS: Final = (
    "ecc_corrected_volatile",
    "ecc_uncorrected_volatile",
    "sram_uncorrected",
    "sw_thermal_ns",
    "hw_thermal_ns",
    "power_brake_ns",
)


class GpuSurvey(Survey, frozen=True, kw_only=True):
    """One pass over all GPUs by NVML."""

    source: ClassVar[str] = "NVML"

    gpus: tuple[GpuReading, ...] = ()
    driver_version: str = ""
    """Of the driver that NVML talks to."""
    library_version: str = ""
    """Of NVIDIA's library on disk, which new programs will load; empty where its name does not say."""
    complete: bool = False
    """Every GPU asked for has answered, well or badly."""
    detailed: bool = False
    """This pass has read the details too; else they are the last ones that were read."""
    problem: SurveyProblem | None = None
    problem_gpu: str = ""
    """PCI address of the GPU whose call hung or crashed; empty when it was the driver as a whole."""
    message: str = ""
    duration_s: float = 0.0
    leaked_workers: int = 0

    def counters(self) -> Iterable[CounterReading]:
        """Errors and lost time of each readable GPU; those of links only where they were read anew."""
        for gpu in self.gpus:
            if gpu.error:
                continue
            yield from gpu.counters()
            if self.detailed and gpu.detail is not None:
                yield from _detail_counters(gpu.pci_address, gpu.detail)


@lru_cache(LINKS_NAMED_MAX)
def link_device(pci_address: str, link: int) -> str:
    """The name of one NVLink among the devices that have counters."""
    return f"{pci_address}/link{link}"


def _detail_counters(address: str, detail: GpuDetail) -> Iterable[CounterReading]:
    for name, by_link in detail.nvlink_errors.items():
        counter = f"nvlink_{name}"
        for link, value in enumerate(by_link):
            if value is not None:
                device = link_device(address, link)
                yield CounterReading(device=device, name=counter, value=value, limit=_U64_MAX)
    for name, value in detail.c2c_errors.items():
        yield CounterReading(device=address, name=f"c2c_{name}", value=value, limit=_U64_MAX)
