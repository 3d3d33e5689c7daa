"""GPU memory: lost data, storms of corrected errors, repairs that wait or failed, memory that is missing."""

from __future__ import annotations

import pytest

from outlast.adapters.nvml.reader import DETAIL_INTERVAL_S
from outlast.model.health import FaultClass
from tests.unit.health.builders import Scene


def busy(scene: Scene, *indexes: int) -> None:
    """Programs run on these GPUs at full clocks."""
    for index in indexes:
        scene.hardware.change(scene.gpu(index), clocks_event_reasons=0, process_ids=(4000 + index,))


def correct(scene: Scene, index: int, errors: int) -> None:
    """So many more memory errors were corrected."""
    before = scene.hardware.gpus[scene.gpu(index)].ecc_corrected_volatile or 0
    scene.hardware.change(scene.gpu(index), ecc_corrected_volatile=before + errors)


def test_lost_data_from_before_the_agent_is_no_fault() -> None:
    """A count of two at the first look says nothing: the program was ended and the GPU went on."""
    scene = Scene(checked=False)
    scene.hardware.change(scene.gpu(0), ecc_uncorrected_volatile=2, sram_uncorrected=5)
    scene.poll(10)
    assert scene.status.faults == ()
    assert scene.says() == ("Healthy", "GpusHealthy")


def test_a_gpu_returns_after_a_contained_error() -> None:
    """The count stays at two for ever; the node takes work again minutes later, without a restart."""
    scene = Scene()
    scene.xid(0, 94, "Contained: SM (0x1). RST: No, D-RST: No")
    scene.hardware.change(scene.gpu(0), ecc_uncorrected_volatile=2)
    scene.poll(2)
    assert scene.fault.fault_class is FaultClass.TRANSIENT
    assert scene.says()[0] == "Faulty"
    scene.poll(90)
    assert scene.hardware.gpus[scene.gpu(0)].ecc_uncorrected_volatile == 2
    assert scene.status.faults == ()
    assert scene.says() == ("Healthy", "GpusHealthy")


def test_new_lost_data_keeps_work_away_for_a_while_and_drains_nobody() -> None:
    """A rise that the kernel log did not tell of is a fault of a few minutes."""
    scene = Scene()
    scene.hardware.change(scene.gpu(2), sram_uncorrected=1)
    scene.poll()
    assert (scene.fault.code, scene.fault.fault_class) == ("ecc/uncorrected", FaultClass.TRANSIENT)
    scene.poll(40)
    assert scene.status.faults == ()


def test_a_counter_that_starts_again_is_no_rise() -> None:
    """A reloaded driver counts from zero."""
    scene = Scene()
    scene.hardware.change(scene.gpu(0), ecc_uncorrected_volatile=7)
    scene.poll(60)
    scene.hardware.change(scene.gpu(0), ecc_uncorrected_volatile=0)
    scene.poll()
    assert scene.status.faults == ()


def test_a_worn_chip_is_replaced_and_one_odd_answer_is_not_enough() -> None:
    """The vendor's limit is the end of the board; two polls must say so."""
    scene = Scene()
    scene.hardware.change(scene.gpu(1), sram_threshold_exceeded=True)
    scene.poll()
    assert scene.status.faults == ()
    scene.poll()
    assert (scene.fault.code, scene.fault.fault_class) == ("ecc/sram-threshold", FaultClass.HARDWARE_GONE)
    assert scene.says() == ("Faulty", "SramThresholdExceeded")


def test_a_storm_of_corrected_errors_stands_out_against_the_peers() -> None:
    """Thousands a second on one GPU and none on the others, without any line in the log."""
    scene = Scene()
    busy(scene, *range(8))
    for _ in range(4):
        correct(scene, 5, 60_000)
        scene.poll()
    assert (scene.fault.code, scene.fault.fault_class) == ("ecc/corrected-storm", FaultClass.TRANSIENT)
    assert scene.fault.gpu is not None
    assert scene.fault.gpu.pci_address == scene.gpu(5)


def test_a_few_corrected_errors_are_what_ecc_is_for() -> None:
    """Hundreds in an hour are no storm, also when the peers have none."""
    scene = Scene()
    busy(scene, *range(8))
    for _ in range(20):
        correct(scene, 5, 40)
        scene.poll()
    assert scene.status.faults == ()


def test_a_storm_on_every_gpu_blames_none() -> None:
    """What all have alike is not the fault of one board."""
    scene = Scene()
    busy(scene, *range(8))
    for _ in range(6):
        for index in range(8):
            correct(scene, index, 60_000)
        scene.poll()
    assert scene.status.faults == ()


def test_an_idle_gpu_does_not_prove_that_a_storm_is_over() -> None:
    """Quiet without load says nothing; an hour of quiet under load does."""
    scene = Scene()
    busy(scene, *range(8))
    for _ in range(4):
        correct(scene, 5, 60_000)
        scene.poll()
    scene.hardware.change(scene.gpu(5), clocks_event_reasons=1, process_ids=())
    scene.poll(2 * 240)
    assert [fault.code for fault in scene.status.faults] == ["ecc/corrected-storm"]
    busy(scene, 5)
    scene.poll(250)
    assert scene.status.faults == ()


@pytest.mark.parametrize(
    ("signal", "code", "reason"),
    [
        ("channel_repair_pending", "repair/channel", "RepairPending"),
        ("tpc_repair_pending", "repair/tpc", "RepairPending"),
        ("bank_remap_pending", "remap/bank-pending", "RowRemapPending"),
        ("pages_pending", "pages/pending", "PageRetirementPending"),
    ],
)
def test_a_repair_that_waits_is_done_by_a_reset(signal: str, code: str, reason: str) -> None:
    """It stands until the driver says that it waits no more."""
    scene = Scene()
    scene.hardware.change_detail(scene.gpu(4), **{signal: True})
    scene.poll()
    assert (scene.fault.code, scene.fault.fault_class) == (code, FaultClass.RESET_CURES)
    assert scene.says() == ("Faulty", reason)
    scene.hardware.change_detail(scene.gpu(4), **{signal: False})
    scene.poll(6)
    assert scene.status.faults == ()


def test_unrepairable_memory_ends_the_board_whatever_it_says_later() -> None:
    """Only the serial number leaving the machine ends it."""
    scene = Scene()
    scene.hardware.change_detail(scene.gpu(4), memory_unrepairable=True)
    scene.poll(2, every_s=DETAIL_INTERVAL_S)
    assert (scene.fault.code, scene.fault.fault_class) == ("repair/unrepairable", FaultClass.HARDWARE_GONE)
    scene.hardware.change_detail(scene.gpu(4), memory_unrepairable=False)
    scene.poll(20)
    assert scene.fault.code == "repair/unrepairable"
    scene.hardware.change(scene.gpu(4), serial="new-board", uuid="GPU-new")
    scene.poll(2)
    assert scene.status.faults == ()


def test_spares_that_ran_out_are_worth_a_word_and_no_fault() -> None:
    """The GPU works as well as ever until the next bad row."""
    scene = Scene()
    scene.hardware.change_detail(scene.gpu(4), remap_histogram=(600, 30, 8, 1, 1))
    scene.poll()
    assert scene.status.faults == ()
    assert scene.says()[0] == "Healthy"
    assert "without a spare row" in scene.verdict().message


def test_memory_that_is_missing_shows_against_the_peers() -> None:
    """A channel less is a hundredth less, which no driver version explains among equal boards."""
    scene = Scene()
    scene.hardware.change(scene.gpu(6), memory_total_bytes=79 * 1024**3)
    scene.poll(4)
    assert (scene.fault.code, scene.fault.fault_class) == ("memory/reduced", FaultClass.TRANSIENT)
    assert "80896 MiB of memory instead of 81920" in scene.fault.summary


def test_a_new_driver_that_counts_differently_is_no_loss() -> None:
    """All boards show half a percent less at once."""
    scene = Scene()
    for index in range(8):
        scene.hardware.change(scene.gpu(index), memory_total_bytes=int(80 * 1024**3 * 0.995))
    scene.poll(10)
    assert scene.status.faults == ()


def test_another_model_under_the_same_name_is_no_loss() -> None:
    """Some boards come with half the memory and the same name."""
    scene = Scene(checked=False)
    scene.hardware.change(scene.gpu(0), memory_total_bytes=40 * 1024**3)
    scene.poll(10)
    assert scene.status.faults == ()


def test_memory_given_to_ecc_is_a_choice() -> None:
    """Boards that keep their check bits in memory lose a sixteenth when ECC is switched on."""
    scene = Scene()
    for index in range(8):
        scene.hardware.change(scene.gpu(index), memory_total_bytes=75 * 1024**3)
        scene.hardware.change_detail(scene.gpu(index), ecc_enabled=False)
    scene.poll(10)
    assert scene.status.faults == ()


def test_a_lone_gpu_is_compared_with_its_own_past() -> None:
    """It is remembered over a restart of the agent."""
    scene = Scene()
    for index in range(1, 8):
        scene.hardware.change(scene.gpu(index), name=f"other model {index}")
    scene.poll()
    scene.restart()
    scene.hardware.change(scene.gpu(0), memory_total_bytes=70 * 1024**3)
    scene.poll(4)
    assert scene.fault.code == "memory/reduced"
