"""The polled sources of a machine, in one place: the agent polls them for ever, `outlast check` twice.

A new source is one `Polled` here. NVML, the PCI bus and the kernel log are not in this list: they have
rhythms of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outlast.adapters.linux.guarded_files import GuardedFiles
from outlast.adapters.linux.host import LinuxHost
from outlast.adapters.linux.processes import ProcProcesses
from outlast.adapters.linux.rdma import SysfsRdma
from outlast.health.checks.gpu_presence import counted
from outlast.health.verdict.broken import place_of
from outlast.model.observation import GpuSurvey, PciSurvey, Survey, SurveyProblem
from outlast.ports.clock import Clock
from outlast.ports.node import GpuReader, PciBus, Polled, Wanted

RDMA_INTERVAL_S: Final = 30.0
"""Counters of EFA are commands to the device: no more often than this."""
PROCESSES_INTERVAL_S: Final = 30.0
"""Two samples make a minute, after which a sleep in the driver counts."""
HOST_INTERVAL_S: Final = 60.0

DCGM_AUTO: Final = "auto"
DCGM_OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class Places:
    """Where the machine that is looked at has its files."""

    host_root: Path = Path("/")
    proc_root: Path = Path("/proc")
    dcgm: str = DCGM_AUTO
    """`auto`: this machine's host engine, where `dcgmi` is installed; `off`; or the address of another."""
    dcgm_exporter: str = ""
    """Address of dcgm-exporter's page; empty: none is asked."""


def build(places: Places, clock: Clock) -> tuple[Polled, ...]:
    """Every polled source that this machine may have; one that has nothing to look at says so itself."""
    return (
        Polled(_rdma(places, clock), RDMA_INTERVAL_S, "RDMA"),
        Polled(ProcProcesses(places.proc_root, clock=clock), PROCESSES_INTERVAL_S, "processes"),
        Polled(LinuxHost(places.host_root, places.proc_root), HOST_INTERVAL_S, "host"),
        *_dcgm(places, clock),
    )


def _rdma(places: Places, clock: Clock) -> SysfsRdma:
    return SysfsRdma(places.host_root, clock=clock, files=GuardedFiles(proc=places.proc_root))


def _dcgm(places: Places, clock: Clock) -> tuple[Polled, ...]:
    """Nothing is imported for a machine without DCGM."""
    polled = []
    if places.dcgm != DCGM_OFF:
        from outlast.adapters.dcgm.find import find_dcgmi

        if (command := find_dcgmi(places.host_root)) is not None:
            from outlast.adapters.dcgm.survey import POLL_INTERVAL_S, DcgmSurveyor
            from outlast.adapters.dcgm.tool import DcgmTool

            host = "" if places.dcgm == DCGM_AUTO else places.dcgm
            tool = DcgmTool(command, clock=clock, host=host)
            # Engines are counted where the asked one runs.
            proc = None if host else places.proc_root
            polled.append(
                Polled(DcgmSurveyor(tool, clock=clock, proc=proc), POLL_INTERVAL_S, "DCGM", asks_gpus=True)
            )
    if places.dcgm_exporter:
        from outlast.adapters.dcgm.exporter import POLL_INTERVAL_S as EXPORTER_INTERVAL_S
        from outlast.adapters.dcgm.exporter import DcgmExporterSurveyor

        exporter = DcgmExporterSurveyor(places.dcgm_exporter, clock=clock)
        polled.append(Polled(exporter, EXPORTER_INTERVAL_S, "DCGM exporter"))
    return tuple(polled)


async def ask(source: Polled, wanted: Wanted) -> Survey | Exception:
    """Its survey, or the error of a source that breaks its promise never to raise: nobody ends for it."""
    try:
        return await source.surveyor.survey(wanted)
    except Exception as error:
        return error


def survey_bus(bus: PciBus) -> PciSurvey:
    """The bus, unreadable when reading it fails in our own code."""
    try:
        return bus.survey()
    except Exception as error:
        return PciSurvey(readable=False, message=f"reading it failed ({place_of(error)})")


async def survey_gpus(reader: GpuReader, pci: PciSurvey | None, *, closely: bool = False) -> GpuSurvey:
    """Ask NVML about the GPUs that the bus lists as ours; NVML's own list would hide a lost one.

    Without a driver nobody is asked: opening NVML may load one, in the middle of somebody's upgrade.
    """
    if pci is not None and pci.readable and pci.gpus and pci.driver_loaded is False:
        await reader.release()
        return GpuSurvey(
            problem=SurveyProblem.DRIVER_NOT_LOADED, message="the NVIDIA kernel driver is not loaded"
        )
    addresses = tuple(counted(pci)) if pci is not None and pci.readable else ()
    if addresses:
        try:
            return await reader.survey(addresses, closely=closely)
        except Exception as error:
            return GpuSurvey(problem=SurveyProblem.FAILED, message=f"asking NVML failed ({place_of(error)})")
    if pci is not None and pci.readable:
        return GpuSurvey(complete=True, message="there is no GPU to ask")
    return GpuSurvey(message="the PCI bus cannot be read, so nobody knows which GPUs to ask")
