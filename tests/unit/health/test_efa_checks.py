"""EFA: counted by vendor, device and driver; its counters are said, and only silence is a fault."""

from __future__ import annotations

import pytest

from outlast.health.verdict import Settings
from outlast.model.health import FaultClass, Subsystem
from outlast.model.observation.rdma import EFA_LOCAL_COUNTERS, EFA_REMOTE_COUNTERS
from outlast.sim.node.sources import efa_device, roce_device
from tests.unit.health.around import IB, Around

RDMA = Subsystem.RDMA


def efa(instance_type: str = "p5.48xlarge", count: int = 32, **options: object) -> Around:
    """An EC2 machine; the counters of its first two devices can be moved."""
    scene = Around(instance_type=instance_type, efa=count, **options)  # type: ignore[arg-type]
    for number in range(min(count, 2)):
        device = efa_device(f"rdmap{number}s6", scene.hardware.efa[number])
        scene.rdma.devices[device.name] = device
    scene.look(2)
    return scene


def test_efa_devices_are_expected_by_type_experience_and_word() -> None:
    """15 of 16 is a fault on a first boot too; half of them is a choice made at launch."""
    assert efa("p5en.48xlarge", 16).says(RDMA) == ("Healthy", "RdmaHealthy")
    assert efa("p5en.48xlarge", 15).says(RDMA) == ("Faulty", "EfaMissing")
    half = efa("p5en.48xlarge", 8)
    assert half.says(RDMA) == ("Healthy", "RdmaHealthy")
    assert "8 of the 16 EFA devices that a p5en.48xlarge can have" in half.verdict(RDMA).message
    assert efa("p5en.48xlarge", 15, settings=Settings(expected_efa=15)).says(RDMA)[0] == "Healthy"


def test_more_efa_devices_than_a_type_can_have_are_a_matter_of_configuration() -> None:
    """Counted by vendor, device and driver; never the hardware's fault."""
    scene = efa("p6-b200.48xlarge", 10)
    assert scene.says(RDMA) == ("Healthy", "RdmaHealthy")
    assert "10 EFA devices where a p6-b200.48xlarge should have 8" in scene.verdict(RDMA).message


def test_other_adapters_beside_efa_are_no_efa() -> None:
    """Two Mellanox functions change neither the count nor the verdict."""
    scene = efa("p6-b200.48xlarge", 8)
    for number in (0, 1):
        device = roce_device(f"mlx5_{number}", IB[number], f"eth{number}")
        scene.rdma.devices[device.name] = device
        scene.plug(device)
    scene.look(10)
    assert scene.says(RDMA) == ("Healthy", "RdmaHealthy")
    assert scene.status.rdma_found == 8


def test_an_efa_device_without_its_driver_is_named_so() -> None:
    """It is on the bus: no board is missing."""
    scene = efa()
    scene.hardware.efa_unbound = set(scene.hardware.efa[:2])
    scene.look(2)
    assert scene.says(RDMA) == ("Faulty", "NicDriverUnbound")
    assert scene.fault.code == "efa/unbound"


@pytest.mark.parametrize("counter", EFA_REMOTE_COUNTERS)
def test_the_nodes_that_complain_of_a_dead_peer_are_not_drained(counter: str) -> None:
    """The counter accuses the other end: it is recorded and said, nothing more, however fast it grows."""
    scene = efa()
    for _ in range(10):
        scene.rdma.count("rdmap0s6", counter, 100_000)
        scene.look()
    assert scene.codes == set()
    assert scene.says(RDMA) == ("Healthy", "RdmaHealthy")
    assert f"{counter} grow on rdmap0s6: they accuse the other end" in scene.verdict(RDMA).message


@pytest.mark.parametrize("counter", EFA_LOCAL_COUNTERS)
def test_drops_and_retransmissions_are_said_when_they_last(counter: str) -> None:
    """A rate over ten minutes; what a device counted before is nothing."""
    scene = efa()
    scene.rdma.count("rdmap0s6", counter, 50)
    scene.look(2)
    assert "Noted" not in scene.verdict(RDMA).message
    scene.rdma.count("rdmap0s6", counter, 700_000_000)
    scene.look()
    assert f"{counter} grow on rdmap0s6" in scene.verdict(RDMA).message
    assert scene.codes == set()


def test_an_efa_device_that_answers_no_command_is_at_fault() -> None:
    """Commands go unanswered and none is completed; one late answer among others is not it."""
    scene = efa()
    for _ in range(6):
        scene.rdma.count("rdmap0s6", "completed_cmds", 5)
        scene.rdma.count("rdmap0s6", "no_completion_cmds", 1)
        scene.rdma.count("rdmap1s6", "completed_cmds", 5)
        scene.look()
    assert scene.codes == set()
    scene.look(21)
    for _ in range(8):
        scene.rdma.count("rdmap0s6", "no_completion_cmds", 1)
        scene.rdma.count("rdmap1s6", "completed_cmds", 5)
        scene.look()
    assert scene.says(RDMA) == ("Faulty", "EfaNotResponding")
    assert scene.fault.device.endswith(scene.hardware.efa[0])


def test_devices_that_cannot_be_read_are_unknown_and_never_a_fault() -> None:
    """Twice in a row; one late answer changes nothing."""
    scene = efa()
    scene.rdma.hanging.add("rdmap0s6")
    scene.look()
    assert scene.says(RDMA)[0] == "Healthy"
    scene.look(20)
    assert scene.says(RDMA) == ("Unknown", "RdmaNotReadable")
    assert scene.codes == set()
    scene.rdma.hanging.clear()
    scene.look()
    assert scene.says(RDMA) == ("Healthy", "RdmaHealthy")


def test_a_driver_that_lets_go_of_all_devices_drains_nobody() -> None:
    """It is being upgraded, or was not loaded: software."""
    scene = efa()
    scene.hardware.efa_unbound = set(scene.hardware.efa)
    scene.look(2)
    assert (scene.fault.code, scene.fault.fault_class) == ("efa/unbound", FaultClass.TRANSIENT)
