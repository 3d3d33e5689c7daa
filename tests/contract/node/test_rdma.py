"""What every source of RDMA devices must show; runs on a /sys tree and on the simulated devices."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest
import pytest_asyncio

from outlast.adapters.linux.guarded_files import GuardedFiles
from outlast.adapters.linux.rdma import SysfsRdma
from outlast.model.observation import LinkLayer, RdmaDevice, RdmaProblem, RdmaSurvey
from outlast.ports.node import Surveyor, Wanted
from outlast.sim.node import FakeRdma
from outlast.sim.node.sources import efa_device, infiniband_device, roce_device
from tests.contract.node.hand_clock import HandClock
from tests.rdma_tree import RdmaTree
from tests.sysfs import FakeSysfs

in_a_loop = pytest.mark.asyncio
IB, ROCE, EFA = "0000:5c:00.0", "0000:9a:00.0", "0000:00:06.0"
NOBODY = Wanted()


class DevicesUnderTest(Protocol):
    """One InfiniBand, one RoCE and one EFA device, that can fail."""

    source: Surveyor

    def wait(self, seconds: float) -> None: ...
    def set_state(self, name: str, state: str) -> None: ...
    def count(self, name: str, counter: str, value: int) -> None: ...
    def hang(self, name: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def share(self, mode: str) -> None: ...


class Tree:
    def __init__(self, root: Path) -> None:
        self._root = root
        self.tree = RdmaTree(FakeSysfs(root))
        self.tree.add_infiniband("mlx5_0", IB)
        self.tree.add_roce("mlx5_1", ROCE, "eth2")
        self.tree.add_efa("rdmap0s6", EFA)
        files = GuardedFiles(deadline_s=0.5, proc=root / "no-proc")
        self._clock = HandClock()
        self.source = SysfsRdma(root, clock=self._clock, files=files)

    def wait(self, seconds: float) -> None:
        self._clock.wait(seconds)

    def set_state(self, name: str, state: str) -> None:
        self.tree.set(name, "ports/1/state", f"1: {state}")

    def count(self, name: str, counter: str, value: int) -> None:
        group = "hw_counters" if name.startswith("rdmap") else "counters"
        self.tree.set(name, f"ports/1/{group}/{counter}", str(value))

    def hang(self, name: str) -> None:
        group = "hw_counters/rx_drops" if name.startswith("rdmap") else "counters/symbol_error"
        self.tree.hang(name, f"ports/1/{group}")

    def remove(self, name: str) -> None:
        self.tree.remove(name)

    def share(self, mode: str) -> None:
        folder = self._root / "sys/module/ib_core/parameters"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "netns_mode").write_text(f"{mode}\n")


class Simulated:
    def __init__(self) -> None:
        self._fake = FakeRdma(
            [
                infiniband_device("mlx5_0", IB),
                roce_device("mlx5_1", ROCE, "eth2"),
                efa_device("rdmap0s6", EFA),
            ]
        )
        self.source = self._fake

    def wait(self, seconds: float) -> None:
        pass

    def set_state(self, name: str, state: str) -> None:
        self._fake.change_port(name, state=state)

    def count(self, name: str, counter: str, value: int) -> None:
        self._fake.count(name, counter, value)

    def hang(self, name: str) -> None:
        self._fake.hanging.add(name)

    def remove(self, name: str) -> None:
        del self._fake.devices[name]

    def share(self, mode: str) -> None:
        self._fake.exclusive = mode == "N"


@pytest_asyncio.fixture(params=["sysfs", "simulated"])
async def devices(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DevicesUnderTest]:
    made: DevicesUnderTest = Tree(tmp_path) if request.param == "sysfs" else Simulated()
    yield made
    await made.source.aclose()


async def look(devices: DevicesUnderTest) -> RdmaSurvey:
    survey = await devices.source.survey(NOBODY)
    assert isinstance(survey, RdmaSurvey)
    return survey


def named(survey: RdmaSurvey, name: str) -> RdmaDevice:
    [found] = [device for device in survey.devices if device.name == name]
    return found


@in_a_loop
async def test_each_kind_is_told_apart(devices: DevicesUnderTest) -> None:
    """By driver and link layer, with its address on the bus; no name decides."""
    survey = await look(devices)

    assert [(d.name, d.pci_address, d.is_efa) for d in survey.devices] == [
        ("mlx5_0", IB, False),
        ("mlx5_1", ROCE, False),
        ("rdmap0s6", EFA, True),
    ]
    [port] = named(survey, "mlx5_0").ports
    assert (port.state, port.rate_gbps, port.link_layer) == ("ACTIVE", 400.0, LinkLayer.INFINIBAND)
    assert named(survey, "mlx5_1").ports[0].link_layer is LinkLayer.ETHERNET
    assert [(i.name, i.up, i.carrier_changes) for i in named(survey, "mlx5_1").interfaces] == [
        ("eth2", True, 2)
    ]
    assert (survey.problem, survey.failures, survey.readable) == (None, 0, True)


@in_a_loop
async def test_a_link_that_goes_down_is_seen(devices: DevicesUnderTest) -> None:
    """The state is that of this survey."""
    devices.set_state("mlx5_0", "DOWN")

    assert named(await look(devices), "mlx5_0").ports[0].state == "DOWN"


@in_a_loop
async def test_counters_come_with_the_value_where_they_stop(devices: DevicesUnderTest) -> None:
    """An 8-bit counter at 255 can't grow, which is not the same as being at rest."""
    devices.count("mlx5_0", "link_downed", 255)
    devices.count("rdmap0s6", "unresponsive_remote_events", 7)

    counters = {(c.device, c.name): c for c in (await look(devices)).counters()}

    assert counters[f"{IB}/port1", "link_downed"].limit == 255
    assert counters[f"{IB}/port1", "link_downed"].value == 255
    assert counters[f"{EFA}/port1", "unresponsive_remote_events"].value == 7
    assert counters[EFA, "no_completion_cmds"].value == 0
    assert (f"{IB}/port1", "lifespan") not in counters


@in_a_loop
async def test_a_device_that_never_answers_costs_the_others_nothing(devices: DevicesUnderTest) -> None:
    """It is named, is no device that is gone, and each survey in a row counts."""
    await look(devices)
    devices.hang("rdmap0s6")
    devices.wait(30)

    first, second = await look(devices), await look(devices)

    assert (first.problem, first.problem_device) == (RdmaProblem.HUNG, "rdmap0s6")
    assert first.message
    assert (first.failures, second.failures) == (1, 2)
    assert not named(second, "rdmap0s6").answered
    assert named(second, "mlx5_1").ports[0].state == "ACTIVE"


@in_a_loop
async def test_a_device_that_is_gone_is_not_listed(devices: DevicesUnderTest) -> None:
    """Its absence is for a check to judge; the survey is complete without it."""
    devices.remove("mlx5_0")

    survey = await look(devices)

    assert [device.name for device in survey.devices] == ["mlx5_1", "rdmap0s6"]
    assert survey.problem is None


@in_a_loop
async def test_devices_may_belong_to_one_network_namespace_each(devices: DevicesUnderTest) -> None:
    """Then those of pods are out of sight here; without the kernel's word they are shared, as by default."""
    assert not (await look(devices)).exclusive
    devices.share("N")
    assert (await look(devices)).exclusive
    devices.share("Y")
    assert not (await look(devices)).exclusive


@in_a_loop
async def test_closing_twice_is_once(devices: DevicesUnderTest) -> None:
    """And a source that was closed can be asked again."""
    await devices.source.aclose()
    await devices.source.aclose()

    assert len((await look(devices)).devices) == 3
