"""Boot identity, and the small file that survives the process."""

import resource
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from outlast.adapters.linux.machine import LinuxMachine
from outlast.adapters.linux.state_file import CONTENT_BYTES_MAX, AtomicFile
from tests.sysfs import FakeSysfs

BOOT = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"


def test_facts_come_from_proc_and_the_firmware(tmp_path: Path) -> None:
    """Boot id and kernel from /proc, the instance type from EC2's firmware tables."""
    tree = FakeSysfs(tmp_path)
    tree.set_proc("sys/kernel/random/boot_id", f"{BOOT}\n")
    tree.set_proc("sys/kernel/osrelease", "6.8.0-1021-aws\n")
    tree.set_proc("../sys/devices/virtual/dmi/id/sys_vendor", "Amazon EC2\n")
    tree.set_proc("../sys/devices/virtual/dmi/id/product_name", "p5.48xlarge\n")

    facts = LinuxMachine(root=tmp_path).facts()

    assert (facts.boot_id, facts.kernel_release, facts.instance_type) == (
        BOOT,
        "6.8.0-1021-aws",
        "p5.48xlarge",
    )


def test_a_product_name_outside_ec2_is_no_instance_type(tmp_path: Path) -> None:
    """A server's model name must not be looked up as an instance type."""
    tree = FakeSysfs(tmp_path)
    tree.set_proc("../sys/devices/virtual/dmi/id/sys_vendor", "Supermicro\n")
    tree.set_proc("../sys/devices/virtual/dmi/id/product_name", "SYS-821GE\n")

    assert LinuxMachine(root=tmp_path).facts().instance_type == ""


@pytest.mark.parametrize("content", ["", "not a boot id\n", "x" * 100_000])
def test_a_boot_id_that_is_none_is_empty(tmp_path: Path, content: str) -> None:
    """An unreadable boot id proves no reboot."""
    FakeSysfs(tmp_path).set_proc("sys/kernel/random/boot_id", content)

    assert LinuxMachine(root=tmp_path).facts().boot_id == ""


def test_this_machine_has_a_boot_id() -> None:
    """The default root is the real one."""
    assert len(LinuxMachine().facts().boot_id) == 36


def test_saved_content_is_loaded_by_the_next_process(tmp_path: Path) -> None:
    """A save replaces all of the content and leaves no other file behind."""
    path = tmp_path / "deep" / "er" / "position"
    assert AtomicFile(path).load() is None

    assert AtomicFile(path).save(b"a much longer first content")
    assert AtomicFile(path).save(b"second")

    assert AtomicFile(path).load() == b"second"
    assert list(path.parent.iterdir()) == [path]


def test_a_disk_that_refuses_is_said_once_until_it_works_again(tmp_path: Path) -> None:
    """False each time, one warning per period of trouble."""
    blocker = tmp_path / "folder"
    blocker.write_text("a file where the folder should be")
    file = AtomicFile(blocker / "position")

    with capture_logs() as logs:
        assert [file.save(b"x"), file.save(b"x")] == [False, False]
        blocker.unlink()
        assert file.save(b"x")
        assert not file.save(b"x" * (CONTENT_BYTES_MAX + 1))

    assert len(logs) == 2
    assert file.load() == b"x"


def test_a_full_disk_keeps_the_old_content(tmp_path: Path) -> None:
    """Nothing is replaced before all of the new content is on the disk."""
    file = AtomicFile(tmp_path / "position")
    assert file.save(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        saved = file.save(b"x" * 8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert not saved
    assert file.load() == b"old"
    assert list(tmp_path.iterdir()) == [tmp_path / "position"]


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    """A symlink at the temporary name must not make us write elsewhere."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".position.new").symlink_to(victim)

    assert not AtomicFile(tmp_path / "position").save(b"x")
    assert victim.read_text() == "precious"


def test_content_larger_than_the_limit_is_not_ours(tmp_path: Path) -> None:
    """A huge file at our path is not read into memory."""
    (tmp_path / "position").write_bytes(b"x" * (CONTENT_BYTES_MAX + 1))

    assert AtomicFile(tmp_path / "position").load() is None
