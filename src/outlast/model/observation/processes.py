"""Processes of the machine that matter to GPUs: NVIDIA's services, tasks stuck in its driver, GPU users.

Read from /proc alone, and only from files that no stuck process can make us wait for.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final

from outlast.model.observation.base import Reading, Survey

FABRIC_MANAGER: Final = "nv-fabricmanager"
PERSISTENCE_DAEMON: Final = "nvidia-persistenced"
IMEX: Final = "nvidia-imex"
HOST_ENGINE: Final = "nv-hostengine"
SUBNET_MANAGER: Final = "nvlsm"
SERVICES: Final = (FABRIC_MANAGER, PERSISTENCE_DAEMON, IMEX, HOST_ENGINE, SUBNET_MANAGER)

COMM_MAX: Final = 15
"""The kernel keeps this many bytes of a program's name, so `nv-fabricmanager` reads `nv-fabricmanage`."""


class Witness(StrEnum):
    """Why a sleeping task is held to be in NVIDIA's driver."""

    STACK = "stack"
    """Its kernel stack has a function of the driver."""
    NAME = "name"
    """The stack may not be read, and it is a program that does nothing but talk to the driver."""
    DEVICE = "device"
    """The stack may not be read, and its process has /dev/nvidia* open."""


class StuckTask(Reading, frozen=True, kw_only=True):
    """A task that has not run for a while: in uninterruptible sleep, in NVIDIA's driver."""

    pid: int
    """Of the process."""
    tid: int
    name: str
    asleep_s: float
    """At least so long without a single switch to it."""
    witness: Witness
    zombie: bool = False
    """The process was killed and cannot end because of this task: it still holds its GPUs."""


class ProcessOwner(Reading, frozen=True, kw_only=True):
    """Who runs a process that computes, or lately computed, on a GPU."""

    pid: int
    pod_uid: str = ""
    container_id: str = ""
    job: str = ""
    """A batch system's job, such as slurm/1234."""
    ended: bool = False
    """The process is gone; what the kernel log says of its pid was about it."""

    @property
    def key(self) -> str:
        """What is one job for counting errors: a pod, a batch job, a container, else the process itself."""
        return self.pod_uid or self.job or self.container_id or f"pid/{self.pid}"


class ProcessSurvey(Survey, frozen=True, kw_only=True):
    """One pass over /proc."""

    source: ClassVar[str] = "processes"

    readable: bool = True
    whole_machine: bool = False
    """We see the machine's own processes, not only those of our container (it needs hostPID)."""
    services: tuple[str, ...] = ()
    """Which of `SERVICES` run."""
    stuck: tuple[StuckTask, ...] = ()
    owners: tuple[ProcessOwner, ...] = ()
    processes: int = 0
    message: str = ""
