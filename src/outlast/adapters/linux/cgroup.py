"""Whose process it is, from the text of /proc/PID/cgroup.

The name of a pod's cgroup holds its uid, in the spelling of the kubelet's cgroup driver (cgroupfs keeps
dashes, systemd makes them underscores), and below it the container's id with the runtime's name around it.
"""

from __future__ import annotations

import re
from typing import Final

from outlast.model.observation import ProcessOwner

_UUID: Final = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
# A static pod's uid is the hash of its manifest: 32 digits without dashes.
_POD: Final = re.compile(rf"pod({_UUID}|[0-9a-f]{{32}})(?![0-9a-f])")
_CONTAINER: Final = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_SLURM: Final = re.compile(r"/slurm[^/\n]*(?:/[^/\n]+){0,2}/job_([0-9]{1,12})(?:/|$)", re.MULTILINE)


def owner_of(pid: int, text: str) -> ProcessOwner:
    """Pod, container and batch job that a cgroup file names; all empty for a process of the machine's own."""
    pod = container = ""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        found = _POD.search(path)
        after = path[found.end() :] if found else path
        inner = _CONTAINER.findall(after)
        if found and not pod:
            pod = found.group(1).replace("_", "-")
            container = inner[-1] if inner else container
        elif inner and not container:
            container = inner[-1]
        if pod and container:
            break
    job = _SLURM.search(text)
    return ProcessOwner(
        pid=pid, pod_uid=pod, container_id=container, job=f"slurm/{job.group(1)}" if job else ""
    )
