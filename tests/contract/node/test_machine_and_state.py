"""What every `Machine` and `StateFile` must do; runs on files and on the simulated ones."""

from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.adapters.linux.machine import LinuxMachine
from outlast.adapters.linux.state_file import AtomicFile
from outlast.ports.node import Machine, StateFile
from outlast.sim.node import FakeMachine, MemoryStateFile
from tests.sysfs import FakeSysfs

BOOTS = ("1b4e28ba-2fa1-41d2-883f-0016d3cca427", "6fa459ea-ee8a-4ca4-894e-db77e160355e")


@pytest.fixture(params=["proc", "simulated"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Machine, Callable[[], object]]:
    """A machine, and how to reboot it."""
    if request.param == "simulated":
        fake = FakeMachine("gpu-0001")
        return fake, fake.reboot
    tree = FakeSysfs(tmp_path)
    tree.set_proc("sys/kernel/random/boot_id", BOOTS[0] + "\n")
    tree.set_proc("sys/kernel/osrelease", "6.8.0\n")
    return LinuxMachine(root=tmp_path), lambda: tree.set_proc("sys/kernel/random/boot_id", BOOTS[1] + "\n")


def test_facts_stay_within_a_boot_and_the_boot_id_changes_with_it(
    machine: tuple[Machine, Callable[[], object]],
) -> None:
    """The boot id is the proof of a reboot."""
    under_test, reboot = machine
    first = under_test.facts()
    assert under_test.facts() == first

    reboot()

    assert len(first.boot_id) == 36
    assert under_test.facts().boot_id != first.boot_id
    assert under_test.facts().kernel_release == first.kernel_release


@pytest.fixture(params=["file", "memory", "file that cannot be written", "full memory"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[StateFile, bool]:
    """A state file, and whether it accepts."""
    if request.param == "file":
        return AtomicFile(tmp_path / "state" / "position"), True
    if request.param == "memory":
        return MemoryStateFile(), True
    if request.param == "full memory":
        full = MemoryStateFile()
        full.full = True
        return full, False
    (tmp_path / "state").write_text("in the way")
    return AtomicFile(tmp_path / "state" / "position"), False


def test_what_was_saved_is_loaded_and_a_refusal_is_no_error(state: tuple[StateFile, bool]) -> None:
    """Save answers whether it was kept; load never raises."""
    under_test, accepts = state
    assert under_test.load() is None

    assert under_test.save(b"one") is accepts
    assert under_test.save(b"two") is accepts

    assert under_test.load() == (b"two" if accepts else None)
