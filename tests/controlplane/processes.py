"""Programs of one control plane: free ports, start, kill, stop, and nobody left behind.

Ports are held by file locks shared between test workers, below the kernel's range for outgoing
connections. A small reaper process ends the programs if the test process itself is killed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

PORT_RANGE = range(21000, 29000)
STOP_DEADLINE_S = 10.0
POLL_S = 0.02
LOG_TAIL_LINES = 30


class PlaneFailed(Exception):
    """A program did not do what was asked in time; the text ends with the tail of its log."""


def wait_until(condition: Callable[[], bool], *, deadline_s: float, what: str) -> None:
    """Return when the condition holds; raise PlaneFailed after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise PlaneFailed(f"waited {deadline_s:.0f} s for {what}")
        time.sleep(POLL_S)


class Ports:
    """Loopback ports that no other control plane on this machine takes while this object lives."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"outlast-test-ports-{os.getuid()}"
        self._folder.mkdir(exist_ok=True)
        self._held: list[IO[str]] = []

    def take(self) -> int:
        """A free port, ours until `release`."""
        start = os.getpid() % len(PORT_RANGE)
        for step in range(len(PORT_RANGE)):
            port = PORT_RANGE[(start + step) % len(PORT_RANGE)]
            lock = (self._folder / str(port)).open("w")
            if _locked(lock) and _free(port):
                self._held.append(lock)
                return port
            lock.close()
        raise PlaneFailed(f"no free port in {PORT_RANGE.start}-{PORT_RANGE.stop}")

    def release(self) -> None:
        """Give all ports back."""
        while self._held:
            self._held.pop().close()


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Program:
    """One program with a log file; may be started again after it was stopped or killed."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, reaper: Reaper) -> None:
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._reaper = reaper
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the running program."""
        if self._process is None:
            raise PlaneFailed(f"{self.name} is not running")
        return self._process.pid

    def start(self) -> None:
        """Start it; says nothing about readiness."""
        if self.running:
            raise PlaneFailed(f"{self.name} runs already (pid {self.pid})")
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal reaches the tests, and they stop this in order.
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._reaper.watch(self._process.pid)

    def wait_ready(self, ready: Callable[[], bool], *, deadline_s: float) -> None:
        """Return when `ready` holds; raise PlaneFailed with the log's tail when it died or is late."""

        def ready_or_dead() -> bool:
            return not self.running or ready()

        try:
            wait_until(ready_or_dead, deadline_s=deadline_s, what=f"{self.name} to be ready")
        except PlaneFailed as error:
            raise PlaneFailed(f"{error}\n{self.log_tail()}") from error
        if not self.running:
            code = self._process.returncode if self._process else None
            raise PlaneFailed(f"{self.name} ended with exit code {code}\n{self.log_tail()}")

    def stop(self) -> None:
        """End it: SIGTERM, then SIGKILL after a deadline. Harmless when it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would: SIGKILL."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_DEADLINE_S)
        self._reaper.forget(process.pid)
        self._process = None

    def log_tail(self) -> str:
        """The last lines of its log, with the file's path."""
        if not self.log.exists():
            return f"({self.log}: no log)"
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"--- last lines of {self.log}", *lines])


_REAPER = """
import os, shutil, signal, sys
alive = {}
def born(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[19]
    except OSError:
        return None
for line in sys.stdin:
    sign, pid = line[0], int(line[1:])
    alive[pid] = born(pid) if sign == "+" else None
for pid, since in alive.items():
    if since is not None and born(pid) == since:
        os.kill(pid, signal.SIGKILL)
if len(sys.argv) > 1:
    shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


class Reaper:
    """Ends the watched processes, and removes `folder`, when this process is gone, however it went."""

    def __init__(self, folder: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _REAPER, *([str(folder)] if folder else [])],
            stdin=subprocess.PIPE,
            text=True,
            bufsize=1,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, pid: int) -> None:
        """Take care of a process."""
        self._tell(f"+{pid}")

    def forget(self, pid: int) -> None:
        """It ended in order."""
        self._tell(f"-{pid}")

    def close(self) -> None:
        """End the reaper; it ends whatever is still watched first."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(STOP_DEADLINE_S)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
