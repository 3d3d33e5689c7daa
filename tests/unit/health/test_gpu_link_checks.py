"""PCIe, NVLink and fabric: what is down, what is slow under load, and what only looks like it."""

from __future__ import annotations

import msgspec
import pytest

from outlast.adapters.nvml.reader import DETAIL_INTERVAL_S
from outlast.health.checks.fabric import troubles
from outlast.model.health import FaultClass, Scope, Subsystem
from tests.unit.health.builders import Scene

GOOD_MASK = 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8 | 1 << 12 | 1 << 14


@pytest.fixture
def scene() -> Scene:
    """A node whose driver came up long ago."""
    made = Scene()
    made.poll(25)
    return made


def work(scene: Scene, *indexes: int, generation: int = 5) -> None:
    """These GPUs compute."""
    for index in indexes:
        scene.hardware.change(
            scene.gpu(index), process_ids=(100 + index,), clocks_event_reasons=0, pcie_generation=generation
        )


def test_lanes_that_went_missing_are_a_fault_that_drains_nobody(scene: Scene) -> None:
    """Four polls agree; full width ends it."""
    scene.hardware.change(scene.gpu(2), pcie_width=8)
    scene.poll(3)
    assert scene.status.faults == ()
    scene.poll()
    assert (scene.fault.code, scene.fault.fault_class) == ("pcie/width", FaultClass.TRANSIENT)
    assert "8 PCIe lanes instead of 16" in scene.fault.summary
    scene.hardware.change(scene.gpu(2), pcie_width=16)
    scene.poll(6)
    assert scene.status.faults == ()


def test_a_sleeping_gpu_may_give_up_lanes(scene: Scene) -> None:
    """A low performance state is not judged; a fault that stands does not end by it either."""
    scene.hardware.change(scene.gpu(2), pcie_width=1, performance_state=8)
    scene.poll(20)
    assert scene.status.faults == ()
    scene.hardware.change(scene.gpu(2), performance_state=0)
    scene.poll(4)
    assert scene.fault.code == "pcie/width"
    scene.hardware.change(scene.gpu(2), performance_state=8)
    scene.poll(20)
    assert scene.fault.code == "pcie/width"


def test_a_machine_that_wires_fewer_lanes_is_as_it_was_built() -> None:
    """All GPUs had eight of sixteen lanes since the first look."""
    scene = Scene(checked=False)
    for index in range(8):
        scene.hardware.change(scene.gpu(index), pcie_width=8)
    scene.poll(30)
    assert scene.status.faults == ()


def test_a_board_that_came_up_narrow_shows_against_its_peers() -> None:
    """It was never seen wider, but the seven others are."""
    scene = Scene(checked=False)
    scene.hardware.change(scene.gpu(0), pcie_width=4)
    scene.poll(4)
    assert scene.fault.code == "pcie/width"


def test_idle_links_lower_their_speed_on_purpose(scene: Scene) -> None:
    """Generation 1 on an idle GPU beside seven busy ones at 5."""
    work(scene, *range(1, 8))
    scene.hardware.change(
        scene.gpu(0), pcie_generation=1, clocks_event_reasons=1, performance_state=8, process_ids=()
    )
    scene.poll(60)
    assert scene.status.faults == ()


def test_a_slow_link_under_load_is_a_fault(scene: Scene) -> None:
    """Its peers, under load as well, run faster."""
    work(scene, *range(1, 8))
    work(scene, 0, generation=3)
    scene.poll(8)
    assert (scene.fault.code, scene.fault.fault_class) == ("pcie/generation", FaultClass.TRANSIENT)


def test_a_slot_of_an_older_generation_is_as_it_was_built(scene: Scene) -> None:
    """All busy GPUs run at the same speed."""
    work(scene, *range(8), generation=4)
    scene.poll(30)
    assert scene.status.faults == ()


@pytest.mark.parametrize(("replays", "faulty"), [(1, False), (40, True)])
def test_replays_count_by_their_rate(scene: Scene, replays: int, faulty: bool) -> None:
    """Single ones are how PCIe repairs itself; ten a minute are a bad link."""
    for step in range(1, 41):
        scene.hardware.change(scene.gpu(1), pcie_errors={"replay": step * replays, "fatal": 0})
        scene.poll()
    assert [fault.code for fault in scene.status.faults] == (["pcie/errors"] if faulty else [])


def test_a_saturated_counter_says_nothing(scene: Scene) -> None:
    """All ones is what a counter ends at, or a dead device reads as."""
    scene.hardware.change(scene.gpu(1), pcie_errors={"replay": 2**32 - 1, "fatal": 2**32 - 1})
    scene.poll(5)
    assert scene.status.faults == ()


def links(scene: Scene, index: int, up: str) -> None:
    """The links of a GPU, as ones and zeros."""
    scene.hardware.change_detail(scene.gpu(index), nvlinks=tuple(state == "1" for state in up))


def test_a_link_that_stays_down_is_cured_by_a_reset(scene: Scene) -> None:
    """Three looks agree; all links up for ten minutes end it."""
    links(scene, 3, "1" * 17 + "0")
    scene.poll(2, every_s=DETAIL_INTERVAL_S)
    assert scene.status.faults == ()
    scene.poll(every_s=DETAIL_INTERVAL_S)
    assert (scene.fault.code, scene.fault.fault_class) == ("nvlink/down", FaultClass.RESET_CURES)
    assert "17 of 18 NVLinks up (down: 17)" in scene.fault.summary
    assert scene.says(Subsystem.FABRIC) == ("Faulty", "NvLinkDown")
    assert scene.says(Subsystem.GPU)[0] == "Healthy"
    links(scene, 3, "1" * 18)
    scene.poll(20)
    assert scene.status.faults != ()
    scene.poll(25)
    assert scene.status.faults == ()


def test_links_of_all_gpus_that_go_down_are_no_eight_bad_boards(scene: Scene) -> None:
    """One finding about the machine, and nobody is reset for it."""
    for index in range(8):
        links(scene, index, "0" * 18)
    scene.poll(3, every_s=DETAIL_INTERVAL_S)
    fault = scene.fault
    assert (fault.code, fault.scope, fault.fault_class) == ("nvlink/none", Scope.NODE, FaultClass.TRANSIENT)
    for index in range(8):
        links(scene, index, "1" * 18)
    scene.poll(6)
    assert scene.status.faults == ()


def test_links_may_train_after_the_driver_came_up() -> None:
    """Nothing is said in the first five minutes, also not about links seen up before."""
    scene = Scene()
    links(scene, 3, "0" * 18)
    scene.poll(15)
    assert scene.status.faults == ()
    links(scene, 3, "1" * 18)
    scene.poll(30)
    assert scene.status.faults == ()


def test_links_are_off_in_mig_mode(scene: Scene) -> None:
    """A GPU in slices has no use for them."""
    scene.hardware.change(scene.gpu(3), mig_enabled=True, mig_pending=True, mig_instances=(1, 2))
    links(scene, 3, "0" * 18)
    scene.poll(20)
    assert scene.status.faults == ()


def test_links_to_a_gpu_that_is_being_reset_are_its_news(scene: Scene) -> None:
    """While one GPU does not answer, the links of the others are not judged."""
    scene.hardware.change(scene.gpu(0), error="RESET_REQUIRED")
    for index in range(1, 8):
        links(scene, index, "1" * 16 + "00")
    scene.poll(20)
    assert [fault.subsystem for fault in scene.status.faults] == [Subsystem.GPU]


def test_a_gpu_without_links_in_a_virtual_machine_lacks_nothing() -> None:
    """No link was ever up on this machine, whatever the model's name promises."""
    scene = Scene(checked=False)
    for index in range(8):
        links(scene, index, "0" * 18)
    scene.poll(60)
    assert scene.status.faults == ()


def test_a_board_with_fewer_links_than_the_chip_lacks_nothing() -> None:
    """Some models leave links of the chip unused."""
    scene = Scene(checked=False)
    for index in range(8):
        scene.hardware.change(scene.gpu(index), name="NVIDIA H800")
        links(scene, index, "1" * 8 + "0" * 10)
    scene.poll(60)
    assert scene.status.faults == ()


@pytest.mark.parametrize(
    ("name", "a_poll", "faulty"),
    [("recovery", 1, True), ("replay", 1, False), ("replay", 20, True), ("transmit_discard", 500, False)],
)
def test_link_errors_count_by_kind_and_rate(scene: Scene, name: str, a_poll: int, faulty: bool) -> None:
    """A link repairs single errors as it is built to; recoveries in a row are a bad link."""
    for step in range(20):
        scene.hardware.change_detail(
            scene.gpu(5), nvlink_errors={name: (0,) * 4 + (step * a_poll,) + (None,) * 13}
        )
        scene.poll()
    assert [fault.code for fault in scene.status.faults] == (["nvlink/errors"] if faulty else [])
    if faulty:
        assert "NVLink 4" in scene.fault.summary
        assert scene.fault.fault_class is FaultClass.TRANSIENT


def test_a_poll_that_did_not_read_links_judges_none(scene: Scene) -> None:
    """A poll that only repeats what is known says nothing about links, and ends nothing either."""
    links(scene, 3, "0" * 18)
    survey = scene.survey()
    for _ in range(20):
        scene.time_s += 15
        scene.tell(scene.pci(), msgspec.structs.replace(survey, detailed=False))
    assert scene.status.faults == ()


def test_a_fabric_that_does_not_form_is_the_platform(scene: Scene) -> None:
    """CUDA error 802 on all GPUs: one finding about the node, no reset and no new board."""
    for index in range(8):
        scene.hardware.change(scene.gpu(index), fabric_state=2, fabric_summary=0)
    scene.poll(4)
    fault = scene.fault
    assert (fault.code, fault.scope, fault.fault_class) == (
        "fabric/not-ready",
        Scope.NODE,
        FaultClass.TRANSIENT,
    )
    assert "802" in fault.summary
    assert scene.says(Subsystem.FABRIC) == ("Faulty", "FabricNotReady")
    assert scene.says(Subsystem.GPU)[0] == "Healthy"
    for index in range(8):
        scene.hardware.change(scene.gpu(index), fabric_state=3, fabric_summary=1)
    scene.poll(6)
    assert scene.status.faults == ()


def test_a_fabric_may_form_after_the_driver_came_up() -> None:
    """In progress within five minutes is no fault."""
    scene = Scene()
    for index in range(8):
        scene.hardware.change(scene.gpu(index), fabric_state=2)
    scene.poll(12)
    assert scene.status.faults == ()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"fabric_summary": 2, "fabric_health_mask": GOOD_MASK & ~0x30 | 1 << 4}, "a route is unhealthy"),
        ({"fabric_summary": 3}, "limited capacity"),
        ({"fabric_status": 999}, "NVML error 999"),
        ({"fabric_summary": None, "fabric_health_mask": GOOD_MASK & ~0xF00 | 5 << 8}, "too few NVLinks"),
        ({"fabric_summary": 0, "fabric_health_mask": 2 << 14}, "fabric manager is not connected"),
    ],
)
def test_an_unhealthy_part_of_the_fabric_is_named(scene: Scene, fields: dict[str, int], words: str) -> None:
    """The summary decides; without one the mask does."""
    scene.hardware.change(scene.gpu(7), **fields)
    scene.poll(3)
    assert (scene.fault.code, scene.fault.fault_class) == ("fabric/unhealthy", FaultClass.TRANSIENT)
    assert words in scene.fault.summary


@pytest.mark.parametrize(
    "fields",
    [
        {"fabric_summary": 1, "fabric_health_mask": 1},
        {"fabric_summary": None, "fabric_health_mask": GOOD_MASK},
        {"fabric_summary": 0, "fabric_health_mask": 0},
        {"fabric_state": 0, "fabric_status": 3, "fabric_summary": 2},
    ],
)
def test_a_good_fabric_and_none_are_no_fault(scene: Scene, fields: dict[str, int]) -> None:
    """One means "true" in some parts of the mask and "good" in others; no fabric is no trouble."""
    scene.hardware.change(scene.gpu(7), **fields)
    scene.poll(10)
    assert scene.status.faults == ()


def test_the_mask_is_read_part_by_part() -> None:
    """Nothing is wrong in a good mask and in an empty one; each bad value has its words."""
    assert troubles(GOOD_MASK) == ()
    assert troubles(0) == ()
    assert troubles(1 << 2 | 2 << 12) == (
        "a route is being recovered",
        "no partition is assigned to it",
    )


def test_a_link_error_of_a_board_with_unused_links_can_end() -> None:
    """The proof asks for the links that this board has ever had up, not for all that the chip could have."""
    scene = Scene(checked=False)
    for index in range(8):
        scene.hardware.change(scene.gpu(index), name="NVIDIA H800")
        links(scene, index, "1" * 8 + "0" * 10)
    scene.poll(30)
    scene.xid(3, 74, "NVLink: fatal error detected on link 2(0x4000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")
    assert scene.says(Subsystem.FABRIC)[0] == "Faulty"
    links(scene, 3, "1" * 7 + "0" * 11)
    scene.poll(60)
    assert scene.says(Subsystem.FABRIC)[0] == "Faulty"
    links(scene, 3, "1" * 8 + "0" * 10)
    scene.poll(100)
    assert scene.status.faults == ()


def test_errors_between_gpu_and_processor_are_worth_a_word_and_no_fault() -> None:
    """What was counted before the first look is not growth, and an hour later it is over."""
    scene = Scene(checked=False)
    scene.hardware.change_detail(scene.gpu(1), c2c_errors={"interrupts": 900, "replay": 5})
    scene.poll(3)
    assert "C2C" not in scene.verdict(Subsystem.FABRIC).message

    scene.hardware.change_detail(scene.gpu(1), c2c_errors={"interrupts": 901, "replay": 5})
    scene.poll()
    assert f"(C2C) of GPU {scene.gpu(1)} repairs errors" in scene.verdict(Subsystem.FABRIC).message
    assert (scene.says(Subsystem.FABRIC)[0], scene.status.faults) == ("Healthy", ())

    scene.poll(250)
    assert "C2C" not in scene.verdict(Subsystem.FABRIC).message
