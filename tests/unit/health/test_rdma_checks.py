"""InfiniBand and RoCE: what is a fault, what is only said, and what is nobody's fault."""

from __future__ import annotations

import msgspec
import pytest

from outlast.model.health import FaultClass, Subsystem
from outlast.model.observation import LinkLayer, NetworkInterface
from outlast.sim.node.sources import infiniband_device, roce_device
from tests.unit.health.around import IB, Around

RDMA = Subsystem.RDMA


def infiniband(ports: int = 8) -> Around:
    """A machine with an InfiniBand port for each GPU."""
    return Around(rdma=[infiniband_device(f"mlx5_{n}", IB[n]) for n in range(ports)])


# --- links


def test_a_machine_with_infiniband_is_judged() -> None:
    """Healthy means that its ports are active, not that there is no EFA."""
    scene = infiniband()
    assert scene.says(RDMA) == ("Healthy", "RdmaHealthy")
    assert "8 of 8 InfiniBand and RoCE ports are active" in scene.verdict(RDMA).message
    assert (scene.status.rdma_found, scene.status.rdma_expected) == (8, 8)
    assert scene.status.state == "Healthy"


def test_a_machine_without_any_is_not_judged() -> None:
    """Nothing to know is no reason to call the node unknown."""
    scene = Around()
    assert scene.says(RDMA) == ("Unknown", "NoRdmaFound")
    assert scene.status.state == "Healthy"


@pytest.mark.parametrize("state", ["DOWN", "INIT", "ARMED"])
def test_a_port_that_stays_down_keeps_new_work_away_and_drains_nobody(state: str) -> None:
    """After two minutes; it is over when the link was good for a minute."""
    scene = infiniband()
    scene.rdma.change_port("mlx5_3", state=state)
    scene.look(3)
    assert scene.says(RDMA)[0] == "Healthy"
    scene.look()
    assert scene.says(RDMA) == ("Faulty", "RdmaLinkDown")
    assert scene.fault.fault_class is FaultClass.TRANSIENT
    assert scene.fault.device == f"mlx5_core {IB[3]}/port1"
    scene.rdma.change_port("mlx5_3", state="ACTIVE")
    scene.look(4)
    assert scene.says(RDMA) == ("Healthy", "RdmaHealthy")


def test_a_link_that_trains_again_is_no_fault() -> None:
    """Down for a minute."""
    scene = infiniband()
    scene.rdma.change_port("mlx5_3", state="DOWN")
    scene.look(2)
    scene.rdma.change_port("mlx5_3", state="ACTIVE")
    scene.look(6)
    assert scene.codes == set()


def test_a_port_that_was_never_up_has_no_cable() -> None:
    """The second port of many adapters is empty, and stays so."""
    device = infiniband_device("mlx5_0", IB[0], ports=2)
    down = msgspec.structs.replace(device.ports[1], state="DOWN", physical_state="Polling")
    scene = Around(rdma=[msgspec.structs.replace(device, ports=(device.ports[0], down))])
    scene.look(20)
    assert scene.says(RDMA) == ("Healthy", "RdmaHealthy")


@pytest.mark.parametrize("layer", [LinkLayer.INFINIBAND, LinkLayer.ETHERNET])
def test_a_port_that_was_switched_off_is_said_and_not_blamed(layer: LinkLayer) -> None:
    """By an administrator: the port says disabled, or its interface is not wanted up."""
    scene = Around(
        rdma=[
            infiniband_device("mlx5_0", IB[0])
            if layer is LinkLayer.INFINIBAND
            else roce_device("mlx5_0", IB[0], "eth2")
        ]
    )
    scene.rdma.change_port("mlx5_0", state="DOWN", physical_state="Disabled")
    if layer is LinkLayer.ETHERNET:
        scene.rdma.devices["mlx5_0"] = msgspec.structs.replace(
            scene.rdma.devices["mlx5_0"], interfaces=(NetworkInterface(name="eth2", up=False),)
        )
    scene.look(10)
    assert scene.codes == set()
    assert "port 1 of mlx5_0 is switched off" in scene.verdict(RDMA).message


def test_an_ethernet_port_without_carrier_is_down_although_it_says_disabled() -> None:
    """Its driver words it so; the interface is wanted up."""
    scene = Around(rdma=[roce_device("mlx5_0", IB[0], "eth2")])
    scene.rdma.change_port("mlx5_0", state="DOWN", physical_state="Disabled")
    scene.look(4)
    assert scene.codes == {"rdma/port-down"}


def test_a_port_slower_than_it_was_is_a_fault() -> None:
    """It trained at half its rate."""
    scene = infiniband()
    scene.rdma.change_port("mlx5_3", rate_gbps=200.0)
    scene.look(4)
    assert scene.says(RDMA) == ("Faulty", "RdmaLinkSlow")


def test_a_port_that_always_was_slower_than_its_peers_is_said() -> None:
    """It may be meant for the storage network: nobody can tell from here."""
    scene = Around(
        rdma=[infiniband_device(f"mlx5_{n}", IB[n], rate_gbps=200.0 if n == 7 else 400.0) for n in range(8)]
    )
    scene.look(10)
    assert scene.codes == set()
    assert "port 1 of mlx5_7 runs at 200 Gb/s, most of its kind at 400 Gb/s" in scene.verdict(RDMA).message


def test_a_port_that_does_not_come_back_after_a_boot_is_missed() -> None:
    """What was active is remembered on disk; a fresh boot has its first minutes for the link to train."""
    scene = infiniband()
    scene.again()
    scene.reboot()
    scene.rdma.change_port("mlx5_3", state="DOWN")
    scene.look(8)
    assert scene.codes == set()
    assert scene.says(RDMA) == ("Unknown", "Initializing")
    scene.time_s += 300
    scene.look(4)
    assert scene.says(RDMA) == ("Faulty", "RdmaLinkDown")


def test_a_fault_is_not_cleared_by_a_look_that_could_not_see_its_port() -> None:
    """Other ports were judged; this one's device does not answer, and the agent was restarted."""
    scene = infiniband()
    scene.rdma.change_port("mlx5_3", state="DOWN")
    scene.look(4)
    scene.rdma.hanging.add("mlx5_3")
    scene.again()
    scene.look(10)
    assert "rdma/port-down" in scene.codes


# --- presence


def test_an_infiniband_device_that_left_the_bus_needs_a_reboot() -> None:
    """Its address is remembered; three minutes pass first."""
    scene = infiniband()
    del scene.rdma.devices["mlx5_3"]
    del scene.hardware.nics[IB[3]]
    scene.look(5)
    assert scene.codes == set()
    scene.look()
    assert scene.says(RDMA) == ("Faulty", "NicMissing")
    assert scene.fault.fault_class is FaultClass.REBOOT_CURES


def test_a_device_that_a_pod_was_given_is_not_missing() -> None:
    """Where each network namespace has its own devices, a pod takes its device out of the host's sight; one
    that is gone from the bus is missing all the same."""
    scene = infiniband()
    scene.rdma.exclusive = True
    del scene.rdma.devices["mlx5_3"]
    scene.look(12)
    assert scene.status.faults == ()
    del scene.hardware.nics[IB[3]]
    scene.look(12)
    assert [f.code for f in scene.status.faults] == ["nic/missing"]


@pytest.mark.parametrize(
    ("driver", "code", "fault_class"),
    [
        ("", "nic/unbound", FaultClass.REBOOT_CURES),
        ("mlx5_core", "nic/no-rdma", FaultClass.TRANSIENT),
        ("vfio-pci", "", FaultClass.TRANSIENT),
    ],
)
def test_a_device_on_the_bus_is_told_from_one_that_is_gone(
    driver: str, code: str, fault_class: FaultClass
) -> None:
    """No driver, a driver without the RDMA part, or given to a virtual machine."""
    scene = infiniband()
    del scene.rdma.devices["mlx5_3"]
    scene.hardware.nics[IB[3]] = msgspec.structs.replace(scene.hardware.nics[IB[3]], driver=driver)
    scene.look(8)
    assert {(f.code, f.fault_class) for f in scene.status.faults} == (
        {(code, fault_class)} if code else set()
    )


def test_a_cloud_may_take_an_ethernet_function_without_a_drain() -> None:
    """Servicing of its host revokes a function for a while."""
    scene = Around(rdma=[roce_device("mlx5_0", IB[0], "eth1")])
    del scene.rdma.devices["mlx5_0"]
    scene.hardware.nics.clear()
    scene.look(10)
    assert scene.fault.fault_class is FaultClass.TRANSIENT


def test_ports_that_became_a_bond_are_not_missed() -> None:
    """A bond is one device on the first function of its slot."""
    first, second = "0000:5c:00.0", "0000:5c:00.1"
    scene = Around(rdma=[roce_device("mlx5_0", first, "eth1"), roce_device("mlx5_1", second, "eth2")])
    scene.rdma.devices = {"mlx5_bond_0": roce_device("mlx5_bond_0", first, "eth1", rate_gbps=800.0)}
    scene.look(10)
    assert scene.codes == set()
    assert "1 of 1 InfiniBand and RoCE ports are active" in scene.verdict(RDMA).message


def test_a_driver_that_is_upgraded_lets_go_of_all_devices_and_drains_nobody() -> None:
    """All without a driver is software."""
    scene = infiniband()
    scene.rdma.devices.clear()
    for address, nic in scene.hardware.nics.items():
        scene.hardware.nics[address] = msgspec.structs.replace(nic, driver="")
    scene.look(8)
    assert {fault.fault_class for fault in scene.status.faults} == {FaultClass.TRANSIENT}


def test_functions_that_all_moved_on_the_bus_are_the_same_devices() -> None:
    """A virtual machine that was started on another host."""
    scene = infiniband(4)
    scene.rdma.devices = {f"mlx5_{n}": infiniband_device(f"mlx5_{n}", f"0{n}01:00:00.0") for n in range(4)}
    scene.hardware.nics.clear()
    for device in scene.rdma.devices.values():
        scene.plug(device)
    scene.look(10)
    assert scene.codes == set()
    assert "4 of 4 InfiniBand and RoCE ports are active" in scene.verdict(RDMA).message


def test_a_device_without_a_cable_stands_in_for_none_that_is_gone() -> None:
    """Others are where they were, so the one that is not is missing."""
    idle = infiniband_device("mlx5_9", "0000:f0:00.0")
    down = (msgspec.structs.replace(idle.ports[0], state="DOWN", physical_state="Polling"),)
    devices = [infiniband_device(f"mlx5_{n}", IB[n]) for n in range(2)]
    scene = Around(rdma=[*devices, msgspec.structs.replace(idle, ports=down)])
    del scene.rdma.devices["mlx5_0"]
    del scene.hardware.nics[IB[0]]
    scene.look(6)
    assert scene.says(RDMA) == ("Faulty", "NicMissing")


# --- errors of links


def test_a_link_that_flaps_keeps_new_work_away() -> None:
    """Three times within an hour, also when each time was too short to be seen down."""
    scene = infiniband()
    scene.rdma.count("mlx5_3", "link_downed", 1)
    scene.look(3)
    assert scene.codes == set()
    assert "its link went down within the last hour" in scene.verdict(RDMA).message
    scene.rdma.count("mlx5_3", "link_downed", 2)
    scene.look(2)
    assert scene.says(RDMA) == ("Faulty", "LinkFlapping")
    scene.look(125)
    assert scene.says(RDMA) == ("Healthy", "RdmaHealthy")


def test_a_roce_link_flaps_by_its_carrier() -> None:
    """Going and coming back are two changes."""
    scene = Around(rdma=[roce_device("mlx5_0", IB[0], "eth2")])
    scene.rdma.devices["mlx5_0"] = msgspec.structs.replace(
        scene.rdma.devices["mlx5_0"],
        interfaces=(NetworkInterface(name="eth2", up=True, carrier_changes=2 + 6),),
    )
    scene.look(2)
    assert scene.codes == {"rdma/link-flapping"}


def test_what_was_counted_before_the_agent_looked_is_no_news() -> None:
    """The first sample is a baseline, and a counter at its end says nothing any more."""
    device = infiniband_device("mlx5_0", IB[0])
    port = msgspec.structs.replace(
        device.ports[0], counters={"link_downed": 255, "symbol_error": 65_535, "port_rcv_errors": 60_000}
    )
    scene = Around(rdma=[msgspec.structs.replace(device, ports=(port,))])
    scene.look(10)
    assert scene.codes == set()
    assert "Noted" not in scene.verdict(RDMA).message


@pytest.mark.parametrize(("counter", "by"), [("symbol_error", 120), ("local_link_integrity_errors", 2)])
def test_errors_of_the_own_cable_are_a_fault(counter: str, by: int) -> None:
    """Above the limit of the specification within an hour."""
    scene = infiniband()
    scene.rdma.count("mlx5_3", counter, by)
    scene.look(2)
    assert scene.says(RDMA) == ("Faulty", "RdmaLinkErrors")
    assert scene.fault.fault_class is FaultClass.TRANSIENT


@pytest.mark.parametrize(
    ("counter", "by"),
    [
        ("symbol_error", 100),
        ("port_rcv_errors", 50_000),
        ("port_xmit_discards", 60_000),
        ("rnr_nak_retry_err", 10_000),
        ("out_of_sequence", 100_000),
    ],
)
def test_errors_that_others_can_make_are_said_at_most(counter: str, by: int) -> None:
    """Congestion, the other end, a program that is slow to receive; and few symbol errors."""
    scene = infiniband()
    scene.rdma.count("mlx5_3", counter, 0)
    scene.look()
    scene.rdma.count("mlx5_3", counter, by)
    scene.look(3)
    assert scene.codes == set()
    assert scene.says(RDMA)[0] == "Healthy"
