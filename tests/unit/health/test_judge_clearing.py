"""What ends a fault, class by class: the positive proof, and the nearest thing that is none."""

from __future__ import annotations

import msgspec
import pytest

from outlast.health.verdict.clearing import Ending
from outlast.model.health import FaultClass, FaultState, Subsystem
from outlast.model.observation import (
    GpuDetail,
    KernelLogCaughtUp,
    KernelLogGap,
    KernelLogLost,
)
from tests.unit.health.builders import Scene


def endings(scene: Scene, polls: int) -> list[Ending]:
    """How faults ended within the next polls."""
    found = []
    for _ in range(polls):
        found += [ended.ending for ended in scene.poll().ended]
    return found


def test_a_slow_firmware_is_downgraded_and_a_dead_one_is_not() -> None:
    """119 alone, while the driver says all along that it wants nothing, is a warning after 30 minutes."""
    slow, dead = Scene(), Scene()
    slow.xid(0, 119)
    dead.xid(0, 120)
    assert endings(slow, 100) == []
    assert endings(slow, 30) == [Ending.DOWNGRADED]
    assert endings(dead, 400) == []


def test_half_an_hour_that_nobody_watched_proves_nothing() -> None:
    """The driver must have been readable all along."""
    scene = Scene()
    scene.xid(0, 119)
    scene.poll(100)
    scene.hardware.change(scene.gpu(0), recovery_action=None)
    scene.poll()
    scene.hardware.change(scene.gpu(0), recovery_action=0)
    assert endings(scene, 100) == []
    assert endings(scene, 40) == [Ending.DOWNGRADED]


def test_an_expiry_counts_only_while_the_log_could_have_told() -> None:
    """Lost records and an unreadable log start it again."""
    quiet, gap, lost = Scene(), Scene(), Scene()
    for scene in (quiet, gap, lost):
        scene.xid(0, 95, "Uncontained. RST: No, D-RST: No")
        scene.wait(6)
        scene.poll(30)
    gap.tell(KernelLogGap(lost=3, reason="overrun"))
    lost.tell(KernelLogLost(message="gone"))
    for scene in (quiet, gap, lost):
        scene.poll(20)
    assert quiet.says()[0] == "Healthy"
    assert [scene.says()[0] for scene in (gap, lost)] == ["Faulty", "Faulty"]
    lost.tell(KernelLogCaughtUp())
    lost.poll(20)
    assert lost.says()[0] == "Faulty"
    lost.poll(40)
    assert lost.says()[0] == "Healthy"


def test_a_notice_of_a_repair_is_recorded_at_once() -> None:
    """63 with readable counters and nothing waiting is over with the second poll."""
    scene = Scene()
    scene.xid(0, 63)
    assert endings(scene, 2) == [Ending.RECORDED]


def test_a_repair_that_nobody_can_confirm_is_taken_at_the_logs_word() -> None:
    """63 asks for a reset where the counters cannot be read; where they can, they decide."""
    read, unread = Scene(), Scene()
    unread.hardware.change(unread.gpu(0), remap_pending=None)
    unread.poll()
    for scene in (read, unread):
        scene.xid(0, 63)
    assert read.fault.fault_class is FaultClass.TRANSIENT
    assert unread.fault.fault_class is FaultClass.RESET_CURES
    read.hardware.change(read.gpu(0), remap_pending=True)
    read.poll()
    assert read.fault.fault_class is FaultClass.RESET_CURES


def test_a_failed_repair_never_ends_in_the_machine() -> None:
    """64 does not clear by a reset, a reboot or time: relief after a reset is false."""
    scene = Scene()
    scene.xid(0, 64)
    scene.hardware.change(scene.gpu(0), recovery_action=1)
    scene.poll(2)
    scene.hardware.change(scene.gpu(0), recovery_action=0)
    scene.poll(100)
    scene.reboot()
    scene.poll(900, every_s=100)
    assert scene.fault.code == "xid/64"
    scene.hardware.change(scene.gpu(0), serial="another", uuid="GPU-another")
    assert endings(scene, 1) == [Ending.HARDWARE_LEFT]


def test_a_contained_error_ends_with_its_job_or_after_ten_minutes() -> None:
    """Its program has left the GPU, or nothing came for ten minutes; a waiting row keeps it."""
    left, stays, waits = Scene(), Scene(), Scene()
    for scene in (left, stays, waits):
        scene.hardware.change(scene.gpu(0), process_ids=(77,))
        scene.xid(0, 94, "Contained. RST: No, D-RST: No", pid=77)
        scene.wait(6)
        scene.poll()
    left.hardware.change(left.gpu(0), process_ids=(99,))
    waits.hardware.change(waits.gpu(0), process_ids=(), remap_pending=True)
    for scene in (left, stays, waits):
        scene.poll(6)
    assert [scene.says()[0] for scene in (left, stays, waits)] == ["Healthy", "Faulty", "Faulty"]
    stays.poll(45)
    waits.poll(45)
    assert [scene.says()[0] for scene in (stays, waits)] == ["Healthy", "Faulty"]


def test_a_switch_of_programs_that_timed_out_waits_for_its_program() -> None:
    """109 is over after an hour only when the program has left."""
    left, stays = Scene(), Scene()
    for scene in (left, stays):
        scene.hardware.change(scene.gpu(0), process_ids=(77,))
        scene.xid(0, 109, "errorString CTX SWITCH TIMEOUT", pid=77)
        scene.poll()
    left.hardware.change(left.gpu(0), process_ids=())
    for scene in (left, stays):
        scene.poll(60, every_s=70)
    assert [scene.says()[0] for scene in (left, stays)] == ["Healthy", "Faulty"]


def test_links_are_good_when_they_were_up_for_ten_minutes() -> None:
    """74 is over when every link was up in all polls of ten minutes; one that is down keeps it."""
    up, down, unread = Scene(), Scene(), Scene()
    for scene, links in ((up, (True,) * 18), (down, (True,) * 17 + (False,)), (unread, None)):
        scene.hardware.change(scene.gpu(0), detail=GpuDetail(nvlinks=links))
        scene.xid(0, 74)
        scene.poll(30)
        assert scene.says(Subsystem.FABRIC)[0] == "Faulty"
        scene.poll(20)
    assert [s.says(Subsystem.FABRIC)[0] for s in (up, unread)] == ["Healthy", "Faulty"]
    assert down.says(Subsystem.FABRIC)[0] == "Faulty"


@pytest.mark.parametrize(("flag", "says"), [(False, "Healthy"), (None, "Faulty"), (True, "Faulty")])
def test_sram_errors_need_a_readable_threshold(flag: bool | None, says: str) -> None:
    """172 expires after a day only while the threshold reads false; exceeded or unread it stays."""
    scene = Scene()
    scene.hardware.change(scene.gpu(0), sram_threshold_exceeded=flag)
    scene.xid(0, 172)
    scene.poll(880, every_s=100)
    assert scene.says()[0] == says


@pytest.mark.parametrize(("pending", "says"), [(False, "Healthy"), (None, "Faulty"), (True, "Faulty")])
def test_a_pending_repair_needs_its_page_read(pending: bool | None, says: str) -> None:
    """160 is over when the page says that nothing waits; unread or waiting it stays."""
    scene = Scene()
    detail = GpuDetail(channel_repair_pending=pending, tpc_repair_pending=pending)
    scene.hardware.change(scene.gpu(0), detail=detail)
    scene.xid(0, 160)
    scene.poll(10)
    assert scene.says()[0] == says


@pytest.mark.parametrize(("persistence", "says"), [(True, "Healthy"), (False, "Faulty")])
def test_a_wish_that_the_driver_may_forget_needs_persistence(persistence: bool, says: str) -> None:
    """Recovery action 3 that reads none again is only believed while the driver cannot have forgotten it."""
    scene = Scene()
    scene.hardware.change(scene.gpu(0), recovery_action=3, persistence_enabled=persistence)
    scene.poll()
    scene.hardware.change(scene.gpu(0), recovery_action=0)
    scene.poll(10)
    assert scene.says(Subsystem.FABRIC)[0] == says


def test_a_wish_for_a_reboot_needs_one() -> None:
    """Recovery action 2 that vanishes in the same boot was forgotten, not fulfilled."""
    scene = Scene()
    scene.hardware.change(scene.gpu(0), recovery_action=2)
    scene.poll()
    scene.hardware.change(scene.gpu(0), recovery_action=0)
    scene.poll(200)
    assert scene.says()[0] == "Faulty"
    scene.reboot()
    scene.poll(6)
    assert scene.says()[0] == "Healthy"


# --- what comes back


@pytest.mark.parametrize(("hours", "cure"), [(2, FaultClass.HARDWARE_GONE), (30, FaultClass.REBOOT_CURES)])
def test_a_gpu_lost_again_within_a_day_of_its_reboot_climbs(hours: int, cure: FaultClass) -> None:
    """The reboot did not cure it; a day later it is a new story. A wall clock has no say."""
    scene = Scene()
    scene.xid(1, 79)
    scene.reboot()
    scene.poll(6)
    assert scene.status.faults == ()
    scene.time_s += hours * 3600
    scene.wall_step_s = 1e7
    scene.xid(1, 79)
    assert scene.fault.fault_class is cure
    assert ("within a day" in scene.fault.summary) is (hours == 2)


def test_another_gpu_lost_after_a_reboot_does_not_climb() -> None:
    """The count is by board."""
    scene = Scene()
    scene.xid(1, 79)
    scene.reboot()
    scene.poll(6)
    scene.xid(2, 79)
    assert scene.fault.fault_class is FaultClass.REBOOT_CURES


# --- boards come, go and move


def test_a_new_board_in_the_same_slot_has_no_part_in_the_old_ones_fault() -> None:
    """The old fault left with its board; what the new one shows is its own."""
    scene = Scene()
    scene.xid(0, 79)
    scene.reboot()
    scene.hardware.change(scene.gpu(0), serial="new", uuid="GPU-new", recovery_action=1)
    answer = scene.poll()
    assert [ended.ending for ended in answer.ended] == [Ending.HARDWARE_LEFT]
    assert scene.fault.code == "recovery/reset"
    assert scene.fault.gpu is not None
    assert scene.fault.gpu.serial == "new"


def test_a_board_that_moved_takes_its_fault_to_its_new_slot() -> None:
    """Two boards swapped places over a reboot: the fault is where its serial is."""
    scene = Scene()
    scene.xid(0, 64)
    scene.reboot()
    one, other = scene.hardware.gpus[scene.gpu(0)], scene.hardware.gpus[scene.gpu(1)]
    for board, slot in ((one, scene.gpu(1)), (other, scene.gpu(0))):
        scene.hardware.gpus[slot] = msgspec.structs.replace(board, pci_address=slot)
    scene.poll(8)
    assert scene.fault.gpu is not None
    assert (scene.fault.gpu.pci_address, scene.fault.gpu.serial) == (scene.gpu(1), "n-0")


def test_another_machine_under_the_same_name_starts_afresh() -> None:
    """No board is known: faults of boards have left, and less than before is not missing."""
    scene = Scene()
    scene.xid(0, 64)
    scene.reboot()
    for index in range(8):
        scene.hardware.change(scene.gpu(index), serial=f"m-{index}", uuid=f"GPU-m-{index}")
    answer = scene.poll()
    assert [ended.ending for ended in answer.ended] == [Ending.HARDWARE_LEFT]
    scene.poll(4)
    assert scene.says()[0] == "Healthy"


def test_a_board_without_a_serial_is_known_by_its_uuid() -> None:
    """L4-class boards and virtual machines have no serial."""
    scene = Scene()
    for index in range(8):
        scene.hardware.change(scene.gpu(index), serial="")
    scene.poll()
    scene.xid(0, 64)
    scene.poll(4)
    assert scene.status.faults
    scene.hardware.change(scene.gpu(0), uuid="GPU-new")
    assert endings(scene, 1) == [Ending.HARDWARE_LEFT]


def test_a_gpu_that_does_not_answer_has_not_left() -> None:
    """The negative twin: one that cannot be asked for its serial is still in the machine."""
    scene = Scene()
    scene.xid(0, 64)
    scene.hardware.off_bus.add(scene.gpu(0))
    assert endings(scene, 10) == []
    assert scene.status.faults[0].state is FaultState.OPEN
