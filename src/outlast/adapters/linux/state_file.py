"""A small file that is replaced as a whole: after a crash it holds the old content or the new, never half.

A disk that refuses costs durability, which is said, and nothing else. Only a plain file is read: a FIFO or
a device in its place would hold the agent for ever.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import structlog

CONTENT_BYTES_MAX = 64 * 1024
"""State of an agent is a few hundred bytes; more is a mistake, or somebody else's file."""

log = structlog.get_logger(__name__)


class ReadOnlyFile:
    """A state file that belongs to somebody else, such as a running agent: read in silence, never written."""

    problem = ""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> bytes | None:
        """The content; None when there is none for us."""
        try:
            content = _content(self._path)
        except OSError:
            return None
        return content if len(content) <= CONTENT_BYTES_MAX else None

    def save(self, content: bytes) -> bool:
        """Refused."""
        return False


class AtomicFile:
    """Implements `outlast.ports.node.StateFile` on a local file system; creates the folder on first save."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._refused = ""
        self.problem = ""
        """Why the last load or save did not work; empty while it does."""

    def load(self) -> bytes | None:
        """The last saved content; None when there is none, it is unreadable or larger than the limit."""
        self.problem = ""
        try:
            content = _content(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._unreadable(error.strerror or str(error))
            return None
        if len(content) > CONTENT_BYTES_MAX:
            self._unreadable("it is too large to be ours")
            return None
        return content

    def save(self, content: bytes) -> bool:
        """Write, flush to the disk, rename. False, with one warning until it works again, when refused."""
        if len(content) > CONTENT_BYTES_MAX:
            return self._warn(f"{len(content)} bytes are more than the limit of {CONTENT_BYTES_MAX}")
        try:
            self._replace(content)
        except OSError as error:
            return self._warn(error.strerror or str(error))
        self._refused = self.problem = ""
        return True

    def _replace(self, content: bytes) -> None:
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{self._path.name}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(temporary, flags, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except OSError:
            _remove(temporary)
            raise
        _sync_folder(folder)

    def _unreadable(self, why: str) -> None:
        self.problem = why
        log.warning("saved state is unreadable; starting without it", path=str(self._path), error=why)

    def _warn(self, why: str) -> bool:
        self.problem = why
        if self._refused != why:
            self._refused = why
            log.warning(
                "state cannot be saved; after a restart some work is repeated",
                path=str(self._path),
                error=why,
            )
        return False


def _content(path: Path) -> bytes:
    """A plain file's, at most one byte more than the limit. Raises OSError, also for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise (_no_plain_file() if error.errno == errno.ELOOP else error) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _no_plain_file()
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(CONTENT_BYTES_MAX + 1)
    finally:
        os.close(fd)


def _no_plain_file() -> OSError:
    return OSError(errno.EINVAL, "it is no plain file")


def _remove(path: Path) -> None:
    """What is half written; that it cannot be removed says no more than the error before."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
