"""The machine around the GPUs: file systems, disks, and kernel tables that can run full."""

from __future__ import annotations

from typing import ClassVar

from outlast.model.observation.base import Reading, Survey


class Filesystem(Reading, frozen=True, kw_only=True):
    """A local file system that the kernel may make read-only when its disk fails."""

    device: str
    """Name of the block device as the kernel log words it: nvme0n1p1, dm-0."""
    mount_point: str
    kind: str
    read_only: bool = False
    """The file system itself, not one of its mounts."""
    wanted_writable: bool = False
    """Its mount is one for writing, whatever became of the file system."""
    errors: int | None = None
    """Errors that the file system has counted; None for kinds that count none."""


class DiskController(Reading, frozen=True, kw_only=True):
    """A local NVMe controller."""

    name: str
    state: str
    """live, resetting, connecting, deleting, dead, as the driver words it."""


class Fill(Reading, frozen=True, kw_only=True):
    """How full a table of the kernel is."""

    used: int
    limit: int

    @property
    def share(self) -> float:
        """0 to 1."""
        return self.used / self.limit if self.limit > 0 else 0.0


class HostSurvey(Survey, frozen=True, kw_only=True):
    """One look at the machine. None: cannot be read here."""

    source: ClassVar[str] = "host"

    filesystems: tuple[Filesystem, ...] | None = None
    controllers: tuple[DiskController, ...] = ()
    connections: Fill | None = None
    """Tracked connections of the machine's own network namespace."""
    open_files: Fill | None = None
    message: str = ""
