"""Whom the agent asks about GPUs, and what it says when they are others than before."""

from __future__ import annotations

import msgspec
import pytest

from outlast.agent.sources import survey_gpus
from outlast.agent.telling import Teller
from outlast.health.reasons import Reason
from outlast.model.observation import PciSurvey, SurveyProblem
from outlast.ports.cluster import EventNote
from outlast.sim.node import FakeGpuReader, FakePciBus, Hardware
from outlast.sim.virtual_time import VirtualClock
from tests.unit.health.builders import Scene


@pytest.mark.asyncio
async def test_nobody_is_asked_while_there_is_no_driver() -> None:
    """Opening NVML could load a driver, and an old worker would hold one that shall go."""
    hardware = Hardware.h100("n")
    reader = FakeGpuReader(hardware, clock=VirtualClock())
    bus = FakePciBus(hardware)
    assert (await survey_gpus(reader, bus.survey())).complete
    assert reader.held

    hardware.driver_loaded = False
    survey = await survey_gpus(reader, bus.survey())

    assert survey.problem is SurveyProblem.DRIVER_NOT_LOADED
    assert not reader.held
    assert not survey.complete


@pytest.mark.asyncio
async def test_a_kernel_that_does_not_list_modules_stops_nothing() -> None:
    """Unknown is not "not loaded"."""
    hardware = Hardware.h100("n")
    reader = FakeGpuReader(hardware, clock=VirtualClock())
    pci = msgspec.structs.replace(FakePciBus(hardware).survey(), driver_loaded=None)

    assert (await survey_gpus(reader, pci)).complete
    assert (await survey_gpus(reader, PciSurvey())).message == "there is no GPU to ask"


class Recorder:
    """Keeps Events."""

    def __init__(self) -> None:
        self.notes: list[EventNote] = []

    def record(self, note: EventNote) -> None:
        self.notes.append(note)


def told(scene: Scene, recorder: Recorder) -> list[EventNote]:
    """The Events about the next poll."""
    recorder.notes.clear()
    before = scene.state
    answer = scene.poll()
    Teller("n", VirtualClock(), recorder).tell(before, answer, "uid")
    return recorder.notes


def test_a_replaced_board_is_told_once_and_is_no_fault() -> None:
    """By serial number; the first look at a machine is no change."""
    scene, recorder = Scene(checked=False), Recorder()
    assert told(scene, recorder) == []
    scene.hardware.change(scene.gpu(2), serial="fresh", uuid="GPU-fresh")

    [note] = told(scene, recorder)

    assert note.reason == Reason.INVENTORY_CHANGED
    assert not note.warning
    assert f"new: fresh at {scene.gpu(2)}; gone: n-2 at {scene.gpu(2)}" in note.message
    assert told(scene, recorder) == []
    assert scene.status.faults == ()


def test_an_added_gpu_is_told_and_expected_from_then_on() -> None:
    """What was hot-added is missed when it goes."""
    scene, recorder = Scene(), Recorder()
    ninth = msgspec.structs.replace(
        scene.hardware.gpus[scene.gpu(0)], pci_address="0000:f0:1c.0", serial="ninth", uuid="GPU-ninth"
    )
    scene.hardware.gpus["0000:f0:1c.0"] = ninth

    [note] = told(scene, recorder)

    assert "new: ninth" in note.message
    assert scene.status.gpu_count == "9/9"
