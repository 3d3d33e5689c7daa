"""What every `GpuReader` must do; runs on NVIDIA's bindings over a fake library, and on the simulated one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from outlast.adapters.nvml.reader import NvmlReader
from outlast.model.observation import GpuSurvey, SurveyProblem
from outlast.ports.node import GpuReader
from outlast.sim.node import FakeGpuReader, Hardware
from tests.contract.node.logs import RealTime
from tests.nvml import FakeNvml

pytestmark = pytest.mark.asyncio

DEADLINE_S = 1.5


class MachineUnderTest(Protocol):
    """Eight healthy GPUs, and ways to make them sick."""

    reader: GpuReader
    addresses: tuple[str, ...]

    def lose(self, address: str) -> None: ...
    def hang(self, address: str) -> None: ...
    def unhang(self) -> None: ...
    def unload_driver(self) -> None: ...
    def close(self) -> None: ...


class Scripted:
    """The real reader."""

    def __init__(self, folder: Path) -> None:
        self._nvml = FakeNvml(folder).machine("H100", gpus=8)
        self.addresses = self._nvml.addresses()
        self._reader = NvmlReader(
            clock=RealTime(),
            environment=self._nvml.environment,
            poll_deadline_s=DEADLINE_S,
            retry_first_s=0.05,
            proc=folder / "proc",
        )
        self.reader = self._reader
        self._hung = 0

    def lose(self, address: str) -> None:
        self._nvml.action("nvmlDeviceGetHandleByPciBusId_v2", "ret:15", gpu=self.addresses.index(address))

    def hang(self, address: str) -> None:
        self._hung = self.addresses.index(address)
        self._nvml.action("nvmlDeviceGetUUID", "hang", gpu=self._hung)

    def unhang(self) -> None:
        self._nvml.action("nvmlDeviceGetUUID", "", gpu=self._hung)

    def unload_driver(self) -> None:
        self._nvml.action("nvmlInitWithFlags", "ret:9")

    def close(self) -> None:
        self._reader.close()


class Simulated:
    """The fake."""

    def __init__(self) -> None:
        self._hardware = Hardware.h100("gpu-0001")
        self.addresses = tuple(self._hardware.gpus)
        self._fake = FakeGpuReader(self._hardware, clock=RealTime(rate=10), deadline_s=DEADLINE_S)
        self.reader = self._fake

    def lose(self, address: str) -> None:
        self._hardware.off_bus.add(address)

    def hang(self, address: str) -> None:
        self._fake.hanging.add(address)

    def unhang(self) -> None:
        self._fake.hanging.clear()

    def unload_driver(self) -> None:
        self._fake.problem = SurveyProblem.DRIVER_NOT_LOADED

    def close(self) -> None:
        pass


@pytest.fixture(params=["real bindings", "simulated"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MachineUnderTest]:
    if request.param == "simulated":
        yield Simulated()
        return
    under_test = Scripted(tmp_path)
    yield under_test
    under_test.close()


async def survey_until(machine: MachineUnderTest, *, complete: bool) -> GpuSurvey:
    async with asyncio.timeout(20):
        while True:
            survey = await machine.reader.survey(machine.addresses)
            if survey.complete is complete:
                return survey
            await asyncio.sleep(0.01)


async def test_every_gpu_asked_for_answers_in_order(machine: MachineUnderTest) -> None:
    """A healthy machine gives a complete survey with identity and levels."""
    survey = await machine.reader.survey(machine.addresses)

    assert tuple(gpu.pci_address for gpu in survey.gpus) == machine.addresses
    assert survey.complete
    assert survey.problem is None
    assert len({gpu.uuid for gpu in survey.gpus}) == 8
    assert len({gpu.serial for gpu in survey.gpus}) == 8
    assert {(gpu.recovery_action, gpu.remap_pending, gpu.error) for gpu in survey.gpus} == {(0, False, "")}
    assert survey.driver_version


async def test_the_first_survey_has_the_details_too(machine: MachineUnderTest) -> None:
    """Links, repairs and limits are known from the start; counters are told by device and by link."""
    survey = await machine.reader.survey(machine.addresses)

    assert survey.detailed
    details = [gpu.detail for gpu in survey.gpus if gpu.detail is not None]
    assert len(details) == 8
    assert {detail.nvlinks for detail in details} == {(True,) * 18}
    assert {detail.pcie_width_max for detail in details} == {16}
    devices = {counter.device for counter in survey.counters()}
    assert devices >= set(machine.addresses)
    assert f"{machine.addresses[0]}/link17" in devices


async def test_a_lost_gpu_has_no_details_and_no_counters(machine: MachineUnderTest) -> None:
    """What was known of it before would read as if it were so now."""
    await machine.reader.survey(machine.addresses)
    machine.lose(machine.addresses[3])

    survey = await machine.reader.survey(machine.addresses)

    assert survey.gpus[3].detail is None
    assert not any(counter.device.startswith(machine.addresses[3]) for counter in survey.counters())


async def test_a_lost_gpu_is_an_answer_and_hides_no_other(machine: MachineUnderTest) -> None:
    """The survey is complete: NVML said clearly that one GPU is lost."""
    machine.lose(machine.addresses[3])

    survey = await machine.reader.survey(machine.addresses)

    assert survey.complete
    assert [gpu.error for gpu in survey.gpus] == ["", "", "", "GPU_IS_LOST", "", "", "", ""]
    assert survey.gpus[3].recovery_action is None


async def test_a_gpu_that_nvml_does_not_know_is_named(machine: MachineUnderTest) -> None:
    """PCI lists it, the driver does not: that is a reading."""
    survey = await machine.reader.survey(("0000:ee:00.0", machine.addresses[0]))

    assert [gpu.error for gpu in survey.gpus] == ["NOT_FOUND", ""]


async def test_a_hanging_gpu_is_named_in_time_and_costs_the_others_nothing(machine: MachineUnderTest) -> None:
    """The survey returns at its deadline; from the next one on the other GPUs are read as always."""
    await machine.reader.survey(machine.addresses)
    machine.hang(machine.addresses[3])

    first = await machine.reader.survey(machine.addresses)
    second = await machine.reader.survey(machine.addresses)

    for survey in (first, second):
        assert (survey.problem, survey.problem_gpu) == (SurveyProblem.HUNG, machine.addresses[3])
        assert not survey.complete
        assert survey.message
    assert DEADLINE_S <= first.duration_s < DEADLINE_S + 5
    assert len(second.gpus) == 7


async def test_a_hang_that_ends_is_found_out_without_help(machine: MachineUnderTest) -> None:
    """The suspect GPU is asked again by itself."""
    machine.hang(machine.addresses[3])
    await survey_until(machine, complete=False)

    machine.unhang()

    assert len((await survey_until(machine, complete=True)).gpus) == 8


async def test_a_driver_that_is_not_loaded_is_a_problem_of_no_gpu(machine: MachineUnderTest) -> None:
    """Nothing is said about any GPU."""
    machine.unload_driver()

    survey = await machine.reader.survey(machine.addresses)

    assert survey.problem is SurveyProblem.DRIVER_NOT_LOADED
    assert survey.gpus == ()
    assert not survey.complete


async def test_released_gpus_are_taken_again_by_the_next_survey(machine: MachineUnderTest) -> None:
    """A release is for a reset or a driver unload, and is confirmed."""
    await machine.reader.survey(machine.addresses)

    assert await machine.reader.release()
    assert (await machine.reader.survey(machine.addresses)).complete
