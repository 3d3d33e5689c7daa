"""One look at a simulated machine: how often it polls, what it remembers, what it says of its sources."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from outlast.agent.look import POLLS_MAX, Found, Look, Seen
from outlast.health.catalogue import builtin
from outlast.health.verdict import Settings
from outlast.model.health import FaultState, Subsystem, Verdict
from outlast.model.observation import (
    GpuReading,
    GpuSurvey,
    KernelLogCaughtUp,
    KernelLogLost,
    KernelRecord,
    MachineFacts,
    PciDevice,
    PciSurvey,
    SurveyProblem,
)

pytestmark = pytest.mark.asyncio
GPU = "0000:10:00.0"
UPTIME_S = 50_000.0


class Time:
    """A clock that jumps over every sleep."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.passed_s)

    def monotonic(self) -> float:
        return UPTIME_S + self.passed_s

    async def sleep(self, delay_s: float) -> None:
        self.passed_s += delay_s


class Machine:
    """One GPU; what NVML says changes from poll to poll."""

    def __init__(self, *readings: GpuReading, lines: tuple[str, ...] = (), log_lost: str = "") -> None:
        self.readings = list(readings) or [well()]
        self.asked = 0
        self.lines = lines
        self.log_lost = log_lost
        self.problem: SurveyProblem | None = None
        self.time = Time()

    def facts(self) -> MachineFacts:
        return MachineFacts(boot_id="boot")

    async def survey(self, pci_addresses: tuple[str, ...], *, closely: bool = False) -> GpuSurvey:
        reading = self.readings[min(self.asked, len(self.readings) - 1)]
        self.asked += 1
        if self.problem is not None:
            return GpuSurvey(problem=self.problem, message="as scripted")
        return GpuSurvey(gpus=(reading,), complete=True, driver_version="580")

    async def release(self) -> bool:
        return True

    async def records(self):  # type: ignore[no-untyped-def]
        if self.log_lost:
            yield KernelLogLost(message=self.log_lost)
            return
        for number, line in enumerate(self.lines):
            yield KernelRecord(
                sequence=number, timestamp_us=40_000_000_000 + number, priority=4, text=line, replayed=True
            )
        yield KernelLogCaughtUp(replayed=len(self.lines))

    def save_position(self) -> None:
        raise AssertionError("a look writes nothing")

    async def look(self, **options: object) -> Found:
        values = {
            "machine": self,
            "pci": Bus(),
            "gpu_reader": self,
            "kernel_log": self,
            "polled": (),
            "memory": None,
            "settings": Settings(),
            "catalogue": builtin(),
            "clock": self.time,
            "deadline_s": 60.0,
            **options,
        }
        return await Look(**values).run()  # type: ignore[arg-type]


class Bus:
    def survey(self) -> PciSurvey:
        device = PciDevice(address=GPU, vendor=0x10DE, device=0x2330, class_code=0x0302, driver="nvidia")
        return PciSurvey(gpus=(device,))


def well(**changes: object) -> GpuReading:
    values = {"pci_address": GPU, "uuid": "GPU-1", "serial": "1", "index": 0, "recovery_action": 0, **changes}
    return GpuReading(**values)  # type: ignore[arg-type]


def gpu_verdict(found: Found) -> Verdict:
    verdict = found.judgement.status.verdict(Subsystem.GPU)
    assert verdict is not None
    return verdict.verdict


async def test_a_healthy_machine_is_polled_twice() -> None:
    """Counters need two samples; more would only cost time."""
    machine = Machine()

    found = await machine.look()

    assert (found.polls, gpu_verdict(found)) == (2, Verdict.HEALTHY)
    assert machine.time.passed_s < 2


async def test_doubt_is_polled_until_it_stands() -> None:
    """RESET_REQUIRED needs three polls in the agent, so it does here."""
    machine = Machine(well(error="RESET_REQUIRED"))

    found = await machine.look()

    assert gpu_verdict(found) is Verdict.FAULTY
    assert 3 <= found.polls <= POLLS_MAX


async def test_a_gpu_that_comes_back_while_we_look_is_no_fault() -> None:
    """Somebody resets it: its handle fails for a moment."""
    machine = Machine(well(error="RESET_REQUIRED"), well())

    assert gpu_verdict(await machine.look()) is Verdict.HEALTHY


async def test_the_past_waits_for_proof_and_settling_gives_it_time() -> None:
    """A memory error of yesterday: unknown at once; over when two polls a minute apart are clean."""
    lines = ("NVRM: Xid (PCI:0000:10:00): 48, pid=1, name=x, DBE (double bit error) ECC Error",)
    clean = well(remap_pending=False, remap_failed=False, ecc_uncorrected_volatile=0)
    at_once = await Machine(clean, lines=lines).look()
    settled = await Machine(clean, lines=lines).look(settle_s=150.0, deadline_s=300.0)

    assert [fault.state for fault in at_once.judgement.state.faults] == [FaultState.AWAITING_PROOF]
    assert gpu_verdict(at_once) is Verdict.UNKNOWN
    assert settled.judgement.state.faults == ()
    assert gpu_verdict(settled) is Verdict.HEALTHY


async def test_a_log_that_cannot_be_read_is_a_failed_source() -> None:
    """Everything else is looked at; the whole is not green."""
    found = await Machine(log_lost="the kernel log may not be opened").look()

    reports = {report.name: report.seen for report in found.sources}
    assert reports["kernel log"] is Seen.FAILED
    assert reports["NVML"] is Seen.READ
    assert found.judgement.status.state == Verdict.UNKNOWN


async def test_sources_are_told_in_the_same_order_every_time() -> None:
    """The bus, the log, NVML, then the others."""
    found = await Machine().look()

    assert [report.name for report in found.sources] == ["PCI bus", "kernel log", "NVML"]


async def test_a_hung_nvml_is_not_polled_for_ever() -> None:
    """The verdict stands with the first hang."""
    machine = Machine()
    machine.problem = SurveyProblem.HUNG

    found = await machine.look()

    assert found.polls == 1
    monitor = found.judgement.status.verdict(Subsystem.MONITOR)
    assert monitor is not None
    assert monitor.verdict is Verdict.FAULTY


async def test_what_follows_a_freshly_loaded_driver_is_late_and_not_lost() -> None:
    """The log says when the driver was loaded: 100 s ago, so devices may still arrive."""
    loaded = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025"
    machine = Machine(well(error="RESET_REQUIRED"), lines=(loaded,))
    machine.time.passed_s = 40_100 - UPTIME_S

    found = await machine.look()

    assert gpu_verdict(found) is Verdict.UNKNOWN


async def test_nothing_is_remembered_of_a_memory_that_is_unreadable() -> None:
    """A broken file of the agent is no reason not to look."""
    found = await Machine().look(memory=b"{broken")

    assert not found.remembered
    assert gpu_verdict(found) is Verdict.HEALTHY
    assert msgspec.json.encode(found.judgement.status)
