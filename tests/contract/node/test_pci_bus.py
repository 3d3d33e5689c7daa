"""What every `PciBus` must show; runs on a sysfs tree and on the simulated bus."""

from pathlib import Path
from typing import Protocol

import pytest

from outlast.adapters.linux.pci import SysfsPciBus
from outlast.ports.node import PciBus
from outlast.sim.node import FakePciBus, Hardware
from tests.sysfs import FakeSysfs

GPUS = tuple(f"0000:{bus:02x}:1c.0" for bus in range(0x10, 0x90, 0x10))
EFA = ("0000:90:00.0", "0000:90:01.0")


class BusUnderTest(Protocol):
    """A p5-like machine whose parts can fail."""

    bus: PciBus

    def fall_off(self, address: str) -> None: ...
    def unplug(self, address: str) -> None: ...
    def unbind(self, address: str) -> None: ...
    def hide(self) -> None: ...


class Tree:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._sysfs = FakeSysfs(root)
        for address in GPUS:
            self._sysfs.add_gpu(address)
        for address in EFA:
            self._sysfs.add_efa(address)
        self.bus = SysfsPciBus(root=root)

    def fall_off(self, address: str) -> None:
        self._sysfs.fall_off_bus(address)

    def unplug(self, address: str) -> None:
        self._sysfs.unplug(address)

    def unbind(self, address: str) -> None:
        self._sysfs.bind(address, "")

    def hide(self) -> None:
        (self._root / "sys").rename(self._root / "hidden")


class Simulated:
    def __init__(self) -> None:
        self._hardware = Hardware.h100("gpu-0001", gpus=8, efa=2)
        self._fake = FakePciBus(self._hardware)
        self.bus = self._fake

    def fall_off(self, address: str) -> None:
        self._hardware.off_bus.add(address)

    def unplug(self, address: str) -> None:
        self._hardware.unplugged.add(address)

    def unbind(self, address: str) -> None:
        self._hardware.efa_unbound.add(address)

    def hide(self) -> None:
        self._fake.message = "/sys/bus/pci/devices cannot be listed"


@pytest.fixture(params=["sysfs", "simulated"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> BusUnderTest:
    return Tree(tmp_path) if request.param == "sysfs" else Simulated()


def test_all_functions_are_listed_in_address_order(machine: BusUnderTest) -> None:
    """Eight GPUs at full width, two EFA devices."""
    survey = machine.bus.survey()

    assert tuple(gpu.address for gpu in survey.gpus) == GPUS
    assert {(gpu.link_width, gpu.link_width_max, gpu.driver) for gpu in survey.gpus} == {(16, 16, "nvidia")}
    assert tuple(nic.address for nic in survey.efa) == EFA
    assert survey.readable


def test_a_gpu_off_the_bus_is_listed_and_does_not_respond(machine: BusUnderTest) -> None:
    """One dead GPU leaves the others as they are."""
    machine.fall_off(GPUS[3])

    assert [gpu.address for gpu in machine.bus.survey().gpus if not gpu.responds] == [GPUS[3]]


def test_an_unplugged_function_is_not_listed(machine: BusUnderTest) -> None:
    """Both kinds can be missing."""
    machine.unplug(GPUS[3])
    machine.unplug(EFA[0])

    survey = machine.bus.survey()

    assert len(survey.gpus) == 7
    assert [nic.address for nic in survey.efa] == [EFA[1]]


def test_an_efa_without_its_driver_does_not_count(machine: BusUnderTest) -> None:
    """It is told apart, so that the reason can be named."""
    machine.unbind(EFA[0])

    survey = machine.bus.survey()

    assert [nic.address for nic in survey.efa] == [EFA[1]]
    assert [nic.address for nic in survey.efa_unbound] == [EFA[0]]


def test_an_unreadable_bus_is_not_an_empty_one(machine: BusUnderTest) -> None:
    """Says that it could not tell, and why."""
    machine.hide()

    survey = machine.bus.survey()

    assert not survey.readable
    assert survey.message
