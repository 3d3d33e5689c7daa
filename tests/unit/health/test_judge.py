"""The judge on virtual time: what opens a fault, what joins it, and what it takes to end it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.health.catalogue import builtin
from outlast.health.reasons import Reason
from outlast.health.verdict import judge, restore
from outlast.health.verdict.memory import STATE_BYTES_MAX, to_bytes
from outlast.health.verdict.state import (
    FAULTS_KEPT_MAX,
    HELD_MAX,
    RECENT_MAX,
    Settings,
)
from outlast.model.health import (
    EVIDENCE_MAX,
    FAULTS_MAX,
    FaultClass,
    FaultState,
    NodeHealthStatus,
    Scope,
    Subsystem,
    Verdict,
)
from outlast.model.observation import (
    GpuSurvey,
    KernelLogCaughtUp,
    KernelLogGap,
    KernelLogLost,
    PciSurvey,
    SurveyProblem,
)
from tests.unit.health.builders import USER, Scene


def test_healthy_needs_a_completed_check() -> None:
    """Before any survey nothing is known; after a complete one the node is healthy."""
    scene = Scene(checked=False)
    assert scene.says() == ("Unknown", "NotYetChecked")
    assert scene.status.checked_at is None
    scene.tell(KernelLogCaughtUp())
    assert scene.says() == ("Unknown", "NotYetChecked")
    scene.poll()
    assert scene.says() == ("Healthy", "GpusHealthy")
    assert scene.status.checked_at is not None
    assert scene.status.state == "Healthy"


def test_a_leader_opens_a_fault_without_waiting() -> None:
    """A code that leads makes the node faulty in the same judgement, with who and why."""
    scene = Scene()
    answer = scene.xid(3, 79, "GPU has fallen off the bus.")
    assert scene.says() == ("Faulty", "GpuFellOffBus")
    assert (scene.fault.code, scene.fault.scope) == ("xid/79", Scope.GPU)
    assert scene.fault.gpu is not None
    assert (scene.fault.gpu.serial, scene.fault.gpu.index) == ("n-3", 3)
    assert answer.probe
    assert len(answer.opened) == 1


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 137])
def test_an_application_error_does_nothing_to_the_node(code: int) -> None:
    """A program's fault is remembered and the node stays healthy, before and after the hold-back."""
    scene = Scene()
    scene.xid(0, code)
    assert scene.says()[0] == "Healthy"
    assert scene.answer.due_s is not None
    assert scene.answer.due_s <= 5.0
    scene.wait(6)
    assert scene.says()[0] == "Healthy"
    assert scene.status.faults == ()
    assert [recent.code for recent in scene.state.recent] == [f"xid/{code}"]


def test_a_user_space_line_is_counted_and_not_believed() -> None:
    """The same text from another facility makes no fault, unless a test asks for it."""
    scene = Scene()
    scene.line(f"NVRM: Xid (PCI:{scene.gpu(0)[:-2]}): 79, x", priority=USER)
    assert scene.says()[0] == "Healthy"
    assert scene.state.untrusted == 1
    trusting = Scene(settings=Settings(trust_user_records=True))
    trusting.line(f"NVRM: Xid (PCI:{trusting.gpu(0)[:-2]}): 79, x", priority=USER)
    assert trusting.says()[0] == "Faulty"


@pytest.mark.parametrize("order", [(48, 63, 94, 45), (45, 94, 63, 48), (63, 45, 48, 94)])
def test_a_burst_in_any_order_is_one_fault_with_one_root(order: tuple[int, ...]) -> None:
    """Followers wait for their leader, and the best-ranked code is the root whichever came first."""
    scene = Scene()
    for code in order:
        scene.time_s += 0.1
        scene.xid(0, code)
    scene.wait(6)
    assert (scene.fault.code, scene.fault.fault_class) == ("xid/48", FaultClass.RESET_CURES)
    assert scene.state.recent == ()


def test_the_root_is_upgraded_and_the_id_stays() -> None:
    """119 then 79 is the story of a lost GPU, under the id it began with."""
    scene = Scene()
    scene.xid(2, 119)
    first = scene.fault.id
    scene.time_s += 20
    scene.xid(2, 79)
    assert (scene.fault.id, scene.fault.code) == (first, "xid/79")
    assert scene.fault.fault_class is FaultClass.REBOOT_CURES
    assert "xid/119" in scene.fault.summary


def test_the_strongest_cure_wins_whatever_the_root() -> None:
    """A lost GPU that also ran out of spare rows needs a new board."""
    scene = Scene()
    scene.xid(2, 64)
    scene.xid(2, 79)
    assert (scene.fault.code, scene.fault.fault_class) == ("xid/79", FaultClass.HARDWARE_GONE)


def test_two_gpus_are_two_faults() -> None:
    """The key of a story is the GPU."""
    scene = Scene()
    scene.xid(0, 48)
    scene.xid(1, 48)
    assert len(scene.status.faults) == 2


def test_a_burst_slides_with_its_leaders_and_has_a_hard_end() -> None:
    """A leader within 180 s of the last one joins, up to 15 minutes after the first; the same code always."""
    scene = Scene()
    scene.xid(0, 48)
    for code in (62, 109, 46, 110, 63):
        scene.time_s += 170
        scene.xid(0, code)
    assert len(scene.status.faults) == 1
    scene.time_s += 170
    scene.xid(0, 156)
    assert len(scene.status.faults) == 2
    scene.time_s += 4000
    scene.xid(0, 48)
    assert len(scene.status.faults) == 2


def test_an_echo_that_names_its_cause_joins_it_at_any_time() -> None:
    """`caused by previous Xid N` belongs to the fault that holds N."""
    scene = Scene()
    scene.xid(0, 62)
    scene.time_s += 3000
    scene.xid(0, 45, "pid=1, name=x, Ch 1 caused by previous Xid 62")
    scene.wait(6)
    assert scene.fault.code == "xid/62"
    assert scene.state.recent == ()


def test_a_contained_error_covers_its_instance_only() -> None:
    """Xid 94 with a GPU instance blocks that much, and asks for no reset unless the line does."""
    scene = Scene()
    scene.xid(0, 94, "Contained: x. RST: No, D-RST: No", instance=5)
    scene.wait(6)
    assert (scene.fault.scope, scene.fault.fault_class) == (Scope.INSTANCE, FaultClass.TRANSIENT)
    assert scene.fault.gpu is not None
    assert scene.fault.gpu.instance == 5


def test_the_words_of_the_line_beat_the_code() -> None:
    """94 that asks for a reset is a reset; 95 that denies one is not."""
    asks, denies = Scene(), Scene()
    asks.xid(0, 94, "Contained. RST: No, D-RST: Yes")
    assert asks.fault.fault_class is FaultClass.RESET_CURES
    denies.xid(0, 95, "Uncontained. RST: No, D-RST: No")
    denies.wait(6)
    assert denies.fault.fault_class is FaultClass.TRANSIENT


def test_the_recovery_action_opens_and_raises() -> None:
    """154 with a wish opens a fault where none is open, and raises one that is; to none opens nothing."""
    scene = Scene()
    scene.xid(0, 154, "GPU recovery action changed from 0x1 (x) to 0x0 (None)")
    assert scene.says()[0] == "Healthy"
    scene.xid(0, 154, "GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)")
    assert (scene.fault.code, scene.fault.fault_class) == ("recovery/reboot", FaultClass.REBOOT_CURES)
    raised = Scene()
    raised.xid(0, 63)
    raised.time_s += 4000
    raised.xid(0, 154, "GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)")
    assert (raised.fault.code, raised.fault.fault_class) == ("xid/63", FaultClass.REBOOT_CURES)


def test_an_unknown_code_is_unknown_and_not_a_fault() -> None:
    """Nobody explains the code: the GPU is not vouched for until it checked clean for a minute."""
    scene = Scene()
    scene.xid(0, 999)
    assert scene.says() == ("Unknown", "UnrecognisedXid")
    assert scene.status.faults == ()
    scene.poll(4)
    assert scene.says() == ("Unknown", "UnrecognisedXid")
    scene.poll()
    assert scene.says()[0] == "Healthy"


# --- levels


def test_a_level_needs_its_polls() -> None:
    """One poll with a missing GPU proves nothing, two do."""
    scene = Scene()
    scene.hardware.unplugged.add(scene.gpu(5))
    scene.poll()
    assert scene.says()[0] == "Healthy"
    scene.poll()
    assert scene.says() == ("Faulty", "GpuMissing")
    assert scene.status.gpu_count == "7/8"
    assert scene.fault.gpu is not None
    assert scene.fault.gpu.serial == "n-5"


def test_a_first_look_that_finds_less_than_expected_is_not_healthy() -> None:
    """On a machine type of 8, 7 on the first look are not learned as right."""
    scene = Scene(checked=False)
    scene.hardware.unplugged.add(scene.gpu(5))
    scene.poll()
    assert scene.says() == ("Unknown", "Confirming")
    scene.poll()
    assert scene.says() == ("Faulty", "GpuMissing")


def test_a_gpu_that_nvml_lost_confirms_the_fault_of_the_log() -> None:
    """Log and levels about one GPU are one fault with both as evidence."""
    scene = Scene()
    scene.xid(1, 79)
    scene.hardware.off_bus.add(scene.gpu(1))
    scene.poll(3)
    assert {evidence.source for evidence in scene.fault.evidence} == {"kernel log", "PCI", "NVML"}
    assert scene.fault.code == "xid/79"


def test_a_level_that_goes_on_being_so_is_no_news() -> None:
    """A standing fault is not written again at every poll."""
    scene = Scene()
    scene.hardware.change(scene.gpu(0), recovery_action=1)
    scene.poll()
    before = scene.status
    scene.poll(10)
    assert same_but_checked(before) == same_but_checked(scene.status)


def same_but_checked(status: NodeHealthStatus) -> tuple[object, ...]:
    """What a write of NodeHealth depends on."""
    return (status.faults, status.verdicts, status.gpus, status.gpu_count)


def test_remap_pending_is_a_reset_and_failed_is_the_end() -> None:
    """Row remapping states are levels of their own."""
    scene = Scene()
    scene.hardware.change(scene.gpu(0), remap_pending=True)
    scene.poll()
    assert scene.fault.fault_class is FaultClass.RESET_CURES
    scene.hardware.change(scene.gpu(0), remap_failed=True)
    scene.poll()
    assert scene.fault.fault_class is FaultClass.HARDWARE_GONE
    scene.hardware.change(scene.gpu(0), remap_failed=False, remap_pending=False)
    scene.poll(20)
    assert scene.fault.fault_class is FaultClass.HARDWARE_GONE


def test_unsupported_is_not_none() -> None:
    """A driver that does not know the recovery action is not one that asks for none."""
    scene = Scene()
    for index in range(8):
        scene.hardware.change(scene.gpu(index), recovery_action=None)
    scene.poll()
    assert scene.says()[0] == "Healthy"
    assert scene.says(Subsystem.FABRIC) == ("Unknown", "NotObserved")
    scene.xid(0, 62)
    scene.poll(20)
    assert scene.says()[0] == "Faulty"


def test_a_missing_efa_device_is_named_and_comes_back() -> None:
    """15 of 16 is a fault of the network with the missing address; it ends when all are back."""
    scene = Scene(efa=32)
    gone = scene.hardware.efa[7]
    scene.hardware.unplugged.add(gone)
    scene.poll(2)
    assert scene.says(Subsystem.RDMA) == ("Faulty", "EfaMissing")
    assert scene.says()[0] == "Healthy"
    assert gone in scene.fault.summary
    scene.hardware.unplugged.clear()
    scene.poll(5)
    assert scene.says(Subsystem.RDMA) == ("Healthy", "RdmaHealthy")


def test_efa_that_attaches_late_at_boot_is_not_a_fault() -> None:
    """In the first minutes of a boot a short count is only late; afterwards it is missing."""
    scene = Scene(efa=31, checked=False)
    scene.poll(3)
    assert scene.says(Subsystem.RDMA) == ("Unknown", "Initializing")
    scene.poll(20)
    assert scene.says(Subsystem.RDMA) == ("Faulty", "EfaMissing")


def test_a_machine_without_efa_is_not_faulty_for_its_type() -> None:
    """The table says how many a type can have; to use none is a choice."""
    scene = Scene(efa=0)
    scene.poll(30)
    assert scene.says(Subsystem.RDMA) == ("Unknown", "NoRdmaFound")
    assert scene.status.state == "Healthy"


def test_a_machine_without_gpus_is_unknown_unless_it_should_have_some() -> None:
    """No GPU on a GPU machine type is a fault; elsewhere there is nothing to vouch for."""
    for count, expected in ((None, ("Faulty", "NoGpuFound")), (0, ("Unknown", "NoGpuFound"))):
        scene = Scene(settings=Settings(expected_gpus=count), checked=False)
        scene.hardware.unplugged.update(scene.hardware.gpus)
        scene.poll(3)
        assert scene.says() == expected
        assert scene.says(Subsystem.MONITOR) == ("Unknown", "NoGpuFound")


# --- the monitor


def test_a_hung_tool_fails_closed_at_once_and_recovers_by_itself() -> None:
    """One missed deadline is enough; three completed surveys in a row end it."""
    scene = Scene()
    scene.problem = SurveyProblem.HUNG
    scene.poll()
    assert scene.says(Subsystem.MONITOR) == ("Faulty", "DiagnosticsHung")
    assert scene.fault.fault_class is FaultClass.MONITOR_HUNG
    assert not scene.fault.second_witness
    assert scene.fault.clears_by == "the same check finds it good in 3 polls over at least 24 s"
    scene.problem = None
    scene.poll(2)
    assert scene.says(Subsystem.MONITOR)[0] == "Faulty"
    scene.poll()
    assert scene.says(Subsystem.MONITOR) == ("Healthy", "MonitorHealthy")


def test_a_hang_is_never_a_fault_of_a_gpu() -> None:
    """However long it lasts, GPUReady only becomes unknown."""
    scene = Scene()
    scene.problem = SurveyProblem.HUNG
    scene.poll(20)
    assert scene.says() == ("Unknown", "NotObserved")
    assert all(fault.subsystem is Subsystem.MONITOR for fault in scene.status.faults)


@pytest.mark.parametrize("first", ["hang", "line"])
def test_a_second_witness_is_noted_in_either_order(first: str) -> None:
    """A silent firmware processor beside a hung tool says that the driver is wedged."""
    scene = Scene()
    if first == "line":
        scene.xid(0, 119)
    scene.problem = SurveyProblem.HUNG
    scene.poll()
    if first == "hang":
        scene.line("NVRM: _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 1")
    [hung] = [fault for fault in scene.status.faults if fault.subsystem is Subsystem.MONITOR]
    assert hung.second_witness


def test_an_application_error_is_no_witness() -> None:
    """The twin of the above: a program's fault beside a hang proves nothing of the driver."""
    scene = Scene()
    scene.problem = SurveyProblem.HUNG
    scene.poll()
    scene.xid(0, 31)
    scene.wait(6)
    assert not scene.fault.second_witness


def test_a_crash_is_unknown_and_only_a_row_of_them_is_a_fault() -> None:
    """A worker may die once."""
    scene = Scene()
    scene.problem = SurveyProblem.CRASHED
    scene.poll()
    assert scene.says(Subsystem.MONITOR) == ("Unknown", "DiagnosticsCrashed")
    scene.poll(2)
    assert scene.says(Subsystem.MONITOR) == ("Faulty", "DiagnosticsCrashed")


@pytest.mark.parametrize(
    ("machine", "flag", "said"),
    [("bare-metal", None, True), ("bare-metal", 8, False), ("p5.48xlarge", None, False)],
)
def test_a_count_that_only_experience_knows_is_said(machine: str, flag: int | None, said: bool) -> None:
    """Without table and flag a machine that began one GPU short looks whole: healthy, and it says so."""
    scene = Scene(settings=Settings(expected_gpus=flag), checked=False)
    scene.state = msgspec.structs.replace(scene.state, instance_type=machine)
    scene.tell(KernelLogCaughtUp())
    scene.poll()
    assert scene.says()[0] == "Healthy"
    assert ("ExpectedUnknown" in scene.verdict().message) is said


def test_missing_libraries_are_wiring_and_not_health() -> None:
    """A container without NVIDIA's library is unknown for ever, never faulty."""
    scene = Scene()
    scene.problem = SurveyProblem.LIBRARY_MISSING
    scene.poll(200)
    assert scene.says(Subsystem.MONITOR) == ("Unknown", "LibraryMissing")


def test_an_unloaded_driver_becomes_a_fault_after_half_an_hour() -> None:
    """An upgrade takes a while; nothing is said about the GPUs meanwhile."""
    scene = Scene()
    scene.problem = SurveyProblem.DRIVER_NOT_LOADED
    scene.poll(119)
    assert scene.says(Subsystem.MONITOR) == ("Unknown", "DriverNotLoaded")
    scene.poll()
    assert scene.says(Subsystem.MONITOR) == ("Faulty", "DriverNotLoaded")
    assert scene.says()[0] == "Unknown"


def test_a_blind_kernel_log_is_said_and_ends() -> None:
    """Without the kernel log the monitor is unknown, and with NVML gone too nobody vouches."""
    scene = Scene()
    scene.tell(KernelLogLost(message="no rights on /dev/kmsg"))
    scene.poll()
    assert scene.says(Subsystem.MONITOR) == ("Unknown", "KernelLogBlind")
    assert scene.says()[0] == "Healthy"
    scene.problem = SurveyProblem.LIBRARY_MISSING
    scene.poll(2)
    assert scene.says(Subsystem.MONITOR) == ("Faulty", "NoSource")
    scene.tell(KernelLogCaughtUp())
    scene.problem = None
    scene.poll(3)
    assert scene.says(Subsystem.MONITOR)[0] == "Healthy"


# --- clearing


def test_a_lost_gpu_needs_a_reboot_and_then_proof() -> None:
    """While it looks good in the same boot nothing clears; after a reboot, two good polls a minute apart."""
    scene = Scene()
    scene.xid(1, 79)
    scene.poll(40)
    assert scene.says()[0] == "Faulty"
    scene.reboot()
    assert scene.fault.state is FaultState.AWAITING_PROOF
    assert scene.says() == ("Unknown", "AwaitingProof")
    scene.poll(4)
    assert scene.says()[0] == "Unknown"
    answer = scene.poll()
    assert scene.says() == ("Healthy", "GpusHealthy")
    assert [ended.ending.value for ended in answer.ended] == ["cleared"]


def test_a_reboot_that_does_not_bring_the_gpu_back_opens_the_fault_again() -> None:
    """The same fault, seen in the new boot."""
    scene = Scene()
    scene.xid(1, 79)
    identity = scene.fault.id
    scene.hardware.unplugged.add(scene.gpu(1))
    scene.reboot()
    scene.poll(2)
    assert (scene.fault.id, scene.fault.state) == (identity, FaultState.OPEN)
    assert scene.fault.boot_id == "boot-2"


def test_a_memory_error_without_a_waiting_row_is_over_by_itself() -> None:
    """63 that left nothing pending and no wish of the driver is history after two clean polls."""
    scene = Scene()
    scene.xid(0, 63)
    scene.poll(6)
    assert scene.says()[0] == "Healthy"
    waiting = Scene()
    waiting.hardware.change(waiting.gpu(0), remap_pending=True)
    waiting.xid(0, 63)
    waiting.poll(40)
    assert waiting.says()[0] == "Faulty"


def test_relief_that_the_driver_reports_before_a_reset_is_not_proof() -> None:
    """A stuck GPU whose recovery action reads none all along stays faulty."""
    scene = Scene()
    scene.xid(0, 120)
    scene.poll(200)
    assert scene.says()[0] == "Faulty"


def test_a_wish_that_came_and_went_is_proof() -> None:
    """The driver asked for a reset, then for nothing: the reset happened."""
    scene = Scene()
    scene.xid(0, 120)
    scene.hardware.change(scene.gpu(0), recovery_action=1)
    scene.poll(2)
    scene.hardware.change(scene.gpu(0), recovery_action=0)
    scene.poll(6)
    assert scene.says()[0] == "Healthy"


def test_a_gap_in_the_log_starts_proofs_again() -> None:
    """What was lost may have been more evidence."""
    scene = Scene()
    scene.xid(0, 48)
    scene.poll(4)
    answer = scene.tell(KernelLogGap(lost=10, reason="overrun"))
    assert answer.probe
    scene.poll(4)
    assert scene.says()[0] == "Faulty"
    scene.poll(2)
    assert scene.says()[0] == "Healthy"


def test_a_replaced_board_takes_its_fault_with_it() -> None:
    """A fault ends as `hardware left` when its serial is gone from a machine that is complete."""
    scene = Scene()
    scene.hardware.change(scene.gpu(0), remap_failed=True)
    scene.poll()
    scene.hardware.change(scene.gpu(0), remap_failed=False, serial="new", uuid="GPU-new")
    answer = scene.poll()
    assert [ended.ending.value for ended in answer.ended] == ["hardware left"]
    assert scene.says()[0] == "Healthy"


# --- memory


def test_a_restart_keeps_faults_verdicts_and_what_was_learned() -> None:
    """Open faults, their ids, the times of flips and the identities of GPUs outlive the process."""
    scene = Scene()
    scene.xid(3, 79)
    scene.hardware.unplugged.add(scene.gpu(3))
    scene.poll(3)
    before, since = scene.fault, scene.verdict().since
    assert scene.restart() == ""
    assert scene.fault.id == before.id
    assert scene.says() == ("Faulty", "GpuFellOffBus")
    assert scene.verdict().since == since
    scene.poll()
    assert scene.fault.id == before.id
    assert scene.status.gpu_count == "7/8"


def test_a_restart_of_a_healthy_node_says_nothing_new() -> None:
    """Healthy stays healthy over a restart in the same boot."""
    scene = Scene()
    since = scene.verdict().since
    scene.restart()
    assert scene.says()[0] == "Healthy"
    assert scene.verdict().since == since


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"version":99}', b'{"faults":3}', b"\xff\x00", b"[" * 100_000]
)
def test_a_damaged_memory_is_said_and_not_used(content: bytes) -> None:
    """Whatever the file holds, the agent starts."""
    scene = Scene()
    state, problem = restore(content, scene.boot, "p5.48xlarge", Settings(), scene.now)
    assert problem
    assert state.faults == ()


def test_history_of_the_boot_waits_for_proof() -> None:
    """Lines from before the agent's first start are judged, marked, and never open a fault by themselves."""
    scene = Scene()
    scene.xid(0, 62, replayed=True)
    scene.xid(1, 13, replayed=True)
    assert (scene.fault.state, scene.says()) == (FaultState.AWAITING_PROOF, ("Unknown", "AwaitingProof"))
    assert scene.fault.evidence[0].text.startswith("(replayed)")
    assert scene.fault.fault_class is FaultClass.TRANSIENT  # blocks new work, and drains nobody
    assert scene.state.held == ()
    scene.xid(0, 62)
    assert (scene.fault.state, scene.fault.fault_class) == (FaultState.OPEN, FaultClass.RESET_CURES)


def test_history_that_a_level_confirms_is_a_fault() -> None:
    """What the log says of the past is true when the GPU says so now."""
    scene = Scene()
    scene.xid(0, 79, replayed=True)
    scene.hardware.unplugged.add(scene.gpu(0))
    scene.poll(2)
    assert (scene.fault.state, scene.fault.fault_class) == (FaultState.OPEN, FaultClass.REBOOT_CURES)


def test_lines_of_the_time_the_agent_was_away_are_not_history() -> None:
    """After a restart in the same boot, what happened meanwhile opens faults."""
    scene = Scene()
    scene.restart()
    scene.xid(0, 62, replayed=True)
    assert scene.fault.state is FaultState.OPEN


# --- bounds


def test_floods_are_bounded_and_do_not_hide_the_cause() -> None:
    """Thousands of lines change a fault a bounded number of times and keep its first evidence."""
    scene = Scene()
    scene.xid(0, 79, "the first")
    scene.xid(0, 45)
    before = None
    for number in range(500):
        scene.time_s += 0.001
        scene.xid(0, 45, f"Ch {number}")
        before = before or scene.status
    assert len(scene.fault.evidence) <= EVIDENCE_MAX
    assert "the first" in scene.fault.evidence[0].text
    assert before is not None
    assert same_but_checked(scene.status) == same_but_checked(before)


def test_followers_of_many_gpus_are_bounded() -> None:
    """Held and remembered events have limits."""
    scene = Scene()
    for number in range(400):
        scene.line(f"NVRM: Xid (PCI:{number:04x}:01:00): 13, x")
    assert len(scene.state.held) == HELD_MAX
    scene.wait(6)
    assert (len(scene.state.held), len(scene.state.recent)) == (0, RECENT_MAX)


def test_more_faults_than_an_object_holds_are_counted() -> None:
    """The object shows its limit's worth and says how many more there are; memory stays bounded."""
    scene = Scene()
    for number in range(100):
        scene.line(f"NVRM: Xid (PCI:{number:04x}:01:00): 79, {'long ' * 100}")
        scene.line(f"NVRM: Xid (PCI:{number:04x}:01:00): 48, {'long ' * 100}")
    assert len(scene.status.faults) == FAULTS_MAX
    assert scene.status.faults_dropped >= 100 - FAULTS_MAX
    assert len(scene.state.faults) == FAULTS_KEPT_MAX
    assert len(to_bytes(scene.state)) <= STATE_BYTES_MAX


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 176), st.floats(0, 400)), max_size=30))
def test_any_sequence_of_codes_gives_one_answer_and_survives_a_restart(
    events: list[tuple[int, int, float]],
) -> None:
    """The judge is deterministic, and a restart changes no fault."""
    scene, twin = Scene(), Scene()
    for index, code, wait_s in events:
        for each in (scene, twin):
            each.time_s += wait_s
            each.xid(index, code)
    assert scene.status == twin.status
    before = [(f.id, f.code, f.fault_class, f.state) for f in scene.status.faults]
    scene.restart()
    assert [(f.id, f.code, f.fault_class, f.state) for f in scene.status.faults] == before


def test_judging_nothing_changes_nothing() -> None:
    """A judgement without readings is the same status."""
    scene = Scene()
    again = judge(scene.state, [], scene.now, builtin())
    assert again.status == scene.status
    assert again.state == scene.state


def test_every_verdict_reason_is_documented() -> None:
    """No condition carries a reason that is not in the table."""
    scene = Scene()
    assert all(Reason(verdict.reason) for verdict in scene.status.verdicts)


def test_a_bus_that_cannot_be_read_leaves_no_gpu_healthy() -> None:
    """Whatever NVML answers, or was not asked: a check that did not complete vouches for nothing."""
    scene = Scene()
    assert scene.verdict().verdict is Verdict.HEALTHY
    scene.tell(PciSurvey(readable=False, message="no /sys"), GpuSurvey(complete=True))
    assert scene.verdict().verdict is Verdict.UNKNOWN
    assert scene.verdict(Subsystem.MONITOR).verdict is Verdict.UNKNOWN
