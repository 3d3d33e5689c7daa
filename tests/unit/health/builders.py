"""A node as the judge sees it, moved by virtual time: `scene.xid(3, 79)`, `scene.poll()`, `scene.status`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from outlast.health.catalogue import Catalogue, builtin
from outlast.health.verdict import Judgement, Moment, Settings, judge, restore, start, to_bytes
from outlast.health.verdict.judge import Input
from outlast.model.health import Fault, NodeHealthStatus, Subsystem, SubsystemVerdict
from outlast.model.observation import (
    GpuSurvey,
    KernelLogCaughtUp,
    KernelRecord,
    MachineFacts,
    PciSurvey,
    ProcessOwner,
    ProcessSurvey,
    SurveyProblem,
)
from outlast.sim.node import FakePciBus, Hardware

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
POLL_S = 15.0
KERNEL = 4
"""Priority of the driver's lines: facility 0, level warning."""
USER = 12
"""The same level from user space."""


def record(text: str, sequence: int = 1, at_us: int = 0, priority: int = KERNEL) -> KernelRecord:
    """One kernel record."""
    return KernelRecord(sequence=sequence, timestamp_us=at_us, priority=priority, flags="c", text=text)


class Scene:
    """One healthy 8-GPU node with 32 EFA devices, checked once."""

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        checked: bool = True,
        efa: int = 32,
        catalogue: Catalogue | None = None,
    ) -> None:
        self.catalogue = catalogue or builtin()
        self.settings = settings or Settings()
        self.hardware = Hardware.h100("n", efa=efa)
        self.bus = FakePciBus(self.hardware)
        self.time_s = 1000.0
        self.booted_s = 0.0
        self.wall_step_s = 0.0
        self.suspended_s = 0.0
        self.boot = "boot-1"
        self.problem: SurveyProblem | None = None
        self.leaked_workers = 0
        self.sequence = 0
        self.state = start(self.boot, "p5.48xlarge", self.settings, self.now)
        self.answer = judge(self.state, [], self.now, self.catalogue)
        if checked:
            self.tell(KernelLogCaughtUp())
            self.poll()

    @property
    def now(self) -> Moment:
        """The present moment."""
        return Moment(EPOCH + timedelta(seconds=self.time_s + self.wall_step_s), self.uptime_s)

    @property
    def uptime_s(self) -> float:
        """Seconds since this boot: the clocks of the kernel and of the agent."""
        return self.time_s - self.booted_s

    def tell(self, *readings: Input) -> Judgement:
        """Readings arrive."""
        self.answer = judge(self.state, readings, self.now, self.catalogue)
        self.state = self.answer.state
        return self.answer

    def wait(self, seconds: float) -> Judgement:
        """Time passes and nothing arrives."""
        self.time_s += seconds
        return self.tell()

    def line(self, text: str, *, priority: int = KERNEL, replayed: bool = False) -> Judgement:
        """The kernel prints a line."""
        self.sequence += 1
        printed = record(text, self.sequence, int(self.uptime_s * 1e6), priority)
        return self.tell(msgspec.structs.replace(printed, replayed=replayed))

    def xid(
        self,
        index: int,
        code: int,
        text: str = "text",
        *,
        pid: int | None = None,
        name: str = "python3",
        instance: int | None = None,
        replayed: bool = False,
    ) -> Judgement:
        """The driver prints a Xid."""
        where = self.gpu(index)[:-2] + (f" GPU-I:{instance:02d}" if instance is not None else "")
        text = f"pid={pid}, name={name}, {text}" if pid is not None else text
        return self.line(f"NVRM: Xid (PCI:{where}): {code}, {text}", replayed=replayed)

    def gpu(self, index: int) -> str:
        """PCI address of a GPU."""
        return sorted(self.hardware.gpus)[index]

    def survey(self) -> GpuSurvey:
        """What NVML answers now."""
        if self.problem is not None:
            return GpuSurvey(problem=self.problem, message="no answer", leaked_workers=self.leaked_workers)
        there = self.hardware
        readings = []
        for address, reading in sorted(there.gpus.items()):
            if address in there.unplugged:
                continue
            lost = address in there.off_bus
            readings.append(
                msgspec.structs.replace(reading, error="GPU_IS_LOST", recovery_action=None)
                if lost
                else reading
            )
        return GpuSurvey(gpus=tuple(readings), complete=True, detailed=True)

    def pci(self) -> PciSurvey:
        """What the bus shows now."""
        return self.bus.survey()

    def poll(self, times: int = 1, every_s: float = POLL_S) -> Judgement:
        """The polls of the next `times` intervals."""
        for _ in range(times):
            self.time_s += every_s
            self.tell(self.pci(), self.survey())
        return self.answer

    def reboot(self) -> Judgement:
        """The machine starts again, and the agent in it goes on from its saved state."""
        saved = to_bytes(self.state)
        self.boot = f"boot-{int(self.boot[5:]) + 1}"
        self.time_s += 120
        self.booted_s = self.time_s - 30
        self.sequence = 0
        self.state, problem = restore(saved, self.boot, "p5.48xlarge", self.settings, self.now)
        assert not problem
        return self.tell(self.facts(), KernelLogCaughtUp())

    def facts(self) -> MachineFacts:
        """Which boot this is."""
        return MachineFacts(boot_id=self.boot, instance_type="p5.48xlarge", suspended_s=self.suspended_s)

    def owners(self, **pods: int) -> Judgement:
        """Processes on GPUs and the pods they belong to."""
        owned = tuple(ProcessOwner(pid=pid, pod_uid=pod) for pod, pid in pods.items())
        return self.tell(ProcessSurvey(owners=owned, whole_machine=True))

    @property
    def story(self) -> list[tuple[str, str, str]]:
        """Each fault as what it is about, its root and its cure; not its id, which the first line gives."""
        found = [
            (fault.gpu.pci_address if fault.gpu else fault.device, fault.code, fault.fault_class.value)
            for fault in self.status.faults
        ]
        return sorted(found)

    def restart(self) -> str:
        """The agent process ends and starts again; returns why its memory could not be used."""
        saved = to_bytes(self.state)
        self.time_s += 30
        self.state, problem = restore(saved, self.boot, "p5.48xlarge", self.settings, self.now)
        self.tell()
        return problem

    @property
    def status(self) -> NodeHealthStatus:
        """What NodeHealth says."""
        return self.answer.status

    @property
    def fault(self) -> Fault:
        """The only fault."""
        [fault] = self.answer.status.faults
        return fault

    def verdict(self, subsystem: Subsystem = Subsystem.GPU) -> SubsystemVerdict:
        """One verdict."""
        found = self.answer.status.verdict(subsystem)
        assert found is not None
        return found

    def says(self, subsystem: Subsystem = Subsystem.GPU) -> tuple[str, str]:
        """Verdict and reason."""
        found = self.verdict(subsystem)
        return found.verdict.value, found.reason
