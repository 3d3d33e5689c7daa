"""Disks that fail for real: full, read-only, and with I/O errors. They need root and loop devices."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.nvml.frozen import why_not

SIZE_BYTES = 8 * 1024 * 1024


class Disk(NamedTuple):
    """A mounted file system, and what makes it refuse writes from now on."""

    path: Path
    fail: Callable[[], None]
    words: str
    """What the kernel then says."""
    mend: Callable[[], None] | None
    """Takes it back; None where that cannot be."""


@contextmanager
def full(folder: Path) -> Iterator[Disk]:
    """A tmpfs on which nothing is left."""
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", folder)
    filler = folder / "filler"

    def fail() -> None:
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(64 * 1024))
            except OSError as error:
                assert error.errno == errno.ENOSPC

    try:
        yield Disk(folder, fail, os.strerror(errno.ENOSPC), filler.unlink)
    finally:
        run("umount", "--lazy", folder)


@contextmanager
def read_only(folder: Path) -> Iterator[Disk]:
    """An ext4 that finds an error in itself and takes no more writes, as `errors=remount-ro` has it."""
    folder.mkdir()
    image = folder.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    run("mkfs.ext4", "-q", "-O", "^has_journal", image)
    run("mount", "-o", "loop,errors=remount-ro", image, folder)
    numbers = folder.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(numbers)}:{os.minor(numbers)}").resolve().name
    trigger = Path(f"/sys/fs/ext4/{device}/trigger_fs_error")
    try:
        yield Disk(folder, lambda: trigger.write_text("a test") and None, os.strerror(errno.EROFS), None)
    finally:
        run("umount", "--lazy", folder)


@contextmanager
def broken(folder: Path) -> Iterator[Disk]:
    """An ext4 whose device answers each write with an I/O error: its memory is sealed under it."""
    folder.mkdir()
    memory = os.memfd_create("disk", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(memory, SIZE_BYTES)
        device = f"/proc/{os.getpid()}/fd/{memory}"
        run("mkfs.ext4", "-q", "-O", "^has_journal", device)
        run("mount", "-o", "loop,errors=continue", device, folder)
        try:
            yield Disk(
                folder,
                lambda: fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE) and None,
                os.strerror(errno.EIO),
                None,
            )
        finally:
            run("umount", "--lazy", folder)
    finally:
        os.close(memory)


KINDS = {"full": full, "read-only": read_only, "I/O errors": broken}


def why_no_disks() -> str:
    """Why they cannot be made here; empty when they can."""
    return why_not() or ("" if shutil.which("mkfs.ext4") else "needs mkfs.ext4")


def run(*command: str | Path) -> None:
    """Raises CalledProcessError with what it said."""
    subprocess.run(command, check=True, capture_output=True, timeout=30)
