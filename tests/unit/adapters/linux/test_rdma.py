"""What real /sys trees of network devices do to a reader: missing, refused, empty and renamed files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from outlast.adapters.linux.guarded_files import GuardedFiles
from outlast.adapters.linux.rdma import SysfsRdma
from outlast.model.observation import RdmaProblem, RdmaSurvey
from outlast.model.observation.rdma import EFA_DEVICE_COUNTERS as WATCHED_OF_DEVICE
from outlast.model.observation.rdma import EFA_PORT_COUNTERS as WATCHED_OF_PORT
from outlast.model.observation.rdma import LINK_COUNTERS, TRANSPORT_COUNTERS
from outlast.ports.node import Wanted
from tests.contract.node.hand_clock import HandClock
from tests.rdma_tree import (
    EFA_DEVICE_COUNTERS,
    EFA_PORT_COUNTERS,
    MLX5_COUNTERS,
    MLX5_HW_COUNTERS,
    OLD_NITRO_LACKS,
    RdmaTree,
)
from tests.sysfs import FakeSysfs

in_a_loop = pytest.mark.asyncio
IB, EFA = "0000:5c:00.0", "0000:00:06.0"


class Bench:
    """A tree, and the adapter on it."""

    def __init__(self, root: Path) -> None:
        self.tree = RdmaTree(FakeSysfs(root))
        self.clock = HandClock()
        self.files = GuardedFiles(deadline_s=0.5, proc=root / "no-proc")
        self.source = SysfsRdma(root, clock=self.clock, files=self.files)

    async def look(self, after_s: float = 30.0) -> RdmaSurvey:
        self.clock.wait(after_s)
        return await self.source.survey(Wanted())


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    await made.source.aclose()


def test_every_counter_is_spelt_as_the_driver_spells_it() -> None:
    """A name with a slip would match no file and never be missed."""
    assert set(WATCHED_OF_PORT) <= set(EFA_PORT_COUNTERS)
    assert set(WATCHED_OF_DEVICE) <= set(EFA_DEVICE_COUNTERS)
    assert set(LINK_COUNTERS) <= set(MLX5_COUNTERS)
    assert set(TRANSPORT_COUNTERS) <= set(MLX5_HW_COUNTERS)
    assert "lifespan" not in {*WATCHED_OF_PORT, *TRANSPORT_COUNTERS}


@in_a_loop
async def test_a_machine_without_devices_starts_no_process(bench: Bench) -> None:
    """Nothing to read costs nothing."""
    survey = await bench.look()
    assert (survey.devices, survey.readable, survey.problem) == ((), True, None)
    assert bench.files._worker is None


@in_a_loop
async def test_counters_that_an_older_device_lacks_are_normal(bench: Bench) -> None:
    """The first Nitro generations have no retransmission counters."""
    bench.tree.add_efa("rdmap0s6", EFA, without=OLD_NITRO_LACKS)
    survey = await bench.look()
    [port] = survey.devices[0].ports
    assert survey.problem is None
    assert "rx_drops" in port.counters
    assert "retrans_bytes" not in port.counters


@in_a_loop
async def test_a_device_that_was_not_renamed_is_efa_all_the_same(bench: Bench) -> None:
    """Its driver says so, never its name."""
    bench.tree.add_efa("efa_0", EFA)
    bench.tree.add_infiniband("rdmap0s9", IB)
    assert [(d.name, d.is_efa) for d in (await bench.look()).devices] == [
        ("efa_0", True),
        ("rdmap0s9", False),
    ]


@in_a_loop
async def test_one_refused_or_empty_counter_hides_no_other(bench: Bench) -> None:
    """What cannot be read is left out; it is never zero."""
    bench.tree.add_infiniband("mlx5_0", IB)
    bench.tree.refuse("mlx5_0", "ports/1/counters/symbol_error")
    bench.tree.set("mlx5_0", "ports/1/counters/port_rcv_errors", "")
    bench.tree.set("mlx5_0", "ports/1/counters/port_xmit_discards", "N/A (no PMA)")
    bench.tree.set("mlx5_0", "ports/1/counters/link_error_recovery", "-1")
    survey = await bench.look()
    counters = survey.devices[0].ports[0].counters
    assert survey.problem is None
    assert counters["link_downed"] == 0
    gone = {"symbol_error", "port_rcv_errors", "port_xmit_discards", "link_error_recovery"}
    assert not gone & counters.keys()


@in_a_loop
async def test_two_ports_are_two(bench: Bench) -> None:
    """Each with a state and counters of its own."""
    bench.tree.add_infiniband("mlx5_0", IB, ports=2)
    bench.tree.set("mlx5_0", "ports/2/state", "1: DOWN")
    bench.tree.set("mlx5_0", "ports/2/phys_state", "3: Disabled")
    [first, second] = (await bench.look()).devices[0].ports
    assert (first.number, first.state, first.physical_state) == (1, "ACTIVE", "LinkUp")
    assert (second.number, second.state, second.physical_state) == (2, "DOWN", "Disabled")


@in_a_loop
@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", 400.0),
        ("2.5 Gb/sec (1X SDR)", 2.5),
        ("100 Gb/sec (4X EDR)", 100.0),
        ("", None),
        ("fast", None),
        ("nan Gb/sec", None),
        ("-1 Gb/sec", None),
        ("800 Mb/sec", None),
    ],
)
async def test_a_rate_is_a_number_of_gigabits_or_nothing(bench: Bench, text: str, rate: float | None) -> None:
    """Garbage is no rate."""
    bench.tree.add_infiniband("mlx5_0", IB)
    bench.tree.set("mlx5_0", "ports/1/rate", text)
    assert (await bench.look()).devices[0].ports[0].rate_gbps == rate


@in_a_loop
async def test_virtual_functions_of_our_own_are_left_out(bench: Bench) -> None:
    """They belong to virtual machines, or to pods; the physical port tells of the link."""
    bench.tree.add_infiniband("mlx5_0", IB)
    bench.tree.add_virtual_function("mlx5_2", "0000:5c:00.2", of=IB)
    bench.tree.add_software("rxe0")
    assert [(d.name, d.pci_address) for d in (await bench.look()).devices] == [("mlx5_0", IB), ("rxe0", "")]


@in_a_loop
async def test_a_device_that_vanishes_while_it_is_read_is_simply_gone(bench: Bench) -> None:
    """Its entry is still listed and leads nowhere."""
    bench.tree.add_infiniband("mlx5_0", IB)
    bench.tree.add_efa("rdmap0s6", EFA)
    bench.tree.sysfs.vanish_while_listed(IB)
    survey = await bench.look()
    assert [device.name for device in survey.devices] == ["rdmap0s6"]
    assert (survey.problem, survey.failures) == (None, 0)


@in_a_loop
async def test_a_device_that_hung_is_left_alone_for_a_while(bench: Bench) -> None:
    """No new process is lost to it at each poll; later it is asked again, and forgiven."""
    bench.tree.add_infiniband("mlx5_0", IB)
    bench.tree.hang("mlx5_0", "ports/1/state")
    first = await bench.look()
    started = bench.files._request_id
    second = await bench.look()
    assert (first.problem, second.problem) == (RdmaProblem.HUNG, RdmaProblem.HUNG)
    assert bench.files._request_id == started

    bench.tree._homes["mlx5_0"].joinpath("ports/1/state").unlink()
    bench.tree.set("mlx5_0", "ports/1/state", "4: ACTIVE")
    third = await bench.look(after_s=61)

    assert (third.problem, third.failures) == (None, 0)
    assert third.devices[0].ports[0].state == "ACTIVE"


@in_a_loop
async def test_efa_is_not_asked_more_often_than_it_may(bench: Bench) -> None:
    """A burst of probes gives the last reading again; links are looked at anew each time."""
    bench.tree.add_efa("rdmap0s6", EFA)
    bench.tree.add_infiniband("mlx5_0", IB)
    await bench.look()
    bench.tree.set("rdmap0s6", "ports/1/hw_counters/rx_drops", "5")
    bench.tree.set("mlx5_0", "ports/1/state", "1: DOWN")

    soon = {device.name: device.ports[0] for device in (await bench.look(after_s=1)).devices}
    late = {device.name: device.ports[0] for device in (await bench.look(after_s=30)).devices}

    assert (soon["rdmap0s6"].counters["rx_drops"], soon["mlx5_0"].state) == (0, "DOWN")
    assert late["rdmap0s6"].counters["rx_drops"] == 5


@in_a_loop
async def test_a_class_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    """Says that nobody knows, and why."""
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").write_text("")
    survey = await SysfsRdma(tmp_path, clock=HandClock()).survey(Wanted())
    assert not survey.readable
    assert survey.message
    assert survey.failures == 1
