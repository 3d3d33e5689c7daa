"""Reading by a process that can be lost: what it does when files hang, and when it is itself the trouble."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from outlast.adapters.linux import file_worker, worker_process
from outlast.adapters.linux.guarded_files import GuardedFiles, ReadFailed, ReadHung
from outlast.adapters.linux.leaks import NVML_WORKER
from outlast.adapters.linux.pipes import two_pipes
from outlast.adapters.nvml import worker as nvml_worker
from tests.procfs import FakeProc

in_a_loop = pytest.mark.asyncio


def _comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def test_both_workers_speak_the_frames_that_are_read() -> None:
    """They run by path and import nothing of ours, so each says for itself what this process expects."""
    for worker in (file_worker, nvml_worker):
        assert (worker.MAGIC, worker.HEADER.format) == (worker_process.MAGIC, worker_process.HEADER.format)
    assert nvml_worker.PROCESS_NAME == NVML_WORKER


def test_no_descriptor_is_left_when_the_pipes_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without free descriptors must not lose two more with each poll."""
    opened = []
    real = os.pipe2

    def second_fails(flags: int) -> tuple[int, int]:
        if opened:
            raise OSError(errno.EMFILE, "Too many open files")
        opened.extend(real(flags))
        return opened[0], opened[1]

    monkeypatch.setattr(os, "pipe2", second_fails)
    with pytest.raises(OSError, match="Too many open files"):
        two_pipes()

    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@in_a_loop
async def test_files_are_read_by_one_process_that_is_kept(tmp_path: Path) -> None:
    """Text, and the reason of what could not be read; a long file is cut."""
    (tmp_path / "state").write_text("4: ACTIVE\n")
    (tmp_path / "long").write_text("x" * 10_000)
    files = GuardedFiles(proc=tmp_path / "no-proc")
    try:
        found = await files.read(tmp_path, ["state", "long", "missing"])
        first = files._worker
        await files.read(tmp_path, ["state"])
        assert files._worker is first
        comm = _comm(first.pid) if first else ""
    finally:
        files.close()
    assert found.texts["state"] == "4: ACTIVE"
    assert len(found.texts["long"]) == file_worker.TEXT_BYTES_MAX
    assert found.errors == {"missing": 2}
    assert comm.strip() == file_worker.PROCESS_NAME


@in_a_loop
async def test_a_file_that_never_answers_costs_its_deadline(tmp_path: Path) -> None:
    """The process is killed, and the next read has another."""
    os.mkfifo(tmp_path / "counter")
    (tmp_path / "state").write_text("1\n")
    files = GuardedFiles(deadline_s=0.3, proc=tmp_path / "no-proc")
    try:
        with pytest.raises(ReadHung, match=r"did not answer in 0\.3 s"):
            await files.read(tmp_path, ["counter"])
        assert (await files.read(tmp_path, ["state"])).texts == {"state": "1"}
    finally:
        files.close()


@in_a_loop
async def test_readers_that_cannot_die_are_not_joined_by_more(tmp_path: Path) -> None:
    """Those of an earlier agent count too: at the cap nothing is started."""
    proc = FakeProc(tmp_path / "proc")
    for pid in (70, 71):
        proc.add(pid, file_worker.PROCESS_NAME, state="D", threads={pid: "D"})
        status = tmp_path / f"proc/{pid}/task/{pid}/status"
        status.write_text(
            status.read_text().replace("State:\tD", "State:\tD (disk sleep)") + "SigPnd:\t100\n"
        )
    files = GuardedFiles(proc=tmp_path / "proc")
    with pytest.raises(ReadHung, match="2 earlier readers are stuck"):
        await files.read(tmp_path, ["state"])


@in_a_loop
async def test_a_reader_that_breaks_is_a_failure_and_no_hang(tmp_path: Path) -> None:
    """It crashed, or cannot even be started."""
    crashing = GuardedFiles(command=(sys.executable, "-c", "raise SystemExit(3)"), proc=tmp_path)
    missing = GuardedFiles(command=(str(tmp_path / "no-such-program"),), proc=tmp_path)
    for files in (crashing, missing):
        with pytest.raises(ReadFailed):
            await files.read(tmp_path, ["state"])
        files.close()


@in_a_loop
async def test_a_request_too_long_for_the_pipe_is_refused(tmp_path: Path) -> None:
    """Writing it could make the agent wait."""
    files = GuardedFiles(proc=tmp_path)
    with pytest.raises(ReadFailed, match="more than one request"):
        await files.read(tmp_path, ["x" * 100] * 1000)
