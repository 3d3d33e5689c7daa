"""Clocks that step, machines that sleep, sources that fall silent, and a memory that outlives versions."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.health.verdict import restore
from outlast.health.verdict.memory import STATE_BYTES_MAX, to_bytes
from outlast.health.verdict.state import STATE_VERSION, Settings
from outlast.model.health import FaultState, Subsystem
from outlast.model.observation import KernelLogCaughtUp, RdmaSurvey, SurveyProblem
from tests.unit.health.builders import Scene

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["xid", "poll", "wait", "hang", "restart"]),
        st.integers(0, 7),
        st.sampled_from([13, 31, 45, 48, 63, 74, 79, 94, 95, 119, 154]),
        st.floats(-1e7, 1e7),
    ),
    max_size=15,
)


@settings(deadline=None, max_examples=40)
@given(STEPS)
def test_a_step_of_the_wall_clock_changes_no_verdict(steps: list[tuple[str, int, int, float]]) -> None:
    """Two nodes live through the same; the clock of one jumps before everything that happens."""
    steady, stepping = Scene(), Scene()
    for what, index, code, step_s in steps:
        stepping.wall_step_s += step_s if abs(stepping.wall_step_s + step_s) < 1e9 else -step_s
        for scene in (steady, stepping):
            if what == "xid":
                scene.xid(index, code, "x from 0x0 (None) to 0x1 (Reset)")
            elif what == "poll":
                scene.poll(3)
            elif what == "wait":
                scene.wait(7)
            elif what == "restart":
                scene.restart()
            else:
                scene.problem = None if scene.problem else SurveyProblem.HUNG
                scene.poll()
    assert steady.story == stepping.story
    assert [v.reason for v in steady.status.verdicts] == [v.reason for v in stepping.status.verdicts]


def test_sleep_of_the_machine_starts_proofs_and_counters_again() -> None:
    """What happened while it stood still is no proof and no growth, and devices may come back late."""
    scene = Scene()
    scene.tell(scene.facts())
    scene.xid(0, 48)
    scene.poll(4)
    scene.suspended_s += 3600
    answer = scene.tell(scene.facts())
    assert answer.probe
    assert scene.state.counters.histories == {}
    scene.poll(4)
    assert scene.says()[0] == "Faulty"
    scene.poll(2)
    assert scene.says()[0] == "Healthy"


def test_a_machine_that_never_slept_keeps_its_proofs() -> None:
    """The negative twin: the two clocks differ by a hair each time they are read."""
    scene = Scene()
    scene.tell(scene.facts())
    scene.xid(0, 48)
    for _ in range(5):
        scene.suspended_s += 0.01
        scene.tell(scene.facts())
        scene.poll()
    assert scene.says()[0] == "Healthy"


def test_a_silent_source_vouches_for_nothing() -> None:
    """RDMA was read every 30 s and then no more: unknown after three of its intervals, and said when."""
    scene = Scene()
    for _ in range(8):
        scene.poll(2)
        scene.tell(RdmaSurvey())
    assert scene.says(Subsystem.RDMA)[0] == "Healthy"
    scene.poll(7)
    assert scene.says(Subsystem.RDMA)[0] == "Healthy"
    scene.poll(3)
    assert scene.says(Subsystem.RDMA) == ("Unknown", "NotObserved")
    assert scene.says()[0] == "Healthy"
    scene.tell(RdmaSurvey())
    assert scene.says(Subsystem.RDMA)[0] == "Healthy"


def test_silence_is_noticed_without_any_reading() -> None:
    """The judge asks to be called when time alone changes its answer, and then changes it."""
    scene = Scene()
    scene.poll(3)
    for _ in range(8):
        due_s = scene.answer.due_s
        assert due_s is not None
        scene.wait(due_s + 0.01)
        if scene.says()[0] == "Unknown":
            return
    pytest.fail("nothing ever came due")


def test_the_memory_of_the_last_version_is_read() -> None:
    """Version 1 knew less: its faults, verdicts and identities are kept."""
    scene = Scene()
    scene.xid(3, 79)
    saved = json.loads(to_bytes(scene.state))
    saved["version"] = 1
    for later in ("repeats", "suspicions", "past", "tallies", "running_base_s", "uptime_s"):
        saved.pop(later, None)
    for fault in saved["faults"]:
        for later in ("seen_monotonic", "quiet_since", "pids", "echoes", "repeated", "watched_at"):
            fault.pop(later, None)
    state, problem = restore(json.dumps(saved).encode(), scene.boot, "p5.48xlarge", Settings(), scene.now)
    assert problem == ""
    assert state.version == STATE_VERSION
    assert [(fault.id, fault.state) for fault in state.faults] == [(scene.fault.id, FaultState.OPEN)]
    assert state.known_gpus == scene.state.known_gpus


def test_of_a_memory_that_is_not_understood_the_faults_are_kept() -> None:
    """A newer version's file, or a damaged one: what can be read of its faults is, and the rest is said."""
    scene = Scene()
    scene.xid(3, 79)
    scene.xid(4, 48)
    saved = json.loads(to_bytes(scene.state))
    saved["version"] = 99
    saved["standing"] = "something newer"
    saved["faults"][1]["codes"][0]["proof"] = "SomethingNewer"
    state, problem = restore(json.dumps(saved).encode(), scene.boot, "p5.48xlarge", Settings(), scene.now)
    assert "version 99" in problem
    assert [fault.root.code for fault in state.faults] == ["xid/79"]


def test_a_full_memory_fits_its_file() -> None:
    """Everything at its limit, with the longest texts: still within the size, and no fault is lost."""
    scene = Scene()
    for number in range(64):
        for code in (79, 48, 119, 62, 46, 109, 110, 63, 95, 64):
            text = f"pid={number}, name={'n' * 15}, {'long ' * 100}RST: Yes"
            scene.line(f"NVRM: Xid (PCI:{number:04x}:01:00): {code}, {text}")
        for other in range(20):
            scene.time_s += 1
            scene.line(f"NVRM: Xid (PCI:{number + 100:04x}:01:00): {31 if other % 2 else 13}, {'x' * 400}")
    content = to_bytes(scene.state)
    assert len(content) <= STATE_BYTES_MAX
    state, problem = restore(content, scene.boot, "p5.48xlarge", Settings(), scene.now)
    assert problem == ""
    assert [f.id for f in state.faults] == [f.id for f in scene.state.faults]


def test_what_is_saved_does_not_change_with_time_alone() -> None:
    """A healthy node polls for half an hour and has nothing new to write to its disk."""
    scene = Scene()
    scene.time_s = 7300.0
    scene.tell(KernelLogCaughtUp())
    scene.poll(2)
    before = to_bytes(scene.state)
    scene.poll(100)
    assert to_bytes(scene.state) == before
    assert msgspec.json.decode(before)["version"] == STATE_VERSION


def test_a_line_that_changes_nothing_is_answered_with_what_was_said() -> None:
    """In a flood the verdicts are made once: remembering a line is no reason to make them again."""
    scene = Scene()
    scene.line("NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!")
    said, heard_us = scene.state.answer, scene.state.heard_us
    assert said is not None
    scene.time_s += 0.5
    scene.line("NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!")
    assert scene.state.heard_us > heard_us
    assert scene.state.answer is said
