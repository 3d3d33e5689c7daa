"""True uninterruptible sleep without a GPU: a process that creates a file on a frozen file system.

Needs root, mkfs.ext4 and loop devices. The mount thaws in `finally`, and also by a watchdog process of
its own, so that a test run that dies leaves nothing asleep.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WATCHDOG_S = 110
"""Below the time limit of a test, above what the slowest one needs on a busy machine."""
CAP_SYS_ADMIN = 21
_TOOLS = ("mkfs.ext4", "mount", "umount", "fsfreeze")


def why_not() -> str:
    """Why this machine can't freeze a file system; empty when it can."""
    if os.geteuid() != 0 or not _may_administer():
        return "needs root with CAP_SYS_ADMIN to freeze a file system"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices"
    return ""


def _may_administer() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) & 1 << CAP_SYS_ADMIN)


class FrozenMount:
    """A mounted file system that is frozen until `thaw`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder

    @property
    def trap(self) -> Path:
        """Creating this file sleeps until the thaw."""
        return self.path / "trap"

    def thaw(self) -> None:
        """Let everything that sleeps go on."""
        _run(["fsfreeze", "--unfreeze", self.path], check=False)


@contextmanager
def frozen_mount(folder: Path) -> Iterator[FrozenMount]:
    """A small ext4 in a file, mounted under `folder` and frozen.

    One at a time on a machine: processes that sleep in one would be counted by the tests of another.
    """
    with (Path(tempfile.gettempdir()) / "outlast-frozen.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _frozen(folder) as mount:
            yield mount


@contextmanager
def _frozen(folder: Path) -> Iterator[FrozenMount]:
    image, mount = folder / "image", folder / "frozen"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(8 * 1024 * 1024)
    _run(["mkfs.ext4", "-q", "-O", "^has_journal", image])
    _run(["mount", "-o", "loop", image, mount])
    watchdog = subprocess.Popen(
        ["sh", "-c", f'sleep {WATCHDOG_S}; fsfreeze --unfreeze "$0"', mount],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    frozen = FrozenMount(mount)
    try:
        _run(["fsfreeze", "--freeze", mount])
        yield frozen
    finally:
        frozen.thaw()
        os.killpg(watchdog.pid, 9)
        watchdog.wait()
        _run(["umount", "--lazy", mount], check=False)


def _run(command: list[str | Path], *, check: bool = True) -> None:
    subprocess.run(command, check=check, capture_output=True, timeout=30)
