"""A check, a rule or a source of ours that fails by itself is said, and ends nothing."""

from __future__ import annotations

import pytest

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.finding import Assessment
from outlast.health.reasons import Reason
from outlast.health.verdict import broken, levels, to_bytes
from outlast.health.verdict.broken import BROKEN_MAX
from outlast.model.health import Subsystem, Verdict
from outlast.model.observation import GpuSurvey
from tests.unit.health.builders import Scene


@pytest.fixture
def shaky(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Another check of NVML's answers, which raises while there is something in this list."""
    errors: list[Exception] = []

    def run(view: View) -> Assessment | None:
        if errors:
            raise errors[0]
        return Assessment(check="shaky")

    check = LevelCheck("shaky", "a test", frozenset({GpuSurvey}), run)
    real = levels.checks_of
    monkeypatch.setattr(
        levels, "checks_of", lambda kind: (check, *real(kind)) if kind is GpuSurvey else real(kind)
    )
    return errors


def test_a_check_that_fails_takes_only_the_monitors_word(shaky: list[Exception]) -> None:
    """The other checks judge the same survey, and the failing one is named until it works again."""
    scene = Scene()
    shaky.append(KeyError("a name from a hostile line"))
    scene.hardware.off_bus.add(scene.gpu(2))
    for _ in range(4):
        scene.poll()

    said = scene.verdict(Subsystem.MONITOR)
    assert (said.verdict, said.reason) == (Verdict.UNKNOWN, Reason.DIAGNOSTICS_FAILED)
    assert "check shaky failed (KeyError in test_judge_broken.py line " in said.message
    assert "hostile" not in said.message
    assert scene.status.faults

    shaky.clear()
    scene.poll()
    assert scene.verdict(Subsystem.MONITOR).verdict is Verdict.HEALTHY


def test_a_line_that_a_rule_trips_over_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next line is judged, and that one was lost is said for the rest of the boot."""
    scene = Scene()

    def trip(*_: object) -> None:
        raise IndexError("tuple index out of range")

    with monkeypatch.context() as patched:
        patched.setattr("outlast.health.verdict.events.kernel_text.read", trip)
        scene.xid(3, 79)
    assert not scene.status.faults
    scene.xid(4, 79)
    scene.poll()

    assert [fault.code for fault in scene.status.faults] == ["xid/79"]
    assert "judging the kernel log failed (IndexError" in scene.verdict(Subsystem.MONITOR).message
    assert b"IndexError" not in to_bytes(scene.state)


def test_no_more_failures_are_told_than_the_limit() -> None:
    """However many things break, the state stays small."""
    state = Scene().state
    for number in range(10 * BROKEN_MAX):
        state = broken.failed(state, f"check {number}", ValueError())

    assert len([name for name in state.notes if name.startswith("broken")]) == BROKEN_MAX
