"""Cases of DCGM in tests/data/cases.tsv; the table says what happens and which trap there is."""

from __future__ import annotations

import pytest

from outlast.health.sources.dcgm_diag import DiagError, DiagResult, DiagStatus, TestResult
from outlast.health.sources.dcgm_retry import to_retry
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import (
    SurveyProblem,
)
from outlast.model.observation.dcgm import DcgmIncident, DcgmProblem, DcgmSurvey
from tests.acceptance.cases import disrupts
from tests.unit.health.builders import Scene


@pytest.mark.parametrize("problem", [DcgmProblem.ENGINE_DOWN, DcgmProblem.HUNG, DcgmProblem.FAILED])
def test_up_035_an_engine_that_never_started_is_named(problem: DcgmProblem) -> None:
    """No GPU is blamed, and the message says which tool is missing."""
    scene = Scene()
    for _ in range(20):
        scene.poll()
        scene.tell(DcgmSurvey(problem=problem, message="no host engine answers on localhost"))
    assert (scene.status.faults, scene.says()[0]) == ((), "Healthy")
    assert "host engine" in scene.verdict(Subsystem.MONITOR).message


def broken(code: int | None = None, polls: int = 3, health: str = "Failure") -> DcgmSurvey:
    """DCGM holds something against GPU 2."""
    incident = DcgmIncident(
        entity_group="GPU",
        entity_id=2,
        system="Memory system",
        health=health,
        text="something is wrong",
        code=code,
        polls=polls,
    )
    return DcgmSurvey(overall=health, incidents=(incident,))


def test_up_036_what_is_over_is_reported_as_over() -> None:
    """An error at boot and then good looks: the node is good again without anybody's help."""
    scene = Scene()
    for _ in range(6):
        scene.poll()
        scene.tell(broken(code=5))
    for _ in range(12):
        scene.poll()
        scene.tell(DcgmSurvey(overall="Healthy"))
    assert (scene.status.faults, scene.says()[0]) == ((), "Healthy")


def test_up_037_the_time_of_a_check_is_the_time_of_a_check() -> None:
    """The tool is away for 90 s and back: good within polls; while it is away no check is claimed."""
    scene = Scene()
    checked = scene.status.checked_at
    scene.problem = SurveyProblem.CRASHED
    scene.poll(6)
    assert scene.status.checked_at == checked
    scene.problem = None
    scene.poll(4)
    assert scene.says(Subsystem.MONITOR)[0] == "Healthy"
    assert scene.status.checked_at is not None
    assert checked is not None
    assert scene.status.checked_at > checked
    scene.wait(130)
    assert scene.says()[0] == "Unknown"


def test_up_039_a_call_that_never_returns_blocks_and_a_remote_engine_does_not() -> None:
    """Our own driver call hangs: fail closed, drain nobody. DCGM's engine hangs: a word about DCGM."""
    scene, remote = Scene(), Scene()
    scene.problem = SurveyProblem.HUNG
    scene.poll(40)
    assert scene.says(Subsystem.MONITOR) == ("Faulty", "DiagnosticsHung")
    assert not disrupts(scene)
    for _ in range(40):
        remote.poll()
        remote.tell(DcgmSurvey(problem=DcgmProblem.HUNG, message="dcgmi gave no answer in 10 s"))
    assert (remote.status.faults, remote.status.state) == ((), "Healthy")


def test_up_041_absence_is_unknown() -> None:
    """No survey comes any more: within the limit nobody vouches, and nothing is called good."""
    scene = Scene()
    scene.wait(119)
    assert scene.says()[0] == "Healthy"
    scene.wait(3)
    assert scene.says() == ("Unknown", "NotObserved")


def test_up_044_a_pending_remap_waits_for_a_good_moment() -> None:
    """A reset when the node is empty; never a new board, never a fault of the whole node."""
    scene = Scene()
    scene.hardware.change(scene.gpu(2), remap_pending=True)
    for _ in range(4):
        scene.poll()
        scene.tell(broken(code=None, health="Warning"))
    assert {f.fault_class for f in scene.status.faults} == {FaultClass.RESET_CURES}
    assert scene.status.faults[0].scope is Scope.GPU


def test_up_046_a_flaky_bandwidth_test_runs_again_alone() -> None:
    """It asks for another run; a hardware error does not."""
    flaky = TestResult(
        name="nvbandwidth",
        status=DiagStatus.FAIL,
        errors=(DiagError(text="Memory copy utilization MCUTIL > 10%: the GPU is in use"),),
    )
    assert to_retry(DiagResult(tests=(flaky,))) == ("nvbandwidth",)
    sick = TestResult(
        name="memory", status=DiagStatus.FAIL, errors=(DiagError(text="uncorrectable", error_id=5),)
    )
    assert to_retry(DiagResult(tests=(sick,))) == ()


def test_up_049_a_code_that_nobody_knows_is_said_and_is_neither_ignored_nor_fatal() -> None:
    """An error beyond the table: a person reads of it, nobody is drained."""
    scene = Scene()
    for polls in range(1, 8):
        scene.poll()
        scene.tell(broken(code=99_999, polls=polls))
    assert not disrupts(scene)
    messages = " ".join(verdict.message for verdict in scene.status.verdicts)
    assert "DCGM" in messages


def test_up_050_a_failed_remap_is_the_end_of_a_board_without_any_xid() -> None:
    """The level alone says it."""
    scene = Scene()
    scene.hardware.change(scene.gpu(2), remap_failed=True)
    scene.poll()
    assert scene.fault.fault_class is FaultClass.HARDWARE_GONE
