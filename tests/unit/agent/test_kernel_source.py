"""`--kernel-log`: names and paths to the way that reads them; what is not used is not loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.adapters.linux.journal import JournalKernelLog
from outlast.adapters.linux.kernel_log import DevKmsg
from outlast.adapters.linux.kernel_log_chain import KernelLogChain
from outlast.adapters.linux.log_file import LogFile
from outlast.adapters.linux.syslog_ring import SyslogRing
from outlast.agent.kernel_source import kernel_source
from outlast.ports.node import KernelLog
from tests.contract.node.logs import RealTime


def chosen(choice: str, folder: Path) -> KernelLog:
    return kernel_source(choice, state_dir=folder, host_root=Path("/"), boot_id="b", clock=RealTime())


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        ("auto", KernelLogChain),
        ("syslog", SyslogRing),
        ("journal", JournalKernelLog),
        ("/dev/kmsg", DevKmsg),
        ("/absent/kern.log", DevKmsg),
    ],
)
def test_a_name_is_a_way(choice: str, kind: type[KernelLog], tmp_path: Path) -> None:
    """auto is the chain; whatever else is no name is a path."""
    assert isinstance(chosen(choice, tmp_path), kind)


def test_the_first_line_of_a_file_tells_its_format(tmp_path: Path) -> None:
    """A file or FIFO in the device's format is read as the device, any other text as a log file."""
    (tmp_path / "kmsg").write_text("4,1,10,-;text\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "kern.log").write_text("Nov 30 12:00:00 h kernel: text\n")
    os.mkfifo(tmp_path / "fifo")

    kinds = {
        name: type(chosen(str(tmp_path / name), tmp_path)) for name in ("kmsg", "empty", "kern.log", "fifo")
    }

    assert kinds == {"kmsg": DevKmsg, "empty": DevKmsg, "kern.log": LogFile, "fifo": DevKmsg}


def test_fallbacks_cost_nothing_until_they_are_needed(tmp_path: Path) -> None:
    """Neither their modules nor ctypes are loaded by choosing auto."""
    program = (
        "import sys; from pathlib import Path; from outlast.agent.kernel_source import kernel_source\n"
        "from outlast.adapters.clock import SystemClock\n"
        f"kernel_source('auto', state_dir=Path({str(tmp_path)!r}), host_root=Path('/'), boot_id='b', "
        "clock=SystemClock())\n"
        "late = ('ctypes', 'syslog_ring', 'linux.journal', 'log_file')\n"
        "print([name for name in sys.modules if name.endswith(late)])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "[]"
