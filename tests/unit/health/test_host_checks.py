"""PCIe links, NVIDIA's services, stuck tasks and the host: each fault, and its nearest harmless neighbour."""

from __future__ import annotations

import msgspec
import pytest

from outlast.agent.sources import HOST_INTERVAL_S
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import (
    AerTotals,
    Filesystem,
    Fill,
    StuckTask,
    SurveyProblem,
    Witness,
)
from outlast.model.observation.processes import FABRIC_MANAGER, IMEX, PERSISTENCE_DAEMON
from tests.unit.health.around import Around

GPU, FABRIC, HOST = Subsystem.GPU, Subsystem.FABRIC, Subsystem.HOST


def asleep(seconds: float, *, zombie: bool = False, name: str = "python") -> StuckTask:
    """A task in the driver."""
    return StuckTask(pid=4711, tid=4712, name=name, asleep_s=seconds, witness=Witness.STACK, zombie=zombie)


# --- PCIe


def with_errors(scene: Around, gpu: str, **totals: int) -> None:
    """The GPU has counted so many PCIe errors."""
    scene.hardware.aer[gpu] = AerTotals(**totals)


def test_errors_of_before_are_a_baseline() -> None:
    """Only growth while we look says anything."""
    scene = Around()
    with_errors(scene, scene.gpu(3), correctable=50_000, nonfatal=400, fatal=3)
    scene.look(10)
    assert scene.codes == set()
    assert "Noted" not in scene.verdict(GPU).message


def test_a_fatal_error_keeps_new_work_away_for_an_hour() -> None:
    """Whether the GPU is dead is for others to find."""
    scene = Around()
    with_errors(scene, scene.gpu(3))
    scene.look(2)
    with_errors(scene, scene.gpu(3), fatal=1)
    scene.look(2)
    assert scene.says(GPU) == ("Faulty", "PcieErrors")
    assert (scene.fault.fault_class, scene.fault.scope) == (FaultClass.TRANSIENT, Scope.GPU)
    assert scene.fault.gpu is not None
    assert scene.fault.gpu.pci_address == scene.gpu(3)
    scene.look(125)
    assert scene.says(GPU) == ("Healthy", "GpusHealthy")


@pytest.mark.parametrize(
    ("totals", "faults", "said"),
    [
        ({"nonfatal": 1}, set(), True),
        ({"nonfatal": 10}, {"pcie/aer-nonfatal"}, False),
        ({"correctable": 59}, set(), False),
        ({"correctable": 60}, set(), True),
        ({"correctable": 6_000}, {"pcie/aer-storm"}, False),
    ],
)
def test_repaired_errors_are_said_and_a_storm_of_them_is_a_fault(
    totals: dict[str, int], faults: set[str], said: bool
) -> None:
    """Ten a second, or ten lost transactions an hour."""
    scene = Around()
    with_errors(scene, scene.gpu(3))
    scene.look(2)
    with_errors(scene, scene.gpu(3), **totals)
    scene.look(2)
    assert scene.codes == faults
    assert ("Noted" in scene.verdict(GPU).message) is said


def test_a_gpu_that_alone_runs_on_fewer_lanes_has_lost_them() -> None:
    """Three polls; a dead reading is none."""
    scene = Around()
    scene.hardware.lanes[scene.gpu(3)] = 8
    scene.look(2)
    assert scene.codes == set()
    scene.look()
    assert scene.codes == {"pcie/narrow"}
    assert scene.fault.fault_class is FaultClass.TRANSIENT


def test_a_machine_wired_with_fewer_lanes_is_said_and_no_fault() -> None:
    """All of one kind are alike."""
    scene = Around()
    scene.hardware.lanes = dict.fromkeys(scene.hardware.gpus, 8)
    scene.look(10)
    assert scene.codes == set()
    assert "uses 8 of 16 PCIe lanes" in scene.verdict(GPU).message


# --- services


def test_nvswitches_without_a_fabric_manager_are_a_service_to_start() -> None:
    """CUDA error 802 while nvidia-smi is content: no GPU is replaced, nobody is drained."""
    scene = Around(nvswitches=4)
    assert scene.says(FABRIC)[0] == "Healthy"
    scene.processes.services.remove(FABRIC_MANAGER)
    scene.look(3)
    assert scene.says(FABRIC)[0] == "Healthy"
    scene.look()
    assert scene.says(FABRIC) == ("Faulty", "FabricManagerDown")
    assert scene.fault.fault_class is FaultClass.TRANSIENT
    assert "802" in scene.fault.summary
    assert scene.says(GPU) == ("Healthy", "GpusHealthy")
    scene.processes.services.add(FABRIC_MANAGER)
    scene.look(4)
    assert scene.says(FABRIC)[0] == "Healthy"


@pytest.mark.parametrize(
    "harmless",
    ["no switches", "no driver", "virtual machine", "own processes only", "other services", "links off"],
)
def test_a_machine_that_needs_no_fabric_manager_misses_none(harmless: str) -> None:
    """Or one where nobody could see it."""
    scene = Around(nvswitches=0 if harmless == "no switches" else 4)
    scene.processes.services = {FABRIC_MANAGER} if harmless == "other services" else set()
    driver = {"no driver": "", "virtual machine": "vfio-pci"}.get(harmless, "nvidia-nvswitch")
    for address, switch in scene.hardware.nvswitches.items():
        scene.hardware.nvswitches[address] = msgspec.structs.replace(switch, driver=driver)
    scene.processes.whole_machine = harmless != "own processes only"
    if harmless == "links off":
        for address in scene.hardware.gpus:
            scene.hardware.change_detail(address, nvlinks=())
    assert not {IMEX, PERSISTENCE_DAEMON} & scene.processes.services
    scene.look(20)
    assert scene.codes == set()


def test_a_fabric_manager_that_is_late_at_boot_is_awaited() -> None:
    """The first minutes after the driver's banner are its own."""
    scene = Around(nvswitches=4)
    scene.reboot()
    scene.processes.services.clear()
    scene.look(8)
    assert scene.codes == set()
    scene.processes.services.add(FABRIC_MANAGER)
    scene.look(20)
    assert scene.codes == set()


def test_a_board_that_lacks_an_nvswitch_is_broken() -> None:
    """An H100 board has four."""
    scene = Around(nvswitches=4)
    scene.hardware.unplugged.add(sorted(scene.hardware.nvswitches)[0])
    scene.look(2)
    assert scene.says(FABRIC) == ("Faulty", "NvSwitchMissing")
    assert scene.fault.fault_class is FaultClass.REBOOT_CURES


# --- stuck tasks


def test_a_task_stuck_in_the_driver_keeps_new_work_away() -> None:
    """After a minute; alone it drains nobody, and it is over when the driver lets go."""
    scene = Around()
    scene.processes.stuck = [asleep(59.0)]
    scene.look()
    assert scene.codes == set()
    scene.processes.stuck = [asleep(61.0, zombie=True)]
    scene.look()
    assert scene.says(GPU) == ("Faulty", "DriverStuck")
    assert scene.fault.fault_class is FaultClass.TRANSIENT
    assert "still holds its GPUs" in scene.fault.summary
    scene.processes.stuck = []
    scene.look(4)
    assert scene.says(GPU) == ("Healthy", "GpusHealthy")


def test_it_is_the_second_witness_against_a_driver_whose_tool_hangs() -> None:
    """A hung tool alone proves nothing; with a task asleep in the driver it is wedged."""
    alone = Around()
    alone.problem = SurveyProblem.HUNG
    alone.look(3)
    assert not alone.fault.second_witness

    scene = Around()
    scene.problem = SurveyProblem.HUNG
    scene.look()
    scene.processes.stuck = [asleep(90.0, name="nvidia-smi")]
    scene.look()
    [hung] = [fault for fault in scene.status.faults if fault.code == "monitor/hung"]
    assert hung.second_witness


# --- host


@pytest.mark.parametrize(
    "mount_point",
    [
        "/var/lib/kubelet/plugins/kubernetes.io/csi/ebs.csi.aws.com/0123/globalmount",
        "/data/kubelet/pods/8b5e/volumes/kubernetes.io~csi/pvc-1/mount",
    ],
)
def test_a_pods_volume_is_not_the_machine(mount_point: str) -> None:
    """Who made its image can put errors into it, and must not be able to block a node with them."""
    scene = Around()
    scene.host.turn_read_only("nvme0n1p1")
    disk = scene.host.filesystems["nvme0n1p1"]
    scene.host.filesystems["nvme0n1p1"] = msgspec.structs.replace(disk, mount_point=mount_point)
    scene.look(3, after_s=HOST_INTERVAL_S)

    said = scene.verdict(HOST)
    assert (said.verdict.value, scene.codes) == ("Healthy", set())
    assert "the volume of a pod on nvme0n1p1 is read-only" in said.message


def test_a_file_system_that_its_errors_made_read_only_is_a_fault() -> None:
    """Keyed by the name that the kernel log gives the disk."""
    scene = Around()
    scene.host.turn_read_only("nvme0n1p1")
    scene.look(2, after_s=HOST_INTERVAL_S)
    assert scene.says(HOST) == ("Faulty", "FilesystemReadOnly")
    assert scene.fault.device == "disk nvme0n1p1"


@pytest.mark.parametrize(
    ("kind", "errors", "read_only"),
    [("ext4", 0, True), ("ext4", 7, True), ("btrfs", None, True), ("ext4", 3, False)],
    ids=["mounted by hand", "with errors of years ago", "no count", "writable with old errors"],
)
def test_a_file_system_that_is_read_only_on_purpose_is_none(
    kind: str, errors: int | None, read_only: bool
) -> None:
    """Its mount says so too; or it is writable still, whatever it counted once."""
    scene = Around()
    disk = Filesystem(device="sdb1", mount_point="/data", kind=kind, errors=errors, read_only=read_only)
    scene.host.filesystems["sdb1"] = disk
    if read_only:
        scene.host.mounted_read_only.add("sdb1")
    scene.look(10, after_s=HOST_INTERVAL_S)
    assert scene.codes == set()


def test_a_file_system_without_a_count_that_the_kernel_made_read_only_is_a_fault() -> None:
    """Also when that was before the agent's first look: its mount is one for writing."""
    scene = Around()
    scene.host.filesystems["sdb1"] = Filesystem(
        device="sdb1", mount_point="/data", kind="btrfs", read_only=True
    )
    scene.look(2, after_s=HOST_INTERVAL_S)
    assert scene.codes == {"host/filesystem-read-only"}


def test_a_disk_that_the_kernel_gave_up_is_a_fault_and_one_that_left_is_not() -> None:
    """Volumes of a cloud come and go."""
    scene = Around()
    scene.host.controllers["nvme1"] = "live"
    scene.look(2, after_s=HOST_INTERVAL_S)
    del scene.host.controllers["nvme1"]
    scene.look(5, after_s=HOST_INTERVAL_S)
    assert scene.codes == set()
    scene.host.controllers["nvme0"] = "dead"
    scene.look(2, after_s=HOST_INTERVAL_S)
    assert scene.says(HOST) == ("Faulty", "DiskFailed")
    assert scene.fault.device == "disk nvme0"


def test_a_disk_that_is_being_reset_has_its_time() -> None:
    """Five looks of a minute each."""
    scene = Around()
    scene.host.controllers["nvme0"] = "resetting"
    scene.look(4, after_s=HOST_INTERVAL_S)
    assert scene.codes == set()
    scene.host.controllers["nvme0"] = "live"
    scene.look(2, after_s=HOST_INTERVAL_S)
    scene.host.controllers["nvme0"] = "connecting"
    scene.look(5, after_s=HOST_INTERVAL_S)
    assert scene.codes == {"host/disk-resetting"}


@pytest.mark.parametrize(
    ("table", "code"), [("connections", "host/connections-full"), ("open_files", "host/open-files-full")]
)
def test_a_full_table_of_the_kernel_is_a_fault_before_it_looks_like_another(table: str, code: str) -> None:
    """From 95 %; from 80 % it is said."""
    scene = Around()
    setattr(scene.host, table, Fill(used=85, limit=100))
    scene.look(3, after_s=HOST_INTERVAL_S)
    assert scene.codes == set()
    assert "is 80% full or more" in scene.verdict(HOST).message
    setattr(scene.host, table, Fill(used=96, limit=100))
    scene.look(2, after_s=HOST_INTERVAL_S)
    assert scene.codes == {code}
    assert scene.says(HOST) == ("Faulty", "KernelTableFull")
