"""Did a local file system stop taking writes?

The kernel changes the file system and leaves its mount as it was; who mounts it read-only on purpose changes
both. Kinds that count errors must have some, and may still have one of years ago. A pod's volume is only told
of: it belongs to the pod, whose owner may have written the errors into it.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.finding import HOST_SPACING_S, Assessment, Level, Note, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import Filesystem, HostSurvey

NAME: Final = "host_filesystems"
POLLS: Final = 2
RANK: Final = 7
_OF_VOLUMES: Final = "/kubernetes.io"


def run(view: View) -> Assessment | None:
    """A finding for each file system that its errors made read-only."""
    survey = view.newest(HostSurvey)
    if survey is None or survey.filesystems is None:
        return None
    failed = [one for one in survey.filesystems if _failed(one)]
    return Assessment(
        check=NAME,
        bad=tuple(_level(one) for one in failed if not _is_volume(one)),
        notes=tuple(
            Note(subsystem=Subsystem.HOST, text=f"the volume of a pod on {one.device} is read-only by errors")
            for one in failed
            if _is_volume(one)
        ),
    )


CHECK: Final = LevelCheck(NAME, "local file systems", frozenset({HostSurvey}), run)


def _failed(filesystem: Filesystem) -> bool:
    return filesystem.read_only and filesystem.wanted_writable and filesystem.errors != 0


def _is_volume(filesystem: Filesystem) -> bool:
    """Kubelet mounts a pod's volumes below such a folder, wherever its own is."""
    return _OF_VOLUMES in filesystem.mount_point


def _level(filesystem: Filesystem) -> Level:
    text = (
        f"{filesystem.kind} on {filesystem.device} at {filesystem.mount_point} is read-only because of errors"
    )
    return Level(
        code="host/filesystem-read-only",
        reason=Reason.FILESYSTEM_READ_ONLY,
        fault_class=FaultClass.TRANSIENT,
        subsystem=Subsystem.HOST,
        scope=Scope.NODE,
        rank=RANK,
        proof=Proof.LEVEL_GOOD,
        polls=POLLS,
        spacing_s=HOST_SPACING_S,
        device=f"disk {filesystem.device}",
        source=HostSurvey.source,
        text=text,
        summary=f"{text}.",
    )
