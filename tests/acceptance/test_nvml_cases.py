"""Cases of NVML and the driver in tests/data/cases.tsv, which says what happens and which trap there is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from outlast.health.catalogue import load
from outlast.health.finding import Role
from outlast.health.verdict import ApplicationRule, Settings
from outlast.model.health import FaultClass, Subsystem
from outlast.model.observation import (
    PciDevice,
    ProcessSurvey,
    SurveyProblem,
)
from tests.acceptance.cases import ROOT, disrupts, settled
from tests.unit.health.builders import Scene


def test_up_051_43_is_a_warning_until_jobs_agree_or_a_site_decides(tmp_path: Path) -> None:
    """By default a note; different jobs on one GPU suspect it; an override makes it a leader."""
    scene = Scene(settings=Settings(application_rule=ApplicationRule.BLOCK))
    for number in range(3):
        scene.time_s += 3600
        scene.owners(**{f"pod-{number}": 100 + number})
        scene.xid(0, 43, "Ch 1", pid=100 + number)
        settled(scene)
        assert not disrupts(scene)
    assert scene.fault.code == "gpu/suspect"
    rows = (ROOT / "src/outlast/health/catalogue/xid.csv").read_text().splitlines()
    [mine] = [row for row in rows if row.startswith("43,")]
    override = tmp_path / "xid.csv"
    mine = mine.replace(",follower,", ",leader,").replace(",Application,", ",Transient,")
    override.write_text(f"{rows[0]}\n{mine}\n")
    entry = load(override).xid(43)
    assert entry is not None
    assert (entry.role, entry.fault_class) == (Role.LEADER, FaultClass.TRANSIENT)


def test_up_052_94_restarts_the_program_and_109_resets_the_gpu() -> None:
    """Not the reverse."""
    contained, switch = Scene(), Scene()
    contained.xid(0, 94, "Contained: CE User Channel (0x9). RST: No, D-RST: No", pid=7194)
    switch.xid(0, 109, "Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005", pid=1797828)
    assert not disrupts(settled(contained))
    assert settled(switch).fault.fault_class is FaultClass.RESET_CURES


def test_up_053_a_contained_error_lets_its_gpu_go() -> None:
    """Its program restarted, nothing is pending: back in service, though the volatile counter stays at 2."""
    scene = Scene()
    scene.hardware.change(scene.gpu(0), ecc_uncorrected_volatile=2, process_ids=(9,))
    scene.xid(0, 94, "Contained: SM (0x1). RST: No, D-RST: No", pid=7)
    settled(scene).poll(30)
    assert (scene.status.faults, scene.says()[0]) == ((), "Healthy")


@pytest.mark.parametrize("checked", [True, False])
def test_up_054_seven_of_eight_is_never_right(checked: bool) -> None:
    """Missing later or missing since the first look: the machine type says eight."""
    scene = Scene(checked=checked)
    gone = scene.gpu(5)
    scene.hardware.unplugged.add(gone)
    scene.poll(2)
    assert scene.says() == ("Faulty", "GpuMissing")
    assert scene.status.gpu_count == "7/8"
    if checked:
        assert scene.fault.gpu is not None
        assert scene.fault.gpu.pci_address == gone


def switched(scene: Scene) -> Scene:
    """A machine with NVSwitches."""
    switch = PciDevice(
        address="0000:07:00.0", vendor=0x10DE, device=0x22A3, class_code=0x0680, driver="nvidia-nvswitch"
    )
    survey = scene.bus.survey
    scene.bus.survey = lambda: msgspec.structs.replace(survey(), nvswitches=(switch,) * 4)  # type: ignore[method-assign]
    return scene


def test_up_059_without_fabric_manager_the_platform_is_at_fault() -> None:
    """New CUDA programs fail with 802 while nvidia-smi is fine: the fabric is not ready, no GPU is blamed."""
    scene = switched(Scene())
    scene.poll(20)
    for _ in range(6):
        scene.poll()
        scene.tell(ProcessSurvey(whole_machine=True, services=()))
    assert scene.says(Subsystem.FABRIC) == ("Faulty", "FabricManagerDown")
    assert (scene.says()[0], disrupts(scene)) == ("Healthy", False)
    for _ in range(8):
        scene.poll()
        scene.tell(ProcessSurvey(whole_machine=True, services=("nv-fabricmanager",)))
    assert scene.says(Subsystem.FABRIC)[0] == "Healthy"


def test_up_062_replaced_libraries_ask_for_a_reboot_and_kill_nobody() -> None:
    """Running programs work on: new work is kept away until somebody reboots the empty node."""
    scene = Scene()
    scene.problem = SurveyProblem.DRIVER_MISMATCH
    scene.poll(10)
    assert scene.says(Subsystem.MONITOR) == ("Faulty", "RebootNeeded")
    assert not disrupts(scene)


def test_up_063_one_lost_gpu_takes_the_node_out_of_service_at_once() -> None:
    """Within two polls the node is not ready and the GPU is named, before it swallows pods for hours."""
    scene = Scene()
    scene.hardware.off_bus.add(scene.gpu(1))
    scene.poll(2)
    assert scene.says()[0] == "Faulty"
    assert scene.fault.gpu is not None
    assert scene.fault.gpu.pci_address == scene.gpu(1)
