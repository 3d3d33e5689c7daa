"""`outlast act reboot` happens once, or says why not; the command and files are the test's own."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from outlast.cli import UserError
from outlast.cli.act import reboot


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Files of a machine, and a command that leaves a mark."""
    (tmp_path / "boot_id").write_text("boot-1\n")
    (tmp_path / "sysrq").write_text("")
    script = tmp_path / "reboot.sh"
    script.write_text(f"#!/bin/sh\necho once >> {tmp_path}/reboots\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def act(machine: Path, boot_id: str, command: str = "", force_after: float = 0) -> int:
    return reboot(
        intent="3-Reboot",
        if_boot_id=boot_id,
        command=command or str(machine / "reboot.sh"),
        force_after=force_after,
        boot_id_file=machine / "boot_id",
        sysrq_file=machine / "sysrq",
        termination_log=machine / "message",
    )


def test_the_boot_that_was_meant_is_ended(machine: Path) -> None:
    """The command runs once and the result is in the termination message."""
    assert act(machine, "boot-1") == 0
    assert (machine / "reboots").read_text() == "once\n"
    assert "asked to reboot" in (machine / "message").read_text()


def test_another_boot_is_left_alone(machine: Path) -> None:
    """A pod that starts again after the reboot does nothing and ends well."""
    assert act(machine, "boot-0") == 0
    assert not (machine / "reboots").exists()
    assert "nothing done" in (machine / "message").read_text()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("false", "ended with code 1"),
        ("no-such-program-here", "not installed"),
        ("sh -c 'echo no bus >&2; exit 4'", "no bus"),
    ],
)
def test_a_refused_reboot_says_why(machine: Path, command: str, words: str) -> None:
    """The controller reads the reason from the termination message and climbs on."""
    assert act(machine, "boot-1", command) == 1
    assert words in (machine / "message").read_text()


def test_a_shutdown_that_hangs_is_forced(machine: Path) -> None:
    """A wedged driver can hold a shutdown for ever; after the given time SysRq ends it."""
    assert act(machine, "boot-1", "true", force_after=0.01) == 0
    assert (machine / "sysrq").read_text() == "b"


def test_without_a_boot_id_nothing_is_done(machine: Path) -> None:
    """A guard that cannot be read is no guard."""
    (machine / "boot_id").unlink()
    with pytest.raises(UserError, match="nothing done"):
        act(machine, "boot-1")
    assert not (machine / "reboots").exists()
