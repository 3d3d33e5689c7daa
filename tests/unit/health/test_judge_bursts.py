"""A burst of probes is one look: what makes all sources look at once confirms and clears nothing sooner."""

from __future__ import annotations

import msgspec
import pytest

from outlast.health import finding
from outlast.health.finding import POLL_SPACING_S, SPACING_SLACK, Level
from outlast.health.verdict.state import LevelState
from outlast.model.health import FaultClass, Subsystem
from outlast.model.observation import SurveyProblem
from tests.unit.health.builders import Scene

MOMENT_S = 0.05


def burst(scene: Scene, probes: int = 30) -> None:
    """All sources look again and again, as while one fault after the other opens elsewhere."""
    scene.poll(probes, every_s=MOMENT_S)


def test_a_burst_of_probes_is_one_poll_of_a_lost_gpu() -> None:
    """Three polls at the usual pace say lost; thirty within two seconds do not."""
    scene = Scene()
    scene.time_s += 400
    scene.poll()
    scene.hardware.change(scene.gpu(3), error="GPU_IS_LOST", recovery_action=None)
    burst(scene)
    assert scene.status.faults == ()
    scene.hardware.change(scene.gpu(3), error="")
    scene.poll(40)
    assert scene.status.faults == ()
    scene.hardware.change(scene.gpu(3), error="GPU_IS_LOST")
    scene.poll(3)
    assert scene.fault.code == "gpu/lost"


def test_a_burst_of_probes_misses_no_gpu_on_the_bus() -> None:
    """A bus that is scanned anew hides its devices for a moment."""
    scene = Scene()
    scene.time_s += 400
    scene.poll()
    scene.hardware.unplugged.add(scene.gpu(3))
    burst(scene)
    assert scene.status.faults == ()
    scene.poll()
    assert scene.fault.code == "gpu/missing"


def test_a_burst_of_probes_trusts_no_tool_that_hung() -> None:
    """Three completed surveys end a hang, over as long as three polls take."""
    scene = Scene()
    scene.problem = SurveyProblem.HUNG
    scene.poll()
    scene.problem = None
    burst(scene)
    assert scene.says(Subsystem.MONITOR) == ("Faulty", "DiagnosticsHung")
    scene.poll(2)
    assert scene.says(Subsystem.MONITOR) == ("Healthy", "MonitorHealthy")


def test_a_burst_of_probes_ends_no_notice_of_a_repair() -> None:
    """63 waits for the counters; two looks in one moment are one."""
    scene = Scene()
    scene.xid(3, 63, "Row Remapper: New row marked for remapping.")
    assert scene.status.faults != ()
    burst(scene, 5)
    assert scene.status.faults != ()
    scene.poll(2)
    assert scene.status.faults == ()


def test_polls_that_are_far_apart_are_not_in_a_row() -> None:
    """Lost before somebody changed the driver, and lost for one poll after it: not three times in a row."""
    scene = Scene()
    scene.time_s += 400
    scene.poll()
    scene.hardware.change(scene.gpu(3), error="GPU_IS_LOST", recovery_action=None)
    scene.poll(2)
    scene.hardware.driver_loaded = False
    scene.poll(40)
    scene.hardware.driver_loaded = True
    scene.poll()
    scene.hardware.change(scene.gpu(3), error="", recovery_action=0)
    scene.poll(2)
    assert all(fault.fault_class is not FaultClass.REBOOT_CURES for fault in scene.status.faults)


@pytest.mark.parametrize("polls", [1, 2, 3, 4, 20])
def test_a_level_stands_after_its_polls_at_the_usual_pace_and_not_before(polls: int) -> None:
    """Also where each poll is a little early."""
    level = Level(
        code="x",
        reason=next(iter(finding.Reason)),
        fault_class=FaultClass.TRANSIENT,
        subsystem=Subsystem.GPU,
        scope=finding.Scope.NODE,
        rank=1,
        proof=finding.Proof.LEVEL_GOOD,
        summary="",
        source="",
        text="",
        polls=polls,
    )
    span_s = (polls - 1) * POLL_SPACING_S
    assert LevelState("check", level, polls, 100.0, 100.0 + span_s * SPACING_SLACK).stands
    assert not LevelState("check", level, polls - 1, 100.0, 100.0 + span_s).stands
    hasty = LevelState("check", level, 10 * polls, 100.0, 100.0 + span_s / 2)
    assert hasty.stands is (polls == 1)
    assert msgspec.structs.replace(level, spacing_s=0.0).span_s == 0.0
