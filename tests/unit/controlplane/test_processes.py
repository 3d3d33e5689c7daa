"""Ports, processes and the reaper of the test control plane."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane.processes import PORT_RANGE, PlaneFailed, Ports, Program, Reaper, wait_until

SLEEPER = [sys.executable, "-S", "-c", "print('hello', flush=True); import time; time.sleep(300)"]

ORPHAN_MAKER = """
import sys
from pathlib import Path
from tests.controlplane.processes import Program, Reaper
program = Program("sleeper", {argv!r}, Path({log!r}), Reaper(Path({folder!r})))
program.start()
print(program.pid, flush=True)
sys.stdin.read()
"""


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_two_planes_never_share_a_port() -> None:
    """Test workers start planes at the same time; a port is taken by one of them only."""
    first, second = Ports(), Ports()
    taken = [ports.take() for ports in (first, second) for _ in range(5)]
    first.release()
    second.release()
    assert len(set(taken)) == 10
    assert all(port in PORT_RANGE for port in taken)


def test_a_port_in_use_is_not_taken() -> None:
    """Somebody else's server is left alone."""
    ports = Ports()
    port = ports.take()
    ports.release()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert ports.take() != port
    ports.release()


def test_a_killed_test_run_leaves_nobody_behind(tmp_path: Path) -> None:
    """kill -9 of the tests ends their control plane too, and removes its data."""
    folder = tmp_path / "data"
    folder.mkdir()
    code = ORPHAN_MAKER.format(argv=SLEEPER, log=str(tmp_path / "log"), folder=str(folder))
    root = Path(__file__).parents[3]
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(10)
    parent.stdin.close()
    parent.stdout.close()
    wait_until(lambda: not alive(pid) and not folder.exists(), deadline_s=10, what="the reaper")


def test_a_program_that_dies_says_so_with_its_log(tmp_path: Path) -> None:
    """A failed start is explained by the program's own last words."""
    reaper = Reaper()
    argv = [sys.executable, "-c", "import sys; print('port is taken'); sys.exit(3)"]
    program = Program("failing", argv, tmp_path / "failing.log", reaper)
    program.start()
    with pytest.raises(PlaneFailed, match=r"(?s)failing ended with exit code 3.*port is taken"):
        program.wait_ready(lambda: False, deadline_s=10)
    reaper.close()


def test_a_killed_program_starts_again(tmp_path: Path) -> None:
    """Crash tests kill the API server and bring it back."""
    reaper = Reaper()
    program = Program("sleeper", SLEEPER, tmp_path / "log", reaper)
    program.start()
    first = program.pid
    program.kill()
    assert not program.running
    program.start()
    assert program.running
    assert program.pid != first
    program.stop()
    reaper.close()
