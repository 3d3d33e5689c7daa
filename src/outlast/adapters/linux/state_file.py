"""A small file that is replaced as a whole: after a crash it holds the old content or the new, never half.

A disk that refuses costs durability, which is said once, and nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog

CONTENT_BYTES_MAX = 64 * 1024
"""State of an agent is a few hundred bytes; more is a mistake, or somebody else's file."""

log = structlog.get_logger(__name__)


class ReadOnlyFile:
    """A state file that belongs to somebody else, such as a running agent: read in silence, never written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> bytes | None:
        """The content; None when there is none for us."""
        try:
            with self._path.open("rb") as file:
                content = file.read(CONTENT_BYTES_MAX + 1)
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
        self._refused = False

    def load(self) -> bytes | None:
        """The last saved content; None when there is none, it is unreadable or larger than the limit."""
        try:
            with self._path.open("rb") as file:
                content = file.read(CONTENT_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning(
                "saved state is unreadable; starting without it", path=str(self._path), error=str(error)
            )
            return None
        if len(content) > CONTENT_BYTES_MAX:
            log.warning("saved state is too large to be ours; starting without it", path=str(self._path))
            return None
        return content

    def save(self, content: bytes) -> bool:
        """Write, flush to the disk, rename. False, with one warning until it works again, when refused."""
        if len(content) > CONTENT_BYTES_MAX:
            return self._warn(f"{len(content)} bytes are more than the limit of {CONTENT_BYTES_MAX}")
        try:
            self._replace(content)
        except OSError as error:
            return self._warn(str(error))
        self._refused = False
        return True

    def _replace(self, content: bytes) -> None:
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{self._path.name}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(folder)

    def _warn(self, why: str) -> bool:
        if not self._refused:
            self._refused = True
            log.warning(
                "state cannot be saved; after a restart some work is repeated",
                path=str(self._path),
                error=why,
            )
        return False


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
