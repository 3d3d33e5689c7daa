"""The polled sources of a machine, in one place: the agent polls them for ever, `outlast check` twice.

A new source is one `Polled` here. NVML, the PCI bus and the kernel log are not in this list: they have
rhythms of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outlast.health.checks.gpu_presence import counted
from outlast.model.observation import GpuSurvey, PciSurvey
from outlast.ports.clock import Clock
from outlast.ports.node import GpuReader, Polled


@dataclass(frozen=True, slots=True)
class Places:
    """Where the machine that is looked at has its files."""

    host_root: Path = Path("/")
    proc_root: Path = Path("/proc")


def build(places: Places, clock: Clock) -> tuple[Polled, ...]:
    """Every polled source that this machine may have; one that has nothing to look at says so itself."""
    del places, clock
    return ()


async def survey_gpus(reader: GpuReader, pci: PciSurvey | None) -> GpuSurvey:
    """Ask NVML about the GPUs that the bus lists as ours; NVML's own list would hide a lost one."""
    addresses = tuple(counted(pci)) if pci is not None and pci.readable else ()
    if addresses:
        return await reader.survey(addresses)
    if pci is not None and pci.readable:
        return GpuSurvey(complete=True, message="there is no GPU to ask")
    return GpuSurvey(message="the PCI bus cannot be read, so nobody knows which GPUs to ask")
