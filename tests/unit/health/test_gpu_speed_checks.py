"""Clocks held down by heat or power: minutes of it are a fault, peaks and idle clocks are not."""

from __future__ import annotations

import pytest

from outlast.model.health import FaultClass, Scope
from tests.unit.health.builders import POLL_S, Scene

IDLE, APPLICATION, POWER_CAP, HW_SLOWDOWN, SYNC = 0x1, 0x2, 0x4, 0x8, 0x10
SW_THERMAL, HW_THERMAL, POWER_BRAKE, DISPLAY = 0x20, 0x40, 0x80, 0x100


def reasons(scene: Scene, value: int, *indexes: int) -> None:
    """The clocks of these GPUs are what they are for these reasons."""
    for index in indexes:
        scene.hardware.change(scene.gpu(index), clocks_event_reasons=value)


@pytest.mark.parametrize(
    "value",
    [
        0,
        IDLE,
        IDLE | HW_SLOWDOWN,
        IDLE | HW_SLOWDOWN,
        APPLICATION,
        POWER_CAP,
        SYNC,
        DISPLAY,
        POWER_CAP | SYNC,
        2**64 - 1,
    ],
)
def test_normal_clocks_are_no_fault(value: int) -> None:
    """Idle, capped, synchronised and user-set clocks are how a GPU works; all ones is no answer."""
    scene = Scene()
    reasons(scene, value, *range(8))
    scene.poll(60)
    assert scene.status.faults == ()
    assert scene.says() == ("Healthy", "GpusHealthy")


def test_a_short_hardware_slowdown_is_a_peak() -> None:
    """Three polls are not enough."""
    scene = Scene()
    reasons(scene, HW_THERMAL | HW_SLOWDOWN, 3)
    scene.poll(3)
    reasons(scene, 0, 3)
    scene.poll()
    assert scene.status.faults == ()


def test_a_hardware_slowdown_that_lasts_is_a_fault_that_drains_nobody() -> None:
    """It is over when the clocks were free for ten minutes."""
    scene = Scene()
    reasons(scene, HW_THERMAL | HW_SLOWDOWN, 3)
    scene.poll(4)
    assert (scene.fault.code, scene.fault.fault_class) == ("thermal/hardware", FaultClass.TRANSIENT)
    assert scene.says() == ("Faulty", "GpuTooHot")
    reasons(scene, 0, 3)
    scene.poll(30)
    assert scene.status.faults != ()
    scene.poll(15)
    assert scene.status.faults == ()


def test_the_software_slowdown_needs_minutes() -> None:
    """Boards in warm racks touch their target temperature; five minutes of it are heat."""
    scene = Scene()
    reasons(scene, SW_THERMAL, 3)
    scene.poll(19)
    assert scene.status.faults == ()
    scene.poll()
    assert scene.fault.code == "thermal/software"


def test_a_gpu_beyond_its_margin_is_hot_whatever_the_reasons_say() -> None:
    """Zero degrees left needs minutes, the hardware's own limit one."""
    scene = Scene()
    scene.hardware.change(scene.gpu(1), temperature_margin_c=0)
    scene.hardware.change(scene.gpu(2), temperature_margin_c=-3)
    scene.poll(4)
    assert [fault.code for fault in scene.status.faults] == ["thermal/hardware"]
    assert scene.fault.gpu is not None
    assert scene.fault.gpu.pci_address == scene.gpu(2)
    scene.poll(16)
    assert {fault.code for fault in scene.status.faults} == {"thermal/hardware", "thermal/software"}


def test_lost_time_counts_where_polls_hit_the_gaps() -> None:
    """The counter says that the clocks were held down for most of the time."""
    scene = Scene()
    scene.poll(8)
    for _ in range(12):
        before = scene.hardware.gpus[scene.gpu(0)].hw_thermal_ns or 0
        scene.hardware.change(scene.gpu(0), hw_thermal_ns=before + int(0.8 * POLL_S * 1e9))
        scene.poll()
    assert scene.fault.code == "thermal/hardware"


def test_a_gpu_that_is_still_warm_is_not_yet_over() -> None:
    """Slowed down lately and three degrees below the limit: the fault goes on."""
    scene = Scene()
    reasons(scene, HW_THERMAL, 3)
    scene.poll(4)
    reasons(scene, 0, 3)
    for _ in range(60):
        before = scene.hardware.gpus[scene.gpu(3)].hw_thermal_ns or 0
        scene.hardware.change(scene.gpu(3), hw_thermal_ns=before + 1_000_000, temperature_margin_c=3)
        scene.poll()
    assert [fault.code for fault in scene.status.faults] == ["thermal/hardware"]


@pytest.mark.parametrize("value", [POWER_BRAKE, POWER_BRAKE | HW_SLOWDOWN, HW_SLOWDOWN])
def test_a_gpu_braked_by_its_supply_is_named(value: int) -> None:
    """The general bit alone counts too, where no heat explains it."""
    scene = Scene()
    reasons(scene, value, 6)
    scene.poll(4)
    assert (scene.fault.code, scene.fault.fault_class) == ("power/brake", FaultClass.TRANSIENT)
    assert scene.says() == ("Faulty", "PowerBrake")


def test_a_brake_on_all_gpus_is_the_machine() -> None:
    """One finding about the supply, not eight bad boards."""
    scene = Scene()
    reasons(scene, POWER_BRAKE, *range(8))
    scene.poll(4)
    assert (scene.fault.code, scene.fault.scope, scene.fault.gpu) == ("power/brake-all", Scope.NODE, None)
    reasons(scene, 0, *range(8))
    scene.poll(250)
    assert scene.status.faults == ()


@pytest.mark.parametrize(
    ("on", "life", "said"), [(True, 3, True), (True, 77, False), (True, None, False), (False, 0, False)]
)
def test_a_worn_power_smoothing_is_worth_a_word(on: bool, life: int | None, said: bool) -> None:
    """Only where it is switched on and says so; it is no fault."""
    scene = Scene()
    scene.hardware.change_detail(scene.gpu(2), power_smoothing_enabled=on, power_smoothing_life_percent=life)
    scene.poll()
    assert ("nearly worn out" in scene.verdict().message) is said
    assert (scene.says()[0], scene.status.faults) == ("Healthy", ())
