"""File systems, NVMe controllers and kernel tables of the machine, from /proc and /sys.

The mounts are those of the machine's first process, and the connections those of its network, not of our
container. A file system counts as read-only by its own state: a mount that is read-only on purpose, as
containers have by the hundred, does not.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Final

from outlast.model.observation import DiskController, Filesystem, Fill, HostSurvey
from outlast.model.plain_text import plain
from outlast.ports.node import Wanted

MOUNTS_BYTES_MAX: Final = 8 * 1024 * 1024
FILESYSTEMS_MAX: Final = 256
CONTROLLERS_MAX: Final = 128

KINDS: Final = frozenset({"ext2", "ext3", "ext4", "btrfs", "f2fs", "jfs", "reiserfs"})
"""Kinds that turn read-only when their disk fails. XFS shuts down instead and still reads as writable:
only the kernel log tells."""
COUNT_ERRORS: Final = frozenset({"ext2", "ext3", "ext4"})

_TEXT_BYTES_MAX: Final = 4096
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_UNLIMITED: Final = 2**62


class LinuxHost:
    """Implements `outlast.ports.node.Surveyor`; `root` is where /sys is, `proc` the machine's /proc."""

    def __init__(self, root: Path = Path("/"), proc: Path = Path("/proc")) -> None:
        self._sys = root / "sys"
        self._proc = proc
        """(device, kind) of file systems that were seen writable."""

    async def survey(self, wanted: Wanted) -> HostSurvey:
        """Look once: a few milliseconds; every file is answered by the kernel itself, never by a disk."""
        filesystems, message = self._filesystems()
        return HostSurvey(
            filesystems=filesystems,
            controllers=self._controllers(),
            connections=self._connections(),
            open_files=self._open_files(),
            message=message,
        )

    async def aclose(self) -> None:
        """Nothing is held."""

    def _filesystems(self) -> tuple[tuple[Filesystem, ...] | None, str]:
        path = self._proc / "1/mountinfo"
        try:
            text = _read_all(path, MOUNTS_BYTES_MAX)
        except OSError as error:
            return None, f"{path} cannot be read: {error.strerror}"
        found: dict[tuple[str, str], Filesystem] = {}
        for line in text.splitlines():
            mount = self._filesystem(line)
            if mount is not None and len(found) < FILESYSTEMS_MAX:
                found.setdefault((mount.device, mount.kind), mount)
        return tuple(found.values()), ""

    def _filesystem(self, line: str) -> Filesystem | None:
        """One line of mountinfo: ... major:minor root mount-point options [tags] - kind source options."""
        before, separator, after = line.partition(" - ")
        fields, of_filesystem = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(of_filesystem) < 3 or of_filesystem[0] not in KINDS:
            return None
        kind, source, options = of_filesystem[0], _unescaped(of_filesystem[1]), of_filesystem[2].split(",")
        device = self._block_device(fields[2], source)
        return Filesystem(
            device=device,
            mount_point=_unescaped(fields[4])[:256],
            kind=kind,
            read_only="ro" in options,
            wanted_writable="ro" not in fields[5].split(","),
            errors=self._count(self._sys / "fs/ext4" / device / "errors_count")
            if kind in COUNT_ERRORS
            else None,
        )

    def _block_device(self, numbers: str, source: str) -> str:
        """The name that the kernel log uses; a mapped device is dm-0 there, whatever mounts call it."""
        try:
            return (self._sys / "dev/block" / numbers).readlink().name
        except (OSError, ValueError):  # no path: it holds a zero byte
            return PurePosixPath(source).name[:64] or "unknown"

    def _controllers(self) -> tuple[DiskController, ...]:
        folder = self._sys / "class/nvme"
        try:
            names = sorted(os.listdir(folder))[:CONTROLLERS_MAX]  # noqa: PTH208 - fast
        except OSError:
            return ()
        found = []
        for name in names:
            state, transport = self._text(folder / name / "state"), self._text(folder / name / "transport")
            if state and transport in ("pcie", ""):  # Over a network its own driver reconnects.
                found.append(DiskController(name=name, state=state.strip()[:32]))
        return tuple(found)

    def _connections(self) -> Fill | None:
        """Of the machine's network namespace: the sysctl beside it counts those of the reader's."""
        limit = self._count(self._proc / "sys/net/netfilter/nf_conntrack_max")
        table = self._text(self._proc / "1/net/stat/nf_conntrack").splitlines()
        try:
            used = int(table[1].split()[0], 16)
        except (IndexError, ValueError):
            return None
        return None if limit is None or limit <= 0 else Fill(used=used, limit=limit)

    def _open_files(self) -> Fill | None:
        try:
            used, unused, limit = map(int, self._text(self._proc / "sys/fs/file-nr").split())
        except ValueError:
            return None
        return Fill(used=used - unused, limit=limit) if 0 < limit < _UNLIMITED else None

    def _count(self, path: Path) -> int | None:
        try:
            return int(self._text(path).strip())
        except ValueError:
            return None

    def _text(self, path: Path) -> str:
        try:
            with path.open("rb", buffering=0) as file:
                return (file.read(_TEXT_BYTES_MAX) or b"").decode("utf-8", "replace").strip()
        except OSError:
            return ""


def _read_all(path: Path, limit_bytes: int) -> str:
    with path.open("rb") as file:
        return file.read(limit_bytes).decode("utf-8", "replace")


def _unescaped(text: str) -> str:
    """mountinfo writes a space as \\040; what people read of it is printable."""
    return plain(_ESCAPE.sub(lambda found: chr(int(found.group(1), 8)), text))
