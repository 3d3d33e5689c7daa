"""Cases of the kernel log in tests/data/cases.tsv; the table says what happens and which trap there is."""

from __future__ import annotations

import pytest

from outlast.health.verdict.clearing import Ending
from outlast.model.health import FaultClass, FaultState, Scope, Subsystem
from outlast.model.observation import (
    ProcessSurvey,
    StuckTask,
    Witness,
)
from outlast.model.observation.dcgm import DcgmIncident, DcgmSurvey
from tests.acceptance.cases import disrupts, settled
from tests.unit.health.builders import Scene


def test_up_001_three_records_are_one_lost_gpu() -> None:
    """Three records and a failed probe: one fault, with the address, until the GPU enumerates again."""
    scene = Scene()
    lost = scene.gpu(5)
    scene.line(f"NVRM: The NVIDIA GPU {lost[:-2]}")
    scene.line("NVRM: (PCI ID: 10de:26b5) installed in this system has")
    scene.line("NVRM: fallen off the bus and is not responding to commands.")
    scene.hardware.unplugged.add(lost)
    scene.poll(3)
    [fault] = [f for f in scene.status.faults if f.gpu is not None]
    assert fault.gpu is not None
    assert (fault.gpu.pci_address, fault.fault_class) == (lost, FaultClass.REBOOT_CURES)
    scene.poll(60)
    assert scene.says()[0] == "Faulty"
    scene.hardware.unplugged.clear()
    scene.reboot()
    scene.poll(8)
    assert scene.says()[0] == "Healthy"


def test_up_002_foreign_records_in_between_change_nothing() -> None:
    """Early in a boot others print in between; a piece whose end never comes is nobody's fault."""
    scene = Scene(checked=False)
    lost = scene.gpu(2)
    scene.line(f"NVRM: The NVIDIA GPU {lost[:-2]}")
    for noise in ("systemd[1]: Mounting /data", "mlx5_core 0000:d2:00.0: Port: 1 Link INIT"):
        scene.line(noise)
    scene.line("NVRM: (PCI ID: 10de:2330) installed in this system has")
    scene.line("EXT4-fs (nvme1n1): mounted filesystem with ordered data mode")
    scene.line("NVRM: fallen off the bus and is not responding to commands.")
    assert [(f.code, f.gpu and f.gpu.pci_address) for f in scene.status.faults] == [("gpu/off-bus", lost)]
    alone = Scene()
    alone.line(f"NVRM: The NVIDIA GPU {lost[:-2]}")
    for _ in range(40):
        alone.line("NVRM: loading something")
    alone.line("NVRM: fallen off the bus and is not responding to commands.")
    assert not [f for f in alone.status.faults if f.gpu is not None]


def test_up_004_a_burst_of_45_is_nothing_until_its_program_is_stuck_in_the_driver() -> None:
    """Cleanup never drains; a stuck task in the driver on top of it is a wedge."""
    scene = Scene()
    for channel in range(32):
        scene.xid(6, 45, f"Ch {channel:08x}", pid=1496200, name="train")
    settled(scene)
    assert scene.status.faults == ()
    scene.time_s += 170
    scene.line("INFO: task train:620917 blocked for more than 120 seconds.")
    assert not disrupts(scene)
    task = StuckTask(pid=1496200, tid=620917, name="train", asleep_s=130, witness=Witness.STACK)
    scene.tell(ProcessSurvey(stuck=(task,), whole_machine=True))
    wedged = [f for f in scene.status.faults if f.code == "driver/wedged"]
    assert [(f.fault_class, f.gpu and f.gpu.pci_address) for f in wedged] == [
        (FaultClass.REBOOT_CURES, scene.gpu(6))
    ]


NONFATAL = "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x4)"
ACCUSES = "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000 0x00000000 0x00000000 0x0 0x0)"
FATAL = "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 0x00000000 0x00000000 0x0 0x0)"


def test_up_006_non_fatal_is_recorded_and_an_accusation_drains_nobody() -> None:
    """The word decides, and sub-code 37 looks at the peer."""
    scene = Scene()
    scene.xid(0, 145, NONFATAL, pid=876767, name="ray::WorkerDict")
    settled(scene)
    assert scene.status.faults == ()
    scene.xid(0, 149, ACCUSES)
    assert not disrupts(scene)
    assert scene.says(Subsystem.FABRIC)[0] == "Faulty"


def test_up_007_one_number_has_two_severities() -> None:
    """144 that is not fatal is recorded; 149 with sub-code 38 and the word Fatal is not."""
    scene = Scene()
    scene.xid(0, 144, "SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 0x00000000 0x0 0x0 0x0)")
    settled(scene)
    assert scene.status.faults == ()
    scene.xid(0, 149, FATAL)
    assert scene.says(Subsystem.FABRIC)[0] == "Faulty"
    assert "0x026001c6" in scene.fault.evidence[0].text


def test_up_008_the_drivers_newest_word_counts() -> None:
    """From drain-and-reset to reset: the new one. To none: nothing opens, and after proof it is over."""
    scene = Scene()
    scene.xid(0, 154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    scene.xid(0, 154, "GPU recovery action changed from 0x2 (Node Reboot) to 0x1 (GPU Reset Required)")
    assert (scene.fault.code, scene.fault.fault_class) == ("recovery/reset", FaultClass.RESET_CURES)
    scene.xid(0, 154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    scene.poll(6)
    assert scene.status.faults == ()
    fresh = Scene()
    fresh.xid(0, 154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    assert settled(fresh).status.faults == ()


def test_up_009_43_is_the_programs_own() -> None:
    """Nothing for the GPU, nothing for its other slices."""
    scene = Scene()
    scene.xid(3, 43, "channel 0x0b00000a", pid=3188489, name="trigger_xid", instance=5)
    settled(scene)
    assert (scene.status.faults, scene.says()[0]) == ((), "Healthy")


def test_up_012_dcgm_may_call_it_fatal_and_nothing_is_stuck_in_quarantine() -> None:
    """31 of a program, repeated by DCGM as failed memory: the node stays in service."""
    scene = Scene()
    scene.xid(4, 31, "MMU Fault: ENGINE GRAPHICS faulted", pid=1)
    incident = DcgmIncident(
        entity_group="GPU",
        entity_id=4,
        system="Memory system",
        health="Failure",
        text="Detected XID 31 for GPU 4",
        code=97,
        xid=31,
        polls=5,
    )
    for _ in range(5):
        scene.poll()
        scene.tell(DcgmSurvey(overall="Failure", incidents=(incident,)))
    assert not disrupts(scene)
    assert scene.says()[0] == "Healthy"


def test_up_013_no_spare_rows_means_a_new_board_whatever_relief_a_reset_brings() -> None:
    """64 stays through a reset and a reboot, and ends when the board left."""
    scene = Scene()
    scene.xid(0, 64, "Row Remapper Error: All reserved rows for bank are remapped", pid=None)
    assert scene.fault.fault_class is FaultClass.HARDWARE_GONE
    scene.hardware.change(scene.gpu(0), recovery_action=1)
    scene.poll(2)
    scene.hardware.change(scene.gpu(0), recovery_action=0)
    scene.poll(40)
    scene.reboot()
    scene.poll(40)
    assert scene.fault.fault_class is FaultClass.HARDWARE_GONE
    scene.hardware.change(scene.gpu(0), serial="new", uuid="GPU-new")
    assert [over.ending for over in scene.poll().ended] == [Ending.HARDWARE_LEFT]
    pending = Scene()
    pending.xid(0, 63, "Row Remapper: New row marked for remapping, reset gpu to activate.", pid=1896)
    assert not disrupts(pending)
    pending.hardware.change(pending.gpu(0), remap_pending=True)
    pending.poll()
    assert pending.fault.fault_class is FaultClass.RESET_CURES


def test_up_014_the_counters_decide_and_not_the_number_of_lines() -> None:
    """63 ten times, healed each time: never more than a reset, and over when the counters are clean."""
    scene = Scene()
    for _ in range(10):
        scene.xid(0, 63, "Row remapping pending again")
        scene.hardware.change(scene.gpu(0), remap_pending=True)
        scene.poll(2)
        assert [f.fault_class for f in scene.status.faults] == [FaultClass.RESET_CURES]
        scene.hardware.change(scene.gpu(0), remap_pending=False)
        scene.reboot()
        scene.poll(8)
        assert scene.status.faults == ()


def test_up_015_a_storm_of_corrected_errors_beside_quiet_peers_is_a_fault() -> None:
    """The rate decides, an idle GPU proves nothing, and the noise in the log says nothing."""
    scene = Scene()
    scene.line("NVRM: _fabricNotifyEvent: Unable to notify ImexSessionApi")
    scene.line("NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!")
    assert scene.status.faults == ()
    count = 0
    for _ in range(30):
        count += 17_000 * 15
        scene.hardware.change(scene.gpu(0), ecc_corrected_volatile=count)
        for peer in range(1, 8):
            scene.hardware.change(scene.gpu(peer), ecc_corrected_volatile=0)
        scene.poll()
    assert scene.fault.gpu is not None
    assert scene.fault.gpu.pci_address == scene.gpu(0)
    assert not disrupts(scene)
    scene.poll(40)
    assert scene.says()[0] == "Faulty"


def test_up_016_a_failed_check_inside_the_driver_is_no_sick_gpu() -> None:
    """Two profilers compete for counters; the GPU is fine."""
    scene = Scene()
    scene.line(
        "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: State in use [NV_ERR_STATE_IN_USE] (0x00000063) "
        "returned from pRmApi->Control(... NVB0CC_CTRL_CMD_INTERNAL_ALLOC_PMA_STREAM ...)"
    )
    settled(scene).poll(2)
    assert (scene.status.faults, scene.says()[0]) == ((), "Healthy")


@pytest.mark.parametrize("level", range(8))
def test_up_018_the_level_of_a_record_has_no_say(level: int) -> None:
    """The kernel's own facility counts, at whatever level; user space does not."""
    scene = Scene()
    for _ in range(6):
        scene.line("mlx5_core 0000:4b:00.0 ens5: Link down", priority=level)
    assert [f.subsystem for f in scene.status.faults] == [Subsystem.RDMA]
    assert not disrupts(scene)
    echoed = Scene()
    for _ in range(6):
        echoed.line("mlx5_core 0000:4b:00.0 ens5: Link down", priority=8 + level)
    assert echoed.status.faults == ()


def test_up_019_what_was_judged_is_not_judged_again() -> None:
    """A restart in the same boot keeps the fault once; the same lines of a later boot's ring are history."""
    scene = Scene()
    scene.xid(0, 48)
    before = scene.fault.id
    scene.restart()
    scene.sequence -= 1
    scene.xid(0, 48, replayed=True)
    assert [f.id for f in scene.status.faults] == [before]
    fresh = Scene()
    fresh.xid(0, 62, replayed=True)
    assert (fresh.fault.state, disrupts(fresh)) == (FaultState.AWAITING_PROOF, False)


def test_up_023_switch_errors_belong_to_the_switch() -> None:
    """Non-fatal and detail lines are recorded; a fatal one is the machine's, not one GPU's."""
    scene = Scene()
    scene.line(
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error"
    )
    scene.line("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Data {0x50610002, 0x10100030}")
    assert settled(scene).status.faults == ()
    scene.line("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    assert (scene.fault.gpu, scene.fault.scope) == (None, Scope.NODE)
    assert "nvswitch" in scene.fault.device
    assert scene.says(Subsystem.FABRIC)[0] == "Faulty"
    assert scene.says()[0] == "Healthy"


def test_up_025_a_refused_register_is_no_network_fault() -> None:
    """However often a telemetry tool asks."""
    scene = Scene()
    for pid in range(50):
        scene.line(
            f"mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid {pid}): ACCESS_REG(0x805) op_mod(0x1) failed"
        )
    assert settled(scene).status.faults == ()


def test_up_026_a_containers_limit_is_not_the_nodes_memory() -> None:
    """The first is nothing for the node; the second blocks for a while; neither drains."""
    limit, node = Scene(), Scene()
    limit.line(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/kubepods/x,task=python3,pid=12345"
    )
    limit.line("Memory cgroup out of memory: Killed process 12345 (python3) total-vm:3500000kB")
    node.line("Out of memory: Killed process 22222 (x) total-vm:3500000kB, anon-rss:520000kB")
    assert settled(limit).status.faults == ()
    assert settled(node).says(Subsystem.HOST)[0] == "Faulty"
    assert not disrupts(node)


def test_up_027_one_soft_lockup_is_a_note_and_a_row_of_them_a_reboot() -> None:
    """A busy loader thread may stall once."""
    scene = Scene()
    scene.line("watchdog: BUG: soft lockup - CPU#0 stuck for 25s! [pt_data_pin:2273422]")
    assert not disrupts(settled(scene))
    for _ in range(4):
        scene.time_s += 60
        scene.line("watchdog: BUG: soft lockup - CPU#0 stuck for 25s! [pt_data_pin:2273422]")
    assert disrupts(scene)
    slow = Scene()
    for _ in range(10):
        slow.time_s += 1800
        slow.line("watchdog: BUG: soft lockup - CPU#0 stuck for 25s! [pt_data_pin:2273422]")
    assert not disrupts(slow)


def test_up_029_a_lost_scratch_disk_makes_the_host_unready() -> None:
    """The disk is given up and its file system read-only, while every GPU is fine."""
    scene = Scene()
    scene.line("nvme nvme0: I/O tag 10 (1234) opcode 0x1 (Read) QID 1 timeout, reset controller")
    assert not disrupts(scene)
    scene.line("nvme nvme0: Disabling device after reset failure: -19")
    scene.line("EXT4-fs (nvme0n1): Remounting filesystem read-only")
    assert scene.says(Subsystem.HOST)[0] == "Faulty"
    assert disrupts(scene)
    assert scene.says()[0] == "Healthy"


def test_up_031_old_records_drain_nobody() -> None:
    """What an earlier time left in the log or in firmware needs something of today that agrees."""
    scene = Scene()
    for code in (79, 48, 64, 119, 62):
        scene.xid(0, code, replayed=True)
    scene.line("mce: [Hardware Error]: Machine check events logged")
    scene.line(
        "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 1", replayed=True
    )
    assert not disrupts(scene)
    confirmed = Scene()
    confirmed.xid(0, 79, replayed=True)
    confirmed.hardware.unplugged.add(confirmed.gpu(0))
    confirmed.poll(2)
    assert disrupts(confirmed)
