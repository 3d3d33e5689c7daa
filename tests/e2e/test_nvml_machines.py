"""Whole machines through NVIDIA's real bindings: what is read of them, and what the judge makes of it."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from outlast.adapters.nvml.reader import NvmlReader
from outlast.health.catalogue import builtin
from outlast.health.verdict import Judgement, Moment, Settings, judge, start
from outlast.model.health import FaultClass, Subsystem
from outlast.model.observation import (
    GpuSurvey,
    KernelLogCaughtUp,
    KernelRecord,
    PciDevice,
    PciSurvey,
    SurveyProblem,
)
from tests.contract.node.logs import RealTime
from tests.nvml import FakeNvml

pytestmark = pytest.mark.asyncio

DEADLINE_S = 1.5
POLL_S = 15.0
BOOTED_S = 1000.0
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Node:
    """A scripted machine whose surveys are judged; each poll is 15 s of the judge's time."""

    def __init__(self, nvml: FakeNvml, reader: NvmlReader) -> None:
        self.nvml = nvml
        self.reader = reader
        self.driver = "nvidia"
        self.time_s = BOOTED_S
        self.state = start("boot-1", "", Settings(), self._now)
        self.answer = self._tell(KernelLogCaughtUp())
        self.survey = GpuSurvey()
        self._lines = 0

    async def poll(self, times: int = 1) -> Judgement:
        """Ask the real worker so many times and judge each answer."""
        for _ in range(times):
            self.time_s += POLL_S
            self.survey = await self.reader.survey(self.nvml.addresses())
            self.answer = self._tell(self._bus(), self.survey)
        return self.answer

    async def settle(self) -> None:
        """A few polls, after which the driver came up long ago."""
        await self.poll(2)
        self.time_s += 600
        await self.poll(2)
        assert self.codes == []
        assert self.says(Subsystem.GPU)[0] == "Healthy"

    def line(self, text: str) -> None:
        """The kernel prints a line."""
        self._lines += 1
        at_us = int(self.time_s * 1e6)
        self.answer = self._tell(
            KernelRecord(sequence=self._lines, timestamp_us=at_us, priority=4, flags="c", text=text)
        )

    @property
    def codes(self) -> list[str]:
        """Of all faults."""
        return [fault.code for fault in self.answer.status.faults]

    @property
    def fault_class(self) -> FaultClass:
        """Of the only fault."""
        [fault] = self.answer.status.faults
        return fault.fault_class

    def says(self, subsystem: Subsystem) -> tuple[str, str]:
        """Verdict and reason."""
        found = self.answer.status.verdict(subsystem)
        assert found is not None
        return found.verdict.value, found.reason

    def _bus(self) -> PciSurvey:
        gpus = tuple(
            PciDevice(address=address, vendor=0x10DE, device=0x2330, class_code=0x0302, driver=self.driver)
            for address in self.nvml.addresses()
        )
        return PciSurvey(gpus=gpus, driver_loaded=self.driver == "nvidia", driver_module_version="580.95.05")

    def _tell(self, *readings: object) -> Judgement:
        answer = judge(self.state, readings, self._now, builtin())
        self.state = answer.state
        return answer

    @property
    def _now(self) -> Moment:
        return Moment(EPOCH + timedelta(seconds=self.time_s), self.time_s)


Make = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes nodes, and ends their workers."""
    made: list[Node] = []

    def node(model: str, gpus: int, *, old_driver: bool = False, installed: str = "") -> Node:
        nvml = FakeNvml(tmp_path, old_driver=old_driver).machine(model, gpus=gpus)
        if installed:
            nvml.install(tmp_path / "lib", installed)
        reader = NvmlReader(
            clock=RealTime(),
            environment=nvml.environment,
            poll_deadline_s=DEADLINE_S,
            retry_first_s=0.0,
            detail_interval_s=0.0,
            proc=tmp_path / "proc",
        )
        made.append(Node(nvml, reader))
        return made[-1]

    yield node
    for one in made:
        one.reader.close()


@pytest.mark.parametrize(
    ("model", "gpus", "links"),
    [("H100", 8, 18), ("B200", 8, 18), ("A100", 8, 12), ("V100", 4, 6), ("L4", 4, 0), ("L4", 1, 0)],
)
async def test_a_healthy_machine_is_healthy(make: Make, model: str, gpus: int, links: int) -> None:
    """Every model, with what it has and without what it lacks, for an hour of polls."""
    node = make(model, gpus)

    await node.settle()
    for _ in range(6):
        node.time_s += 600
        await node.poll()

    assert node.codes == []
    assert node.says(Subsystem.GPU) == ("Healthy", "GpusHealthy")
    detail = node.survey.gpus[0].detail
    assert detail is not None
    assert sum(detail.nvlinks or ()) == links
    assert {bool(gpu.serial) for gpu in node.survey.gpus} == {model != "L4"}


async def test_every_signal_arrives_under_its_name(make: Make) -> None:
    """Each value is scripted differently, so that none can stand in for another."""
    node = make("B200", 2)
    values = {
        "recovery_action": 0,
        "field_remap_corrected": 3,
        "field_remap_uncorrected": 4,
        "ecc_corrected_volatile": 5,
        "ecc_uncorrected_volatile": 6,
        "ecc_corrected_aggregate": 7,
        "ecc_uncorrected_aggregate": 8,
        "sram_parity": 9,
        "sram_secded": 10,
        "temperature": 51,
        "temperature_margin": -2,
        "sw_thermal_ns": 11,
        "hw_thermal_ns": 12,
        "power_brake_ns": 13,
        "performance_state": 2,
        "pcie_width": 8,
        "pcie_width_max": 16,
        "pcie_generation": 4,
        "pcie_generation_max": 6,
        "pcie_replay": 14,
        "pcie_fatal": 15,
        "minor": 17,
        "remap_histogram": "1,2,3,4,5",
        "bank_groups_exhausted": 18,
        "bank_remap_pending": 1,
        "channel_repair_pending": 1,
        "memory_unrepairable": 1,
        "pages_retired_uncorrected": 19,
        "field_pages_pending": 1,
        "fabric_status": 20,
        "fabric_clique": 21,
        "fabric_mask": 22,
        "c2c_interrupts": 23,
        "power_smoothing_life_percent": 77,
        "ecc": 0,
        "nvlinks": "110",
    }
    for key, value in values.items():
        node.nvml.set(f"gpu.1.{key}", value)
    node.nvml.set("gpu.1.nvlink_recovery_failed@2", 24)

    await node.poll()
    well, sick = node.survey.gpus

    assert (sick.remapped_corrected, sick.remapped_uncorrected) == (3, 4)
    assert (sick.ecc_corrected_volatile, sick.ecc_uncorrected_volatile, sick.sram_uncorrected) == (5, 6, 19)
    assert (sick.temperature_c, sick.temperature_margin_c) == (51, -2)
    assert (sick.sw_thermal_ns, sick.hw_thermal_ns, sick.power_brake_ns) == (11, 12, 13)
    assert (sick.performance_state, sick.pcie_width, sick.pcie_generation, sick.minor) == (2, 8, 4, 17)
    assert sick.pcie_errors == {"replay": 14, "fatal": 15}
    assert (sick.fabric_state, sick.fabric_status, sick.fabric_clique, sick.fabric_health_mask) == (
        3,
        20,
        21,
        22,
    )
    detail = sick.detail
    assert detail is not None
    assert (detail.ecc_corrected_aggregate, detail.ecc_uncorrected_aggregate, detail.ecc_enabled) == (
        7,
        8,
        False,
    )
    assert detail.remap_histogram == (1, 2, 3, 4, 5)
    assert (detail.bank_groups_exhausted, detail.bank_remap_pending, detail.memory_unrepairable) == (
        18,
        True,
        True,
    )
    assert (detail.channel_repair_pending, detail.tpc_repair_pending) == (True, False)
    assert (detail.pages_retired_uncorrected, detail.pages_pending) == (19, True)
    assert (detail.pcie_width_max, detail.pcie_generation_max) == (16, 6)
    assert detail.nvlinks == (True, True, False)
    assert detail.nvlink_errors["recovery_failed"] == (0, 0, 24)
    assert (detail.c2c_errors, detail.power_smoothing_life_percent) == ({"interrupts": 23}, 77)
    assert (well.ecc_corrected_volatile, well.temperature_margin_c, well.pcie_width) == (0, 40, 16)
    counters = {(c.device, c.name): c.value for c in node.survey.counters()}
    assert counters[(sick.pci_address, "pcie_replay")] == 14
    assert counters[(f"{sick.pci_address}/link2", "nvlink_recovery_failed")] == 24
    assert counters[(sick.pci_address, "c2c_interrupts")] == 23


async def test_an_unsupported_field_with_anything_in_it_is_no_value(make: Make) -> None:
    """Only the field's own return code says whether its value means something."""
    node = make("L4", 2)
    node.nvml.set("gpu.*.field_garbage", 1)
    for number in (230, 144, 145, 31, 94, 180, 307):
        node.nvml.set(f"gpu.*.field.{number}.ret", 3)

    await node.settle()
    await node.poll(6)

    gpu = node.survey.gpus[0]
    assert (gpu.recovery_action, gpu.remap_pending, gpu.pcie_errors) == (None, None, {})
    assert gpu.detail is not None
    assert (gpu.detail.pages_pending, gpu.detail.bank_remap_pending) == (None, None)
    assert node.codes == []


async def test_a_driver_without_the_newer_functions_still_tells_what_it_can(make: Make) -> None:
    """The library has no such symbols; each costs its own signal only."""
    node = make("A100", 2, old_driver=True)
    node.nvml.set("gpu.*.remap_pending", 0).set("gpu.*.remap_failed", 0)
    node.nvml.set("gpu.*.nvlink_replay", None).set("gpu.0.nvlink_error.1@3", 9)

    await node.settle()
    gpu = node.survey.gpus[0]

    assert (gpu.error, gpu.temperature_c, gpu.temperature_margin_c, gpu.process_ids) == ("", 41, None, None)
    assert (gpu.memory_total_bytes, gpu.clocks_event_reasons, gpu.fabric_state) == (85_899_345_920, 1, None)
    assert gpu.detail is not None
    assert (gpu.detail.memory_unrepairable, gpu.detail.channel_repair_pending) == (None, None)
    assert sum(gpu.detail.nvlinks or ()) == 12
    assert node.codes == []


@pytest.mark.parametrize(
    ("script", "states"), [("-11-", (False, True, True, False)), ("----", None), ("", None)]
)
async def test_links_that_a_board_does_not_use_are_not_the_end(
    make: Make, script: str, states: tuple[bool, ...] | None
) -> None:
    """Each link answers for itself; a board on which none is supported has no NVLink."""
    node = make("A100", 1)
    node.nvml.set("gpu.0.nvlinks", script or None)

    await node.poll()

    detail = node.survey.gpus[0].detail
    assert detail is not None
    assert detail.nvlinks == states


async def test_slices_are_counted_over_the_holes_between_them(make: Make) -> None:
    """The index of a destroyed instance answers "not found"; programs are told by instance."""
    node = make("A100", 2)
    node.nvml.set("gpu.0.mig", 1).set("gpu.0.mig_slots", "1,-,5,-,-,13")
    node.nvml.set("gpu.0.process_ids", "4242@5,4243@13,17")
    # In MIG mode the driver answers some calls for the whole GPU with "not supported".
    node.nvml.set("gpu.0.nvlinks", None).set("gpu.0.performance_state", None)

    await node.settle()
    gpu = node.survey.gpus[0]

    assert gpu.mig_instances == (1, 5, 13)
    assert gpu.process_ids == (4242, 4243, 17)
    assert gpu.process_instances == {4242: 5, 4243: 13}
    assert node.survey.gpus[1].mig_instances is None


async def test_a_layout_that_moves_is_unknown_until_it_rests(make: Make) -> None:
    """One instance that is made is a finished step; a layout that goes on changing, or a mode change that
    waits for a reset, is no fault, and nobody vouches."""
    node = make("A100", 2)
    node.nvml.set("gpu.0.mig", 1).set("gpu.0.mig_slots", "1,2")
    await node.settle()

    node.nvml.set("gpu.0.mig_slots", "1,2,5")
    await node.poll()
    assert node.says(Subsystem.GPU)[0] == "Healthy"
    node.nvml.set("gpu.0.mig_slots", "1,2")
    await node.poll()
    assert node.says(Subsystem.GPU) == ("Unknown", "Reconfiguring")
    await node.poll()
    assert node.says(Subsystem.GPU)[0] == "Healthy"
    node.nvml.set("gpu.1.mig_pending", 1)
    await node.poll(20)
    assert node.says(Subsystem.GPU) == ("Unknown", "Reconfiguring")
    assert node.codes == []


@pytest.mark.parametrize(
    ("model", "script", "code", "fault_class", "polls"),
    [
        ("H100", {"recovery_action": 1}, "recovery/reset", FaultClass.RESET_CURES, 1),
        ("H100", {"recovery_action": 2}, "recovery/reboot", FaultClass.REBOOT_CURES, 1),
        ("H100", {"field_remap_pending": 1}, "remap/pending", FaultClass.RESET_CURES, 1),
        ("H100", {"field_remap_failed": 1}, "remap/failed", FaultClass.HARDWARE_GONE, 1),
        ("H100", {"sram_threshold_exceeded": 1}, "ecc/sram-threshold", FaultClass.HARDWARE_GONE, 2),
        ("H100", {"clocks_event_reasons": 0x48}, "thermal/hardware", FaultClass.TRANSIENT, 4),
        ("H100", {"clocks_event_reasons": 0x88}, "power/brake", FaultClass.TRANSIENT, 4),
        ("H100", {"pcie_width": 4}, "pcie/width", FaultClass.TRANSIENT, 4),
        ("H100", {"nvlinks": "1" * 12 + "0" * 6}, "nvlink/down", FaultClass.RESET_CURES, 8),
        ("H100", {"fabric_summary": 2}, "fabric/unhealthy", FaultClass.TRANSIENT, 3),
        ("B200", {"memory_unrepairable": 1}, "repair/unrepairable", FaultClass.HARDWARE_GONE, 5),
        ("B200", {"channel_repair_pending": 1}, "repair/channel", FaultClass.RESET_CURES, 1),
        ("B200", {"bank_remap_pending": 1}, "remap/bank-pending", FaultClass.RESET_CURES, 1),
        ("B200", {"memory_total": 187_000_000_000}, "memory/reduced", FaultClass.TRANSIENT, 4),
        ("V100", {"field_pages_pending": 1}, "pages/pending", FaultClass.RESET_CURES, 1),
        ("V100", {"pages_pending": 1}, "pages/pending", FaultClass.RESET_CURES, 1),
    ],
)
async def test_a_sick_gpu_is_named_with_its_cure(
    make: Make, model: str, script: dict[str, object], code: str, fault_class: FaultClass, polls: int
) -> None:
    """From the driver's answer to the verdict: no poll too early, and no other GPU blamed.

    Details are looked at once a minute, so two or three looks at them are five or eight polls.
    """
    node = make(model, 4)
    await node.settle()
    for key, value in script.items():
        node.nvml.set(f"gpu.2.{key}", value)

    await node.poll(polls - 1)
    assert node.codes == []
    await node.poll()

    assert node.codes == [code]
    assert node.fault_class is fault_class
    [fault] = node.answer.status.faults
    assert fault.gpu is not None
    assert fault.gpu.pci_address == node.nvml.address(2)
    assert fault.gpu.serial.startswith("16530220") == (model != "L4")


async def test_normal_idle_and_busy_readings_are_no_fault(make: Make) -> None:
    """Links that down-train, clocks at idle or at the power cap, a hot but safe GPU, old error counts."""
    node = make("H100", 4)
    await node.settle()
    node.nvml.set("gpu.0.pcie_generation", 1).set("gpu.0.performance_state", 8)
    node.nvml.set("gpu.1.clocks_event_reasons", 0x4).set("gpu.1.temperature", 84).set(
        "gpu.1.temperature_margin", 2
    )
    node.nvml.set("gpu.1.process_ids", "100,101")
    node.nvml.set("gpu.2.ecc_corrected_volatile", 12).set("gpu.2.nvlink_replay@4", 3)
    node.nvml.set("gpu.3.field_remap_corrected", 2).set("gpu.3.remap_histogram", "638,2,0,0,0")

    await node.poll(30)

    assert node.codes == []
    assert node.says(Subsystem.GPU)[0] == "Healthy"


async def test_a_lost_gpu_is_lost_and_the_others_are_read(make: Make) -> None:
    """Three polls of GPU_IS_LOST, or one line of the kernel with it."""
    node = make("H100", 8)
    await node.settle()
    node.nvml.action("nvmlDeviceGetHandleByPciBusId_v2", "ret:15", gpu=5)

    await node.poll(2)
    assert node.codes == []
    await node.poll()

    assert node.codes == ["gpu/lost"]
    assert node.fault_class is FaultClass.REBOOT_CURES
    assert [gpu.error for gpu in node.survey.gpus] == [""] * 5 + ["GPU_IS_LOST"] + [""] * 2


async def test_a_reset_by_somebody_is_no_fault(make: Make) -> None:
    """Two GPUs answer 15 and 16 for two polls, as during a reset of a pair."""
    node = make("H100", 8)
    await node.settle()
    for gpu, code in ((2, 15), (3, 16)):
        node.nvml.action("nvmlDeviceGetHandleByPciBusId_v2", f"ret:{code}", gpu=gpu)
    await node.poll(2)
    for gpu in (2, 3):
        node.nvml.action("nvmlDeviceGetHandleByPciBusId_v2", "", gpu=gpu)
    await node.poll()

    assert node.codes == []
    assert node.says(Subsystem.GPU)[0] == "Healthy"


@pytest.mark.parametrize(
    ("code", "error", "fault"),
    [
        (16, "RESET_REQUIRED", "gpu/reset-required"),
        (8, "INSUFFICIENT_POWER", "gpu/power"),
        (6, "NOT_FOUND", "gpu/not-in-nvml"),
    ],
)
async def test_what_a_handle_says_for_minutes_is_believed(
    make: Make, code: int, error: str, fault: str
) -> None:
    """Each return code has its own meaning and its own patience."""
    node = make("H100", 4)
    await node.settle()
    node.nvml.action("nvmlDeviceGetHandleByPciBusId_v2", f"ret:{code}", gpu=1)

    await node.poll(8)

    assert node.survey.gpus[1].error == error
    assert node.codes == [fault]


async def test_a_gpu_that_answers_nonsense_is_not_readable_and_no_fault(make: Make) -> None:
    """Bytes that are no text, absurd numbers and an unknown return code prove nothing."""
    node = make("H100", 4)
    await node.settle()
    node.nvml.set("gpu.1.name", r"\xff\xfe\x01NVIDIA").set("gpu.1.serial", r"\x07\x1b[31m123")
    node.nvml.set("gpu.1.clocks_event_reasons", 2**64 - 1).set("gpu.1.pcie_width", 2**32 - 1)
    node.nvml.set("gpu.1.temperature_margin", -(2**31)).set("gpu.1.pcie_replay", 2**64 - 1)
    node.nvml.action("nvmlDeviceGetUUID", "ret:777", gpu=2)

    await node.poll(30)

    assert node.codes == []
    assert node.survey.complete
    assert node.survey.gpus[1].serial == "[31m123"
    assert node.survey.gpus[2].error == "NVML_777"
    assert node.says(Subsystem.GPU) == ("Unknown", "GpuNotReadable")


async def test_a_gpu_may_come_and_go_while_the_worker_lives(make: Make) -> None:
    """The worker asks by address, so a new GPU is read at once and a vanished one is named."""
    node = make("L4", 2)
    await node.settle()
    pid = node.reader._worker.pid if node.reader._worker else 0

    grown = FakeNvmlView(node.nvml, gpus=3)
    await node.poll()
    assert [gpu.error for gpu in node.survey.gpus] == ["", "", ""]
    grown.vanish(2)
    survey = await node.reader.survey(node.nvml.addresses())

    assert [gpu.error for gpu in survey.gpus] == ["", "", "NOT_FOUND"]
    assert node.reader._worker is not None
    assert node.reader._worker.pid == pid


class FakeNvmlView:
    """Adds GPUs to a machine that is already being watched, and takes them out."""

    def __init__(self, nvml: FakeNvml, *, gpus: int) -> None:
        self._nvml = nvml
        nvml.machine("L4", gpus=gpus)

    def vanish(self, gpu: int) -> None:
        """The driver knows it no more."""
        self._nvml.set(f"gpu.{gpu}.bus_id", None)


async def test_a_mismatch_waits_for_the_next_drain(make: Make) -> None:
    """Libraries were swapped under the driver: software, no drain, new work kept away."""
    node = make("H100", 2)
    await node.settle()
    node.reader.close()
    node.nvml.action("nvmlInitWithFlags", "ret:18")

    await node.poll(4)

    assert node.survey.problem is SurveyProblem.DRIVER_MISMATCH
    assert node.codes == ["driver/mismatch"]
    assert node.fault_class is FaultClass.TRANSIENT
    assert node.says(Subsystem.MONITOR) == ("Faulty", "RebootNeeded")


async def test_libraries_replaced_under_a_running_worker_are_seen(make: Make, tmp_path: Path) -> None:
    """The worker goes on with what it loaded, as running programs do; the name on disk tells of the next."""
    node = make("H100", 2, installed="580.95.05")
    await node.settle()
    assert node.survey.library_version == "580.95.05"

    node.nvml.install(tmp_path / "lib", "580.105.08")
    await node.poll(4)

    assert node.survey.complete
    assert node.codes == ["driver/mismatch"]
    assert node.fault_class is FaultClass.TRANSIENT
    assert "580.95.05" in node.answer.status.faults[0].summary
    assert "580.105.08" in node.answer.status.faults[0].summary
    node.nvml.install(tmp_path / "lib", "580.95.05")
    await node.poll(6)
    assert node.codes == []


@pytest.mark.parametrize("code", [4, 12])
async def test_wiring_is_no_fault(make: Make, code: int) -> None:
    """No rights or no library: nobody vouches, nobody is blamed."""
    node = make("H100", 2)
    await node.settle()
    node.reader.close()
    node.nvml.action("nvmlInitWithFlags", f"ret:{code}")

    await node.poll(30)

    assert node.codes == []
    assert node.says(Subsystem.MONITOR)[0] == "Unknown"


async def test_an_upgrade_of_the_driver_blames_no_gpu(make: Make) -> None:
    """Unloaded under the worker: all handles fail, then nothing opens, then all is well again."""
    node = make("H100", 4)
    await node.settle()
    node.driver = ""
    node.nvml.action("nvmlDeviceGetHandleByPciBusId_v2", "ret:15")
    await node.poll(3)
    node.nvml.action("nvmlInitWithFlags", "ret:9")
    await node.poll(30)

    assert node.codes == []
    assert node.says(Subsystem.MONITOR) == ("Unknown", "DriverChanging")
    node.driver = "nvidia"
    node.nvml.action("nvmlDeviceGetHandleByPciBusId_v2", "").action("nvmlInitWithFlags", "")
    await node.poll(2)
    assert node.says(Subsystem.GPU)[0] == "Healthy"


@pytest.mark.parametrize(
    ("action", "problem"), [("hang", SurveyProblem.HUNG), ("segv", SurveyProblem.CRASHED)]
)
async def test_a_call_that_ends_badly_in_the_details_blocks_and_blames_no_hardware(
    make: Make, action: str, problem: SurveyProblem
) -> None:
    """A hang closes the node at once, crashes after three; in both cases the GPU keeps its good name."""
    node = make("H100", 2)
    await node.settle()
    node.nvml.action("nvmlDeviceGetNvLinkState", action, gpu=1)

    await node.poll(3)

    assert node.survey.problem is problem
    assert node.survey.problem_gpu == node.nvml.address(1)
    [fault] = node.answer.status.faults
    assert (fault.subsystem, fault.gpu, fault.second_witness) == (Subsystem.MONITOR, None, False)
    assert fault.fault_class is FaultClass.MONITOR_HUNG


async def test_slow_answers_within_the_deadline_are_answers(make: Make) -> None:
    """A GPU under load may take its time."""
    node = make("H100", 4)
    node.nvml.action("nvmlDeviceGetMemoryInfo_v2", "sleep:100")

    await node.poll()

    assert node.survey.complete
    assert node.survey.duration_s >= 0.4


async def test_details_are_read_about_once_a_minute_and_kept_between(tmp_path: Path) -> None:
    """A poll between two readings repeats the details, says so, and gives no counters of links; after news
    they are read at once."""
    nvml = FakeNvml(tmp_path).machine("H100", gpus=2)
    clock = RealTime()
    reader = NvmlReader(
        clock=clock, environment=nvml.environment, proc=tmp_path / "proc", detail_interval_s=3600.0
    )
    try:
        first = await reader.survey(nvml.addresses())
        nvml.set("gpu.*.nvlinks", "0" * 18)
        second = await reader.survey(nvml.addresses())
        third = await reader.survey(nvml.addresses(), closely=True)
    finally:
        reader.close()

    assert (first.detailed, second.detailed, third.detailed) == (True, False, True)
    assert third.gpus[0].detail is not None
    assert not any(third.gpus[0].detail.nvlinks or (True,))
    assert second.gpus[0].detail == first.gpus[0].detail
    assert any("link" in counter.device for counter in first.counters())
    assert not any("link" in counter.device for counter in second.counters())


async def test_a_storm_of_corrected_errors_is_found_without_a_line_in_the_log(make: Make) -> None:
    """Thousands a second on one busy GPU of eight."""
    node = make("H100", 8)
    node.nvml.set("gpu.*.process_ids", "100").set("gpu.*.clocks_event_reasons", 0)
    await node.settle()
    for step in range(1, 5):
        node.nvml.set("gpu.5.ecc_corrected_volatile", step * 69_000)
        await node.poll()

    assert node.codes == ["ecc/corrected-storm"]
    assert node.fault_class is FaultClass.TRANSIENT


async def test_a_gpu_with_a_contained_error_returns(make: Make) -> None:
    """The volatile count stays at two, the program was started again: minutes later all is healthy."""
    node = make("H100", 2)
    await node.settle()
    address = node.nvml.address(0)
    node.line(
        f"NVRM: Xid (PCI:{address[:-2]}): 94, pid=77, name=train, Contained: SM (0x1). RST: No, D-RST: No"
    )
    node.nvml.set("gpu.0.ecc_uncorrected_volatile", 2)
    await node.poll(2)
    assert node.fault_class is FaultClass.TRANSIENT

    for _ in range(90):
        await node.poll()

    assert node.codes == []
    assert node.says(Subsystem.GPU)[0] == "Healthy"


async def test_a_node_whose_fabric_manager_is_gone_is_platform_trouble(make: Make) -> None:
    """CUDA error 802: no GPU is blamed, nobody is drained."""
    node = make("H100", 8)
    await node.settle()
    node.nvml.set("gpu.*.fabric_state", 2).set("gpu.*.fabric_summary", 0)

    await node.poll(4)

    assert node.codes == ["fabric/not-ready"]
    assert node.fault_class is FaultClass.TRANSIENT
    assert node.answer.status.faults[0].gpu is None


async def test_surveys_survive_a_round_through_their_wire_form(make: Make) -> None:
    """What the worker sends is what is judged, whole."""
    node = make("B200", 8)
    await node.poll()
    survey = node.survey

    assert msgspec.json.decode(msgspec.json.encode(survey), type=GpuSurvey) == survey
    assert survey.duration_s < DEADLINE_S
