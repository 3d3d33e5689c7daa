"""Which findings are one story: bursts in any order, peers, processes, instances, numbers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.health.catalogue import builtin
from outlast.health.finding import Event, Proof, Role
from outlast.health.reasons import Reason
from outlast.health.verdict.events import _absorb_event
from outlast.health.verdict.state import MARKS_MAX, TALLIES_MAX
from outlast.health.verdict.tallies import counted
from outlast.model.health import FaultClass, FaultState, Scope, Subsystem
from outlast.model.observation import ProcessSurvey, StuckTask, SurveyProblem, Witness
from tests.unit.health.builders import Scene

NETIR = "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 0x00000000 0x0 0x0 0x0)"
BURSTS = [
    (48, 63, 94, 45),
    (79, 45, 45, 43, 13),
    (119, 79, 45),
    (95, 48, 63, 94, 31),
    (62, 45, 109, 13, 43),
    (149, 48, 45, 137),
    (46, 63, 137, 31, 110),
]


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(BURSTS).flatmap(st.permutations), st.floats(0.0, 0.5))
def test_the_order_of_a_burst_changes_nothing(order: list[int], apart_s: float) -> None:
    """Any permutation of a burst within the hold-back is the same fault with the same root and cure."""

    def judged(codes: list[int]) -> tuple[object, ...]:
        scene = Scene()
        for code in codes:
            scene.time_s += apart_s
            scene.xid(2, code, NETIR if code == 149 else "text")
        scene.wait(6)
        [fault] = scene.state.faults
        roots = [code for code in fault.codes if code.rank == fault.root.rank]
        return (
            fault.key,
            sorted(code.code for code in roots),
            fault.fault_class,
            sorted(code.code for code in fault.codes),
            scene.state.recent,
        )

    assert judged(order) == judged(sorted(order))


def test_a_fault_keeps_the_codes_that_matter_most() -> None:
    """Of more codes than fit, the best-ranked and the one with the strongest cure stay, in any order."""
    codes = (110, 109, 63, 48, 95, 62, 119, 46, 64, 79)
    kept = []
    for order in (codes, tuple(reversed(codes))):
        scene = Scene()
        for code in order:
            scene.xid(0, code, "x. RST: Yes")
        kept.append(sorted(code.code for code in scene.state.faults[0].codes))
        assert (scene.fault.code, scene.fault.fault_class) == ("xid/79", FaultClass.HARDWARE_GONE)
    assert kept[0] == kept[1]


def test_a_fault_of_the_gpu_takes_in_those_of_its_instances() -> None:
    """A GPU-wide fault covers every MIG slice of it, whichever was printed first."""
    stories = []
    for order in (("slice", "slice2", "gpu"), ("gpu", "slice", "slice2")):
        scene = Scene()
        for what in order:
            if what == "gpu":
                scene.xid(0, 62)
            else:
                scene.xid(0, 94, "Contained. RST: No, D-RST: No", instance=5 if what == "slice" else 6)
            scene.wait(6)
        assert len(scene.status.faults) == 1
        assert scene.fault.scope is Scope.GPU
        assert scene.fault.gpu is not None
        assert scene.fault.gpu.instance is None
        stories.append(scene.story)
    assert stories[0] == stories[1]


@pytest.mark.parametrize("first", ["echo", "loss"])
def test_a_link_error_beside_the_loss_of_its_peer_is_an_echo(first: str) -> None:
    """74 within ten seconds of a peer's 79 is evidence of that, whichever was printed first."""
    scene = Scene()
    for what in ("echo", "loss") if first == "echo" else ("loss", "echo"):
        scene.time_s += 3
        if what == "echo":
            scene.xid(1, 74, "NVLink: fatal error detected on link 4")
        else:
            scene.xid(5, 79, "GPU has fallen off the bus.")
    assert scene.fault.gpu is not None
    assert (scene.fault.gpu.pci_address, scene.fault.code) == (scene.gpu(5), "xid/79")
    assert any("74" in evidence.text for evidence in scene.fault.evidence)
    scene.time_s += 60
    scene.xid(1, 74, "NVLink: still down")
    assert len(scene.status.faults) == 1


def test_a_link_error_alone_keeps_jobs_away_and_drains_nobody() -> None:
    """When no peer shows anything, the link is suspect: a minute later it is still only blocked."""
    scene = Scene()
    scene.xid(1, 74)
    scene.time_s += 70
    scene.xid(5, 79)
    assert [fault.code for fault in scene.status.faults] == ["xid/79", "xid/74"]
    link = scene.status.faults[1]
    assert (link.fault_class, link.subsystem) == (FaultClass.TRANSIENT, Subsystem.FABRIC)


def test_an_error_of_the_gpu_itself_is_no_echo() -> None:
    """A GPU with trouble of its own keeps its fault beside a peer's loss."""
    scene = Scene()
    scene.xid(1, 74)
    scene.xid(1, 48)
    scene.time_s += 2
    scene.xid(5, 79)
    assert sorted(fault.code for fault in scene.status.faults) == ["xid/48", "xid/79"]


def event(scene: Scene, code: str = "host/test", **fields: object) -> Event:
    """A leader about the node that takes three within a minute."""
    scene.sequence += 1
    plain = Event(
        code=code,
        reason=Reason.GPU_STUCK,
        fault_class=FaultClass.TRANSIENT,
        subsystem=Subsystem.GPU,
        scope=Scope.GPU,
        rank=9,
        proof=Proof.EXPIRY,
        expiry_s=600,
        gpu=scene.gpu(0),
        summary="s",
        source="kernel log",
        text="t",
        role=Role.LEADER,
        sequence=scene.sequence,
        timestamp_us=int(scene.uptime_s * 1e6),
        count_min=3,
        count_window_s=60,
    )
    return msgspec.structs.replace(plain, **fields)


def absorb(scene: Scene, happened: Event) -> None:
    """The event, as if a check had made it of a line."""
    state = msgspec.structs.replace(scene.state, answer=None)
    scene.state = _absorb_event(state, happened, scene.now)


def test_what_counts_in_numbers_needs_its_number_in_time() -> None:
    """Two in a minute are remembered, the third opens; slow ones never do; one record may stand for many."""
    scene = Scene()
    for _ in range(2):
        absorb(scene, event(scene))
    assert scene.tell().status.faults == ()
    scene.time_s += 30
    absorb(scene, event(scene))
    assert len(scene.tell().status.faults) == 1
    slow = Scene()
    for _ in range(10):
        slow.time_s += 40
        absorb(slow, event(slow))
    assert slow.tell().status.faults == ()
    many = Scene()
    absorb(many, event(many, occurrences=30))
    assert len(many.tell().status.faults) == 1


def test_counts_are_bounded() -> None:
    """Neither a flood of one thing nor many different things grow the memory."""
    scene = Scene()
    for number in range(500):
        scene.state, _ = counted(scene.state, event(scene, count_min=10_000))
        scene.state, _ = counted(scene.state, event(scene, code=f"host/{number}"))
    assert len(scene.state.tallies) == TALLIES_MAX
    assert all(len(tally.marks) <= MARKS_MAX for tally in scene.state.tallies)


def stuck(scene: Scene, name: str = "python3") -> None:
    """The process table shows a task asleep in the driver."""
    task = StuckTask(pid=77, tid=78, name=name, asleep_s=125, witness=Witness.STACK)
    scene.tell(ProcessSurvey(stuck=(task,), whole_machine=True))


def test_a_removed_program_that_is_stuck_in_the_driver_means_a_wedged_driver() -> None:
    """45 alone is nothing; with its process asleep in the driver it asks for a reboot."""
    scene = Scene()
    scene.xid(3, 45, "Ch 0000000a", pid=1496200)
    scene.wait(6)
    assert scene.status.faults == ()
    scene.time_s += 180
    stuck(scene)
    [fault] = [fault for fault in scene.status.faults if fault.code == "driver/wedged"]
    assert fault.fault_class is FaultClass.REBOOT_CURES
    assert fault.gpu is not None
    assert fault.gpu.pci_address == scene.gpu(3)


def test_a_stuck_task_of_another_program_is_no_wedge_of_that_gpu() -> None:
    """The negative twin: names and numbers do not match."""
    scene = Scene()
    scene.xid(3, 45, "Ch 0000000a", pid=1496200, name="train.py")
    stuck(scene, "other")
    scene.wait(6)
    assert not [fault for fault in scene.status.faults if fault.code.startswith("driver/wedged")]


def test_a_stuck_task_is_the_second_witness_of_a_hung_tool() -> None:
    """A task asleep in the driver beside a hung tool says that it is not the tool."""
    scene = Scene()
    scene.problem = SurveyProblem.HUNG
    scene.poll()
    assert not scene.fault.second_witness
    stuck(scene)
    [hung] = [fault for fault in scene.status.faults if fault.subsystem is Subsystem.MONITOR]
    assert hung.second_witness


def test_the_drivers_newest_wish_replaces_its_earlier_one() -> None:
    """154 that lowers the action lowers the cure; one to none clears nothing and asks the levels."""
    scene = Scene()
    scene.xid(0, 154, "GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)")
    assert scene.fault.fault_class is FaultClass.REBOOT_CURES
    scene.xid(0, 154, "GPU recovery action changed from 0x2 (OS Reboot) to 0x1 (GPU Reset Required)")
    assert scene.fault.fault_class is FaultClass.RESET_CURES
    answer = scene.xid(0, 154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    assert answer.probe
    assert scene.fault.state is FaultState.OPEN


def test_no_code_of_the_catalogue_makes_the_judge_depend_on_the_past_of_another_gpu() -> None:
    """Every known code on one GPU leaves all others without a fault."""
    for code in builtin().xids:
        scene = Scene()
        scene.xid(4, code, "x Fatal XC0 i0 Link 02 (0x1)")
        scene.wait(6)
        assert {gpu for gpu, _, _ in scene.story} <= {scene.gpu(4), ""}


def test_a_line_that_accuses_the_other_end_only_suspects_the_link() -> None:
    """149 with sub-code 37: new work stays away; when the peer fails within a minute, it is blamed."""
    accuses = "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000 0x00000000 0x0 0x0 0x0)"
    scene = Scene()
    scene.xid(1, 149, accuses)
    assert (scene.fault.code, scene.fault.fault_class) == ("xid/149", FaultClass.TRANSIENT)
    scene.time_s += 40
    scene.xid(6, 145, "RLW_REMAP Fatal XC0 i0 Link 03 (0x0409a0c2 0x00000008 0x00000001 0x0 0x0 0x0)")
    scene.xid(6, 79)
    assert scene.story == [(scene.gpu(6), "xid/79", "RebootCures")]
    assert any("149" in evidence.text for evidence in scene.fault.evidence)


def test_a_removed_program_that_hangs_elsewhere_only_keeps_jobs_away() -> None:
    """Stuck, but nothing shows it is in the driver: it may wait for a file server, so nobody is drained."""
    scene = Scene()
    scene.xid(3, 45, "Ch 0000000a", pid=14962, name="train.py")
    scene.time_s += 180
    scene.line("INFO: task train.py:620917 blocked for more than 120 seconds.")
    scene.poll()
    assert {fault.fault_class for fault in scene.status.faults} == {FaultClass.TRANSIENT}
    scene.problem = SurveyProblem.HUNG
    scene.poll()
    assert any(fault.code == "driver/wedged" for fault in scene.status.faults)


def test_stories_of_the_whole_machine_are_apart_by_subsystem() -> None:
    """A silent firmware processor without an address is no part of a machine that ran out of memory."""
    scene = Scene()
    scene.line("Out of memory: Killed process 22222 (x) total-vm:3500000kB, anon-rss:520000kB")
    scene.line("NVRM: _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 1")
    assert sorted(fault.subsystem for fault in scene.status.faults) == [Subsystem.GPU, Subsystem.HOST]
