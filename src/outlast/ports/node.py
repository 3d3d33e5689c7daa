"""What the node agent needs from the machine it runs on.

Each source delivers its own failure as a reading; none of these methods raises for a sick machine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec

from outlast.model.observation import (
    GpuSurvey,
    KernelLogCaughtUp,
    KernelLogGap,
    KernelLogLost,
    KernelRecord,
    MachineFacts,
    PciSurvey,
    Survey,
)

KernelLogItem = KernelRecord | KernelLogGap | KernelLogCaughtUp | KernelLogLost


class KernelLog(Protocol):
    """The kernel's own words, in order, from the record after the saved position."""

    def records(self) -> AsyncGenerator[KernelLogItem, None]:
        """Follow for ever, one follower at a time: each record once per saved position, gaps counted."""
        ...

    def save_position(self) -> None:
        """All records delivered so far were judged. Never raises; a full disk costs durability."""
        ...


class GpuReader(Protocol):
    """NVML behind a hard deadline."""

    async def survey(self, pci_addresses: tuple[str, ...], *, closely: bool = False) -> GpuSurvey:
        """Ask about these GPUs; returns within the reader's stated deadline, whatever the driver does.

        `closely`: something has happened, so what is otherwise asked less often is asked now too.
        """
        ...

    async def release(self) -> bool:
        """Let go of the GPUs, so that a reset or driver unload can succeed; the next survey takes them again.

        True when no process of ours holds a GPU any more.
        """
        ...


class Wanted(msgspec.Struct, frozen=True):
    """What is known by now, for sources that look at one thing closer than at others."""

    gpu_addresses: tuple[str, ...] = ()
    process_ids: tuple[int, ...] = ()
    """Host process ids that NVML last listed on GPUs."""


class Surveyor(Protocol):
    """Any other polled source: network devices, services, processes, DCGM, disks."""

    async def survey(self, wanted: Wanted) -> Survey:
        """Look once; returns within the adapter's stated deadline, and its own failure is in the answer."""
        ...

    async def aclose(self) -> None:
        """Let go of everything at once; waits for nothing that may hang."""
        ...


class Polled(msgspec.Struct, frozen=True):
    """A source and how often it is asked."""

    surveyor: Surveyor
    interval_s: float
    name: str
    asks_gpus: bool = False
    """It makes somebody ask the GPUs, so it rests while they have to be free."""


class PciBus(Protocol):
    """PCI enumeration from sysfs."""

    def survey(self) -> PciSurvey:
        """List the devices we care about."""
        ...


class Machine(Protocol):
    """Identity of the machine and of this boot."""

    def facts(self) -> MachineFacts:
        """Boot id and what else is fixed until the next boot."""
        ...


class StateFile(Protocol):
    """A small file that outlives the process. Losing it costs repeated work, never correctness."""

    problem: str
    """Why the last load or save did not work, in a few words; empty while it does."""

    def load(self) -> bytes | None:
        """The last saved content, or None when there is none or it is unreadable."""
        ...

    def save(self, content: bytes) -> bool:
        """Replace the content atomically; False (and one warning) when the disk refuses."""
        ...
