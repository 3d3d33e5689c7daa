"""Ports above devices, network functions and error counts, as sysfs lays them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.adapters.linux.pci import SysfsPciBus
from outlast.adapters.linux.pci_errors import read_aer
from outlast.model.observation import AerTotals
from tests.sysfs import FakeSysfs

ROOT_PORT, SWITCH_UP, SWITCH_DOWN, GPU = "0000:b0:01.0", "0000:b1:00.0", "0000:b2:04.0", "0000:b3:00.0"
CORRECTABLE = "RxErr 1\nBadTLP 2\nBadDLLP 0\nRollover 0\nTimeout 4\nNonFatalErr 0\nTOTAL_ERR_COR 7\n"
NONFATAL = "Undefined 0\nDLP 0\nSDES 0\nCmpltTO 3\nUnsupReq 40\nACSViol 2\nTOTAL_ERR_NONFATAL 45\n"
FATAL = "Undefined 0\nDLP 1\nSDES 5\nMalfTLP 1\nUnsupReq 0\nTOTAL_ERR_FATAL 7\n"


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    tree = FakeSysfs(tmp_path)
    tree.add_port(ROOT_PORT)
    tree.add_port(SWITCH_UP, above=ROOT_PORT)
    tree.add_port(SWITCH_DOWN, width_max=8, above=SWITCH_UP)
    tree.add_gpu(GPU, above=SWITCH_DOWN)
    return tree


def test_ports_above_a_device_are_found_up_to_the_root(sysfs: FakeSysfs, tmp_path: Path) -> None:
    """The one at the other end of its link is told apart from those that it shares."""
    survey = SysfsPciBus(tmp_path).survey()

    [gpu] = survey.gpus
    assert gpu.port == SWITCH_DOWN
    assert [(p.address, p.direct, p.below) for p in survey.ports] == [
        (ROOT_PORT, False, (GPU,)),
        (SWITCH_UP, False, (GPU,)),
        (SWITCH_DOWN, True, (GPU,)),
    ]
    assert survey.ports[2].link_width_max == 8


def test_errors_of_probing_and_of_resets_are_left_out(tmp_path: Path) -> None:
    """A scan of the bus makes UnsupReq, a reset makes SDES; neither says anything of the link."""
    for severity, text in (("correctable", CORRECTABLE), ("nonfatal", NONFATAL), ("fatal", FATAL)):
        (tmp_path / f"aer_dev_{severity}").write_text(text)

    assert read_aer(str(tmp_path)) == AerTotals(correctable=7, nonfatal=3, fatal=2)


@pytest.mark.parametrize("text", ["", "garbage", "RxErr x\n", "\xff\xfe", "RxErr -4\n"])
def test_garbage_is_no_count(tmp_path: Path, text: str) -> None:
    """And is not zero either."""
    for severity in ("correctable", "nonfatal", "fatal"):
        (tmp_path / f"aer_dev_{severity}").write_text(text)
    assert read_aer(str(tmp_path)) is None


def test_a_kernel_that_only_gives_a_total_is_understood(tmp_path: Path) -> None:
    """The kinds are missing; the total stands."""
    for severity, total in (("correctable", "COR"), ("nonfatal", "NONFATAL"), ("fatal", "FATAL")):
        (tmp_path / f"aer_dev_{severity}").write_text(f"TOTAL_ERR_{total} 3\n")
    assert read_aer(str(tmp_path)) == AerTotals(correctable=3, nonfatal=3, fatal=3)


def test_counts_of_devices_and_ports_are_counters(sysfs: FakeSysfs, tmp_path: Path) -> None:
    """A device without the files has none, which is normal in a virtual machine."""
    sysfs.set_aer(GPU, correctable=4)
    sysfs.set_aer(SWITCH_DOWN, fatal=1)

    counters = {(c.device, c.name): c.value for c in SysfsPciBus(tmp_path).survey().counters()}

    assert counters[GPU, "aer_correctable"] == 4
    assert counters[SWITCH_DOWN, "aer_fatal"] == 1
    assert not any(device == ROOT_PORT for device, _ in counters)


def test_network_functions_of_all_vendors_are_listed_without_virtual_ones(
    sysfs: FakeSysfs, tmp_path: Path
) -> None:
    """Bound or not; EFA has a list of its own, and Amazon's other devices are ordinary ones."""
    sysfs.add("0000:5c:00.0", vendor=0x15B3, device=0x1021, class_code=0x020700, driver="mlx5_core")
    sysfs.add("0000:5d:00.0", vendor=0x15B3, device=0x1021, class_code=0x020000)
    sysfs.add("0000:5c:00.2", vendor=0x15B3, device=0x101E, class_code=0x020700, physfn="0000:5c:00.0")
    sysfs.add("0000:00:05.0", vendor=0x1D0F, device=0xEC20, class_code=0x020000, driver="ena")
    sysfs.add("0000:00:1f.0", vendor=0x1D0F, device=0x8061, class_code=0x010802, driver="nvme")
    sysfs.add_efa("0000:00:06.0")
    sysfs.add_nvswitch("0000:07:00.0")

    survey = SysfsPciBus(tmp_path).survey()

    assert [(n.address, n.driver) for n in survey.nics] == [
        ("0000:00:05.0", "ena"),
        ("0000:5c:00.0", "mlx5_core"),
        ("0000:5d:00.0", ""),
    ]
    assert [efa.address for efa in survey.efa] == ["0000:00:06.0"]
    assert [switch.address for switch in survey.nvswitches] == ["0000:07:00.0"]
