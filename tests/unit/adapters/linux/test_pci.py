"""PCI survey on trees laid out like the kernel's."""

from pathlib import Path

import pytest

from outlast.adapters.linux.pci import SysfsPciBus
from tests.sysfs import FakeSysfs


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


@pytest.fixture
def bus(tmp_path: Path) -> SysfsPciBus:
    return SysfsPciBus(root=tmp_path)


@pytest.mark.parametrize(
    ("modules", "loaded", "version"),
    [((), None, ""), (("nvidia",), True, "580.95.05"), (("nvidia_drm",), False, "")],
)
def test_whether_the_driver_is_loaded_is_what_the_kernel_says(
    tmp_path: Path, modules: tuple[str, ...], loaded: bool | None, version: str
) -> None:
    """A tree without modules says nothing; helper modules are not the driver."""
    sysfs = FakeSysfs(tmp_path)
    sysfs.add_gpu("0000:10:00.0")
    for module in modules:
        folder = tmp_path / "sys/module" / module
        folder.mkdir(parents=True)
        (folder / "version").write_text("580.95.05\n")

    survey = SysfsPciBus(root=tmp_path).survey()

    assert (survey.driver_loaded, survey.driver_module_version) == (loaded, version)


def test_gpus_are_nvidia_display_functions_and_nothing_else(sysfs: FakeSysfs, bus: SysfsPciBus) -> None:
    """An NVSwitch, a GPU's audio function and another vendor's display are no GPUs."""
    sysfs.add_gpu("0000:b3:00.0")
    sysfs.add_gpu("0000:10:1c.0", class_code=0x030000)
    sysfs.add("0000:b3:00.1", vendor=0x10DE, device=0x22C8, class_code=0x040300)
    sysfs.add("0000:c0:00.0", vendor=0x10DE, device=0x22A3, class_code=0x068000)
    sysfs.add("0000:00:02.0", vendor=0x8086, device=0x1234, class_code=0x030000)

    survey = bus.survey()

    assert [gpu.address for gpu in survey.gpus] == ["0000:10:1c.0", "0000:b3:00.0"]
    assert survey.readable
    gpu = survey.gpus[1]
    assert (gpu.driver, gpu.link_width, gpu.link_width_max, gpu.responds) == ("nvidia", 16, 16, True)
    assert gpu.class_code == 0x0302


def test_efa_counts_only_where_the_efa_driver_runs_it(sysfs: FakeSysfs, bus: SysfsPciBus) -> None:
    """A device without its driver is present and useless: it is told apart, not counted."""
    sysfs.add_efa("0000:90:00.0")
    sysfs.add_efa("0000:90:01.0", driver="")
    sysfs.add("0000:00:05.0", vendor=0x1D0F, device=0xEC20, class_code=0x020000, driver="ena")

    survey = bus.survey()

    assert [nic.address for nic in survey.efa] == ["0000:90:00.0"]
    assert [nic.address for nic in survey.efa_unbound] == ["0000:90:01.0"]
    assert survey.efa[0].link_width is None


def test_virtual_functions_are_left_out(sysfs: FakeSysfs, bus: SysfsPciBus) -> None:
    """SR-IOV functions are slices of a device that is counted already."""
    sysfs.add_gpu("0000:b3:00.0")
    sysfs.add("0000:b3:00.4", vendor=0x10DE, device=0x2330, class_code=0x030200, physfn="0000:b3:00.0")

    assert [gpu.address for gpu in bus.survey().gpus] == ["0000:b3:00.0"]


def test_a_gpu_that_reads_as_all_ones_does_not_respond(sysfs: FakeSysfs, bus: SysfsPciBus) -> None:
    """The kernel goes on listing a device that fell off the bus."""
    sysfs.fall_off_bus(sysfs.add_gpu("0000:b3:00.0"))

    (gpu,) = bus.survey().gpus

    assert not gpu.responds
    assert gpu.link_width is None
    assert gpu.link_width_max is None


def test_a_narrow_link_shows_both_widths(sysfs: FakeSysfs, bus: SysfsPciBus) -> None:
    """Judging a downgrade needs the present and the possible width."""
    sysfs.set_width(sysfs.add_gpu("0000:b3:00.0"), 8, 16)

    (gpu,) = bus.survey().gpus

    assert (gpu.link_width, gpu.link_width_max) == (8, 16)


def test_a_function_that_vanishes_while_read_is_not_there(sysfs: FakeSysfs, bus: SysfsPciBus) -> None:
    """Hot removal between the listing and the read is an ordinary event."""
    sysfs.add_gpu("0000:10:00.0")
    sysfs.vanish_while_listed(sysfs.add_gpu("0000:b3:00.0"))

    survey = bus.survey()

    assert [gpu.address for gpu in survey.gpus] == ["0000:10:00.0"]
    assert survey.readable


def test_a_gpu_given_to_a_virtual_machine_names_its_driver(sysfs: FakeSysfs, bus: SysfsPciBus) -> None:
    """Passthrough is not a lost GPU; whoever judges sees the driver."""
    sysfs.add_gpu("0000:b3:00.0", driver="vfio-pci")
    sysfs.add_gpu("0000:b4:00.0", driver="")

    assert [gpu.driver for gpu in bus.survey().gpus] == ["vfio-pci", ""]


def test_garbage_in_an_attribute_is_not_a_device(sysfs: FakeSysfs, bus: SysfsPciBus) -> None:
    """An attribute that is no number, or empty, never raises."""
    folder = sysfs.folder(sysfs.add_gpu("0000:b3:00.0"))
    (folder / "class").write_bytes(b"\xff\xfe\n")
    other = sysfs.folder(sysfs.add_gpu("0000:b4:00.0"))
    (other / "current_link_width").write_text("Unknown\n")
    (other / "max_link_width").write_text("")

    (gpu,) = bus.survey().gpus

    assert (gpu.address, gpu.link_width, gpu.link_width_max) == ("0000:b4:00.0", None, None)


def test_a_bus_that_cannot_be_listed_is_unreadable_not_empty(tmp_path: Path) -> None:
    """No /sys means "could not tell", never "no GPUs"."""
    survey = SysfsPciBus(root=tmp_path / "nowhere").survey()

    assert not survey.readable
    assert "cannot be listed" in survey.message


def test_a_function_that_cannot_be_read_makes_the_survey_unreadable(
    sysfs: FakeSysfs, bus: SysfsPciBus
) -> None:
    """Half a bus must not pass for the whole."""
    folder = sysfs.folder(sysfs.add_gpu("0000:b3:00.0"))
    (folder / "vendor").unlink()
    (folder / "vendor").mkdir()

    survey = bus.survey()

    assert not survey.readable
    assert "0000:b3:00.0" in survey.message
