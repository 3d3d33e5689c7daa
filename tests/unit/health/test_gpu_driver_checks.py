"""Driver, devices and layout: what is software, what is a choice, and what is nobody's GPU."""

from __future__ import annotations

import pytest

from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import SurveyProblem
from tests.unit.health.builders import Scene


def test_libraries_swapped_under_the_driver_wait_for_the_next_drain() -> None:
    """Running programs go on, so nothing is drained; the node asks for a reboot and takes no new work."""
    scene = Scene()
    scene.problem = SurveyProblem.DRIVER_MISMATCH
    scene.poll(3)
    assert scene.says(Subsystem.MONITOR) == ("Unknown", "DriverMismatch")
    scene.poll()
    assert (scene.fault.code, scene.fault.fault_class) == ("driver/mismatch", FaultClass.TRANSIENT)
    assert scene.says(Subsystem.MONITOR) == ("Faulty", "RebootNeeded")
    scene.poll(20)
    assert scene.fault.fault_class is FaultClass.TRANSIENT
    scene.problem = None
    scene.poll(6)
    assert scene.status.faults == ()


def unload(scene: Scene) -> None:
    """The driver's module goes away, and the devices lose it."""
    scene.hardware.driver_loaded = False
    scene.problem = SurveyProblem.DRIVER_NOT_LOADED


def test_a_driver_upgrade_is_unknown_for_half_an_hour() -> None:
    """Nobody vouches meanwhile, and no GPU is lost, whatever the bus shows."""
    scene = Scene()
    unload(scene)
    scene.hardware.off_bus.add(scene.gpu(0))
    scene.hardware.unplugged.add(scene.gpu(1))
    scene.poll(110)
    assert scene.status.faults == ()
    assert scene.says(Subsystem.MONITOR) == ("Unknown", "DriverChanging")
    assert scene.says(Subsystem.GPU)[0] == "Unknown"


def test_a_driver_that_stays_away_is_a_fault_of_the_monitor() -> None:
    """After half an hour somebody forgot to finish."""
    scene = Scene()
    unload(scene)
    scene.poll(121)
    assert scene.fault.code == "monitor/driver-not-loaded"
    assert scene.says(Subsystem.MONITOR) == ("Faulty", "DriverNotLoaded")
    scene.hardware.driver_loaded = True
    scene.problem = None
    scene.poll(10)
    assert scene.status.faults == ()
    assert scene.says(Subsystem.MONITOR)[0] == "Healthy"


def test_an_old_library_that_calls_all_gpus_lost_is_not_believed_without_a_driver() -> None:
    """A library that stays open over an unload answers errors for ever."""
    scene = Scene()
    scene.hardware.driver_loaded = False
    for index in range(8):
        scene.hardware.change(scene.gpu(index), error="GPU_IS_LOST")
    scene.poll(20)
    assert scene.status.faults == ()


def test_a_machine_without_any_gpu_is_told_also_without_a_driver() -> None:
    """The driver does not load where there is no GPU to drive."""
    scene = Scene()
    unload(scene)
    scene.hardware.unplugged |= set(scene.hardware.gpus)
    scene.poll(3)
    assert [fault.code for fault in scene.status.faults] == ["gpu/none"]


def test_somebodys_reset_is_not_a_lost_gpu() -> None:
    """Two handles fail for two polls and come back."""
    scene = Scene()
    for error in ("GPU_IS_LOST", "RESET_REQUIRED"):
        scene.hardware.change(scene.gpu(2), error=error)
        scene.hardware.change(scene.gpu(3), error=error)
        scene.poll()
    assert scene.status.faults == ()
    for index in (2, 3):
        scene.hardware.change(scene.gpu(index), error="")
    scene.poll()
    assert scene.says() == ("Healthy", "GpusHealthy")


def test_a_gpu_lost_in_the_log_does_not_wait_for_polls() -> None:
    """With Xid 79 the fault stands at once, and NVML only confirms it."""
    scene = Scene()
    scene.xid(2, 79, "GPU has fallen off the bus.")
    scene.hardware.change(scene.gpu(2), error="GPU_IS_LOST")
    assert scene.says()[0] == "Faulty"
    scene.poll(3)
    assert len(scene.fault.evidence) == 2


def test_seven_of_eight_in_nvml_names_the_eighth() -> None:
    """On the bus and bound, unknown to NVML for two minutes while the others answer."""
    scene = Scene()
    scene.hardware.change(scene.gpu(4), error="NOT_FOUND")
    scene.poll(7)
    assert scene.says() == ("Unknown", "GpuNotReadable")
    scene.poll()
    assert (scene.fault.code, scene.fault.fault_class) == ("gpu/not-in-nvml", FaultClass.RESET_CURES)
    assert scene.fault.gpu is not None
    assert scene.fault.gpu.pci_address == scene.gpu(4)


def test_a_driver_that_knows_no_gpu_is_not_eight_bad_gpus() -> None:
    """Where none answers, the driver is to blame."""
    scene = Scene()
    for index in range(8):
        scene.hardware.change(scene.gpu(index), error="NOT_FOUND")
    scene.poll(40)
    assert scene.status.faults == ()
    assert scene.says()[0] == "Unknown"


def test_nouveau_is_the_wrong_driver_and_no_gpu_is_lost() -> None:
    """It is named, with what to do."""
    scene = Scene()
    unload(scene)
    scene.hardware.pci_drivers = dict.fromkeys(scene.hardware.gpus, "nouveau")
    scene.poll(4)
    assert (scene.fault.code, scene.fault.fault_class) == ("driver/nouveau", FaultClass.TRANSIENT)
    assert scene.says(Subsystem.MONITOR) == ("Faulty", "DriverNotLoaded")


def test_a_gpu_that_nobody_drives_is_told_after_minutes() -> None:
    """Somebody may be moving it to a virtual machine."""
    scene = Scene()
    scene.hardware.pci_drivers = {scene.gpu(0): ""}
    scene.hardware.change(scene.gpu(0), error="NOT_FOUND")
    scene.poll(19)
    assert scene.status.faults == ()
    scene.poll()
    assert (scene.fault.code, scene.fault.scope) == ("driver/unbound", Scope.GPU)
    scene.hardware.pci_drivers = {scene.gpu(0): "vfio-pci"}
    scene.hardware.change(scene.gpu(0), error="")
    scene.poll(6)
    assert scene.status.faults == ()


def test_gpus_of_virtual_machines_are_not_ours() -> None:
    """One is not counted; all of them leave nothing to vouch for, and nothing healthy to say."""
    scene = Scene()
    scene.hardware.pci_drivers = {scene.gpu(0): "vfio-pci"}
    scene.poll(3)
    assert scene.says()[0] == "Healthy"
    scene.hardware.pci_drivers = dict.fromkeys(scene.hardware.gpus, "vfio-pci")
    scene.poll(3)
    assert scene.status.faults == ()
    assert scene.says() == ("Unknown", "GpuAssignedToVm")


@pytest.mark.parametrize(
    "fields", [{"mig_pending": True}, {"mig_enabled": True, "mig_pending": True, "mig_changed": True}]
)
def test_a_moving_mig_layout_is_unknown_and_no_fault(fields: dict[str, bool]) -> None:
    """Nobody can vouch for slices that come and go."""
    scene = Scene()
    scene.hardware.change(scene.gpu(0), **fields)
    scene.poll(4)
    assert scene.status.faults == ()
    assert scene.says() == ("Unknown", "Reconfiguring")
    scene.hardware.change(
        scene.gpu(0), mig_pending=scene.hardware.gpus[scene.gpu(0)].mig_enabled, mig_changed=False
    )
    scene.poll()
    assert scene.says()[0] == "Healthy"


def test_persistence_mode_that_is_off_is_said_and_blocks_nothing() -> None:
    """It only makes the driver's word weaker."""
    scene = Scene()
    for index in range(8):
        scene.hardware.change(scene.gpu(index), persistence_enabled=False)
    scene.poll()
    assert scene.says() == ("Healthy", "GpusHealthy")
    assert "Persistence mode is off for all GPUs (PersistenceOff)" in scene.verdict().message


def test_a_device_node_that_is_missing_keeps_programs_out() -> None:
    """Others have theirs, so the agent's own view is not to blame."""
    scene = Scene()
    for index in range(8):
        scene.hardware.change(scene.gpu(index), minor=index)
    scene.hardware.change(scene.gpu(1), device_node="/dev/nvidia1 does not exist")
    scene.poll(4)
    assert (scene.fault.code, scene.fault.fault_class) == ("gpu/device-node", FaultClass.TRANSIENT)


def test_a_container_without_any_device_node_says_nothing_about_gpus() -> None:
    """Its /dev is its own."""
    scene = Scene()
    for index in range(8):
        node = f"/dev/nvidia{index} does not exist"
        scene.hardware.change(scene.gpu(index), minor=index, device_node=node)
    scene.poll(10)
    assert scene.status.faults == ()
