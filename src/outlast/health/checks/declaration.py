"""What a check declares and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.counters import CounterBook
from outlast.health.finding import Assessment, Event
from outlast.health.sources.facts import Fact
from outlast.model.observation import GpuSurvey, LinkLayer, PciSurvey, Survey

S = TypeVar("S", bound=Survey)


class KnownGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as last seen; kept on disk, because NVML is gone when it matters."""

    pci_address: str
    uuid: str = ""
    serial: str = ""
    name: str = ""
    index: int | None = None
    ecc_enabled: bool | None = None
    memory_total_bytes: int = 0
    nvlinks_up: int = 0
    pcie_width: int = 0
    """The most that this board has ever shown here; memory in its present ECC mode."""


class KnownPort(msgspec.Struct, frozen=True, kw_only=True):
    """An InfiniBand or RoCE port that was active on this machine; kept on disk, as it may not come back."""

    device: str
    """PCI address of its device."""
    number: int
    name: str = ""
    driver: str = ""
    link_layer: LinkLayer = LinkLayer.OTHER
    rate_gbps: float = 0.0
    """The fastest it ever was."""

    @property
    def nic(self) -> str:
        """What findings about its device are about: driver and address, as in the kernel log."""
        return f"{self.driver} {self.device}".strip()

    @property
    def key(self) -> str:
        """What findings about it are about."""
        return f"{self.nic}/port{self.number}"

    @property
    def place(self) -> str:
        """Where its counters are kept."""
        return f"{self.device}/port{self.number}"


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine should have: the machine type's table, what was learned, or an override."""

    gpus: int = 0
    efa: int = 0
    efa_max: int | None = None
    """The most that the machine type can have, or the operator's word; None where neither is known."""
    known_gpus: tuple[KnownGpu, ...] = ()
    known_efa: tuple[str, ...] = ()
    known_ports: tuple[KnownPort, ...] = ()


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a level check may look at."""

    expected: Expected
    pci: PciSurvey | None
    gpu: GpuSurvey | None
    initializing: bool
    """The driver or the machine came up moments ago and not everything has been seen once."""
    just_started: bool = False
    """The driver or the machine came up moments ago, whatever has been seen since."""
    kernel_log_lost: str
    """Why the kernel log cannot be read; empty while it can."""
    instance_type: str = ""
    surveys: Mapping[str, Survey] = {}
    """The newest survey of each further source."""
    counters: CounterBook = CounterBook()

    def newest(self, kind: type[S]) -> S | None:
        """The newest survey of this kind, or None before there was one."""
        survey = self.surveys.get(kind.source)
        return survey if isinstance(survey, kind) else None

    def grown(self, device: str, name: str, within_s: float) -> int | None:
        """By how much a counter grew within the last seconds; None when that cannot be known."""
        return self.counters.grown(device, name, within_s)


@dataclass(frozen=True, slots=True)
class EventCheck:
    """Judges one fact of the kernel log."""

    name: str
    about: str
    run: Callable[[Fact, Catalogue], Event | None]


@dataclass(frozen=True, slots=True)
class LevelCheck:
    """Judges the newest surveys, each time one of its sources delivered."""

    name: str
    about: str
    sources: frozenset[type[Survey]]
    run: Callable[[View], Assessment | None]
    """None: this poll could not judge anything, so nothing opens and nothing clears."""
