"""What a check declares and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.finding import Assessment, Event
from outlast.health.sources.facts import Fact
from outlast.model.observation import GpuSurvey, PciSurvey


class Source(StrEnum):
    """Which new reading makes a level check run."""

    GPU = "NVML"
    PCI = "PCI"


class KnownGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as last seen; kept on disk, because NVML is gone when it matters."""

    pci_address: str
    uuid: str = ""
    serial: str = ""
    name: str = ""
    index: int | None = None


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine should have: the machine type's table, what was learned, or an override."""

    gpus: int = 0
    efa: int = 0
    known_gpus: tuple[KnownGpu, ...] = ()
    known_efa: tuple[str, ...] = ()


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a level check may look at."""

    expected: Expected
    pci: PciSurvey | None
    gpu: GpuSurvey | None
    initializing: bool
    """The driver or the machine came up moments ago and not everything has been seen once."""
    kernel_log_lost: str
    """Why the kernel log cannot be read; empty while it can."""


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
    sources: frozenset[Source]
    run: Callable[[View], Assessment | None]
    """None: this poll could not judge anything, so nothing opens and nothing clears."""
