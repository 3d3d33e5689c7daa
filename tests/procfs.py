"""Builds /proc trees: processes with threads, as far as the agent reads them.

proc = FakeProc(tmp_path)
proc.add(4711, "python", threads={4711: "S", 4712: "D"}, stack="[<0>] nvidia_ioctl+0x1/0x2 [nvidia]")
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path


class FakeProc:
    """A tree at `root` that tests fill and change while it is read; it has the kernel's own threads."""

    def __init__(self, root: Path, *, whole_machine: bool = True) -> None:
        self.root = root
        self.root.mkdir(exist_ok=True)
        self.add(1, "systemd")
        if whole_machine:
            self.add(2, "kthreadd")

    def add(
        self,
        pid: int,
        name: str,
        *,
        state: str = "S",
        threads: Mapping[int, str] | None = None,
        switches: int = 10,
        started: int = 100,
        cgroup: str = "0::/init.scope",
        stack: str | None = "",
        devices: tuple[str, ...] = (),
    ) -> None:
        """A process; `threads` gives the state of each, `stack` None is a kernel that shows none."""
        tasks = dict(threads) if threads else {pid: state}
        folder = self.root / str(pid)
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "fd").mkdir(parents=True)
        self._stat(folder, pid, name, state, len(tasks), started)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cgroup").write_text(f"{cgroup}\n")
        for number, device in enumerate(devices):
            (folder / "fd" / str(number)).symlink_to(device)
        for tid, its_state in tasks.items():
            task = folder / "task" / str(tid)
            task.mkdir(parents=True)
            self._stat(task, tid, name, its_state, len(tasks), started)
            if stack is not None:
                (task / "stack").write_text(f"{stack}\n" if stack else "")
            (task / "status").write_text(
                f"Name:\t{name}\nState:\t{its_state}\n"
                f"voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t1\n"
            )

    def end(self, pid: int) -> None:
        """The process is gone and reaped."""
        shutil.rmtree(self.root / str(pid))

    def set(self, path: str, text: str) -> None:
        """Any other file of /proc."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def _stat(self, folder: Path, pid: int, name: str, state: str, threads: int, started: int) -> None:
        before = " ".join(["0"] * 16)
        (folder / "stat").write_text(f"{pid} ({name[:15]}) {state} {before} {threads} 0 {started} 0 0\n")
