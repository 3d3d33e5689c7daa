"""Cases of EFA in tests/data/cases.tsv; the table says what happens and which trap there is."""

from __future__ import annotations

from outlast.model.health import Subsystem
from outlast.model.observation.rdma import LinkLayer, RdmaDevice, RdmaPort, RdmaSurvey
from tests.acceptance.cases import disrupts
from tests.unit.health.builders import Scene


def efa(index: int, name: str = "", **counters: int) -> RdmaDevice:
    """An EFA device with these counters."""
    return RdmaDevice(
        name=name or f"rdmap{index}s0",
        pci_address=f"0000:{0x90 + index // 8:02x}:{index % 8:02x}.0",
        driver="efa",
        vendor=0x1D0F,
        device=0xEFA2,
        ports=(RdmaPort(number=1, state="ACTIVE", physical_state="LinkUp", counters=counters),),
    )


MLX = RdmaDevice(
    name="mlx5_0",
    pci_address="0000:05:00.0",
    driver="mlx5_core",
    vendor=0x15B3,
    device=0x101E,
    ports=(RdmaPort(number=1, state="DOWN", physical_state="Disabled", link_layer=LinkLayer.ETHERNET),),
)


def surveyed(scene: Scene, polls: int, *devices: RdmaDevice) -> Scene:
    """These RDMA devices, seen again and again."""
    for _ in range(polls):
        scene.poll(2)
        scene.tell(RdmaSurvey(devices=devices))
    return scene


def test_up_064_other_cards_and_idle_counters_are_no_fault_of_the_node() -> None:
    """An unused Ethernet card beside EFA, no byte moves: what a container mounts is no fault of the node."""
    scene = surveyed(Scene(), 12, *(efa(i, tx_bytes=0, rx_bytes=0) for i in range(32)), MLX)
    assert (scene.status.faults, scene.says(Subsystem.RDMA)[0]) == ((), "Healthy")


def test_up_065_more_devices_than_belong_here_are_said() -> None:
    """34 of 32: a word about configuration, no fault; what is no EFA device is not counted."""
    scene = Scene(efa=34, checked=False)
    scene.poll(3)
    assert scene.status.rdma_found == 34
    assert scene.status.faults == ()
    assert "34" in scene.verdict(Subsystem.RDMA).message
    surveyed(scene, 3, *(efa(i) for i in range(32)), MLX)
    assert scene.status.rdma_found == 34


def test_up_067_the_node_that_reports_a_failed_transfer_is_not_blamed() -> None:
    """Failed writes and a silent peer grow here; this node stays in service and says what it saw."""
    scene, count = Scene(), 0
    for _ in range(30):
        count += 60
        surveyed(scene, 1, efa(0, rdma_write_wr_err=count, unresponsive_remote_events=count))
    assert not disrupts(scene)
    assert scene.says(Subsystem.RDMA)[0] == "Healthy"


def test_up_068_counters_are_read_where_they_are_and_missed_nowhere() -> None:
    """An older card lacks some: normal. One that drops packets is noted by name."""
    old = surveyed(Scene(), 10, efa(0))
    assert old.says(Subsystem.RDMA)[0] == "Healthy"
    scene, count = Scene(), 0
    for _ in range(30):
        count += 3000
        surveyed(scene, 1, efa(0, rx_drops=count), efa(1))
    assert "rx_drops" in scene.verdict(Subsystem.RDMA).message
    scene.hardware.unplugged.add(scene.hardware.efa[3])
    scene.poll(2)
    assert scene.says(Subsystem.RDMA) == ("Faulty", "EfaMissing")


def test_up_069_those_who_complain_of_a_dead_peer_stay() -> None:
    """A high rate of `unresponsive_remote_events` is said, with who it accuses."""
    scene, count = Scene(), 0
    for _ in range(30):
        count += 200 * 30
        surveyed(scene, 1, efa(0, unresponsive_remote_events=count))
    assert scene.status.faults == ()
    assert "other end" in scene.verdict(Subsystem.RDMA).message
