"""NVIDIA's services, stuck tasks and GPU users, from one cheap pass over /proc.

Never cmdline, environ, maps or exe: they take the process's memory lock, which a thread asleep in the
driver may hold, and would hang the agent with it. `stat`, `status`, `comm` and `cgroup` take none. `stack`
may wait for a process in the middle of exec, so a process that can be lost reads it, and only for tasks
that have not run between two samples.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from outlast.adapters.linux.cgroup import owner_of
from outlast.adapters.linux.guarded_files import GuardedFiles, ReadFailed, ReadHung
from outlast.adapters.linux.leaks import NVML_WORKER
from outlast.model.observation import ProcessOwner, ProcessSurvey, StuckTask, Witness
from outlast.model.observation.processes import COMM_MAX, HOST_ENGINE, SERVICES
from outlast.model.plain_text import plain
from outlast.ports.clock import Clock
from outlast.ports.node import Wanted

PROCESSES_MAX: Final = 65_536
TASKS_MAX: Final = 2048
"""Threads looked at in one pass; the next pass goes on with the processes that were left."""
STACKS_MAX: Final = 8
"""Kernel stacks read in one pass."""
STACK_DEADLINE_S: Final = 2.0
"""A survey takes at most this for each stack, in all `STACKS_MAX` times as long."""
DESCRIPTORS_MAX: Final = 4096
OWNERS_MAX: Final = 512
OWNER_KEPT_S: Final = 3600.0
"""What the kernel log says of a process may come after its end."""
STUCK_TASKS_MAX: Final = 32
SLEEPERS_MAX: Final = 256
"""Tasks whose sleep is timed at once."""

DRIVER_TOOLS: Final = frozenset({"nvidia-smi", HOST_ENGINE, NVML_WORKER})
"""Programs that do nothing but talk to the driver: their sleep is the driver's."""

_SERVICES: Final = {service[:COMM_MAX]: service for service in SERVICES}
_KERNEL_THREADS_PARENT: Final = ("2", "kthreadd")
_STAT_BYTES_MAX: Final = 1024
_STATUS_BYTES_MAX: Final = 8192
_CGROUP_BYTES_MAX: Final = 16 * 1024
_STATE, _THREADS, _STARTED = 0, 17, 19
"""Fields of `stat` after the name."""
_DRIVER_IN_STACK: Final = "[nvidia"
_DEVICE_PREFIX: Final = "/dev/nvidia"


class _Process(msgspec.Struct, frozen=True):
    pid: int
    name: str
    state: str
    threads: int
    started: int


class _Sleeper(msgspec.Struct):
    """A task in uninterruptible sleep; `switches` tells one sleep from the next."""

    switches: tuple[str, str]
    since_s: float
    asked: bool = False
    witness: Witness | None = None


class _Owned(msgspec.Struct):
    owner: ProcessOwner
    started: int
    seen_s: float


class ProcProcesses:
    """Implements `outlast.ports.node.Surveyor`; `proc` is the machine's /proc."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        *,
        clock: Clock,
        files: GuardedFiles | None = None,
        tasks_max: int = TASKS_MAX,
        owners_max: int = OWNERS_MAX,
    ) -> None:
        self._proc = str(proc)
        self._clock = clock
        self._tasks_max = tasks_max
        self._owners_max = owners_max
        self._files = files if files is not None else GuardedFiles(deadline_s=STACK_DEADLINE_S, proc=proc)
        self._sleepers: dict[tuple[int, int, int], _Sleeper] = {}
        self._owned: dict[int, _Owned] = {}
        self._resume_at = 0
        """The pid whose threads the next pass looks at first."""

    async def survey(self, wanted: Wanted) -> ProcessSurvey:
        """Look once. Costs some 10 us a process, and a stack's deadline for each task that is stuck."""
        now_s = self._clock.monotonic()
        try:
            names = [name for name in os.listdir(self._proc) if name.isdigit()]  # noqa: PTH208 - fast
        except OSError as error:
            message = f"{self._proc} cannot be listed: {error.strerror}"
            return ProcessSurvey(readable=False, message=message)
        message = ""
        if len(names) > PROCESSES_MAX:
            message = f"{len(names)} processes are more than the limit of {PROCESSES_MAX}"
        services: set[str] = set()
        suspects: list[_Process] = []
        seen: dict[int, int] = {}
        whole, processes = False, 0
        gpu_users = {*wanted.process_ids, *self._owned}
        for pid in names[:PROCESSES_MAX]:
            text = self._read(f"{pid}/stat", _STAT_BYTES_MAX)
            opened, closed = text.find("("), text.rfind(")")  # A name may hold any character, these too.
            name, state = text[opened + 1 : closed], text[closed + 2 : closed + 3]
            if not state:
                continue
            processes += 1
            whole = whole or (pid, name) == _KERNEL_THREADS_PARENT
            if name in _SERVICES and state not in "ZX":
                services.add(_SERVICES[name])
            if state in "DZX" or name in DRIVER_TOOLS or int(pid) in gpu_users:
                process = _parsed(text)
                if process is not None:
                    suspects.append(process)
                    seen[process.pid] = process.started
        stuck = await self._stuck(suspects, now_s)
        if whole:
            self._learn_owners(wanted, seen, now_s)
        return ProcessSurvey(
            whole_machine=whole,
            services=tuple(service for service in SERVICES if service in services),
            stuck=stuck,
            owners=tuple(owned.owner for owned in self._owned.values()),
            processes=processes,
            message=message,
        )

    async def aclose(self) -> None:
        """End the reading process, without waiting for it."""
        self._files.close()

    # --- stuck tasks

    async def _stuck(self, suspects: list[_Process], now_s: float) -> tuple[StuckTask, ...]:
        asleep: dict[tuple[int, int, int], _Process] = {}
        for process, tid in self._tasks(suspects):
            task = self._sleeping(process, tid)
            if task is None:
                continue
            key, switches = task
            known = self._sleepers.get(key)
            if known is None and len(self._sleepers) >= SLEEPERS_MAX:
                continue
            asleep[key] = process
            if known is None or known.switches != switches:
                self._sleepers[key] = _Sleeper(switches, now_s)
        for key in self._sleepers.keys() - asleep.keys():
            del self._sleepers[key]
        stacks = 0
        stuck: list[StuckTask] = []
        for key, process in asleep.items():
            sleeper = self._sleepers[key]
            if sleeper.since_s >= now_s or len(stuck) >= STUCK_TASKS_MAX:
                continue
            if not sleeper.asked and stacks < STACKS_MAX:
                stacks += 1
                sleeper.asked = True
                sleeper.witness = await self._witness(process, key[1])
            if sleeper.witness is not None:
                stuck.append(
                    StuckTask(
                        pid=process.pid,
                        tid=key[1],
                        name=plain(process.name),
                        asleep_s=now_s - sleeper.since_s,
                        witness=sleeper.witness,
                        zombie=process.state in "ZX",
                    )
                )
        if not self._sleepers:
            self._files.close()
        return tuple(stuck)

    def _tasks(self, suspects: list[_Process]) -> Iterator[tuple[_Process, int]]:
        """Threads of the suspects, as many as one pass may look at; goes round from pass to pass.

        Those known to sleep come first and in every pass: one that is left out would seem to have woken.
        """
        known = {(pid, tid) for pid, tid, _ in self._sleepers}
        suspects.sort(key=lambda process: process.pid)
        for process in suspects:
            for pid, tid in known:
                if pid == process.pid:
                    yield process, tid
        later = [process for process in suspects if process.pid >= self._resume_at]
        left = self._tasks_max
        for process in later + suspects[: len(suspects) - len(later)]:
            if left <= 0:
                self._resume_at = process.pid
                return
            for tid in self._threads(process):
                if (process.pid, tid) not in known:
                    left -= 1
                    yield process, tid
        self._resume_at = 0

    def _threads(self, process: _Process) -> list[int]:
        if process.threads <= 1:
            return [process.pid] if process.state == "D" else []
        try:
            return [int(tid) for tid in os.listdir(f"{self._proc}/{process.pid}/task")][: self._tasks_max]  # noqa: PTH208
        except (OSError, ValueError):
            return []

    def _sleeping(self, process: _Process, tid: int) -> tuple[tuple[int, int, int], tuple[str, str]] | None:
        """The identity and switch counts of a task in uninterruptible sleep; None for any other."""
        folder = f"{process.pid}/task/{tid}"
        task = self._process(folder)
        if task is None or task.state != "D":
            return None
        counts = dict(
            line.split(":", 1)
            for line in self._read(f"{folder}/status", _STATUS_BYTES_MAX).splitlines()
            if "ctxt_switches" in line and ":" in line
        )
        switches = (counts.get("voluntary_ctxt_switches", ""), counts.get("nonvoluntary_ctxt_switches", ""))
        return ((process.pid, tid, task.started), switches) if any(switches) else None

    async def _witness(self, process: _Process, tid: int) -> Witness | None:
        """Whether a task sleeps in NVIDIA's driver, and how we know."""
        try:
            found = await self._files.read(
                Path(self._proc) / f"{process.pid}/task/{tid}", ["stack"], STACK_DEADLINE_S
            )
        except (ReadHung, ReadFailed):
            stack = ""
        else:
            stack = found.texts.get("stack", "")
        if stack:
            return Witness.STACK if _DRIVER_IN_STACK in stack else None
        if process.name in DRIVER_TOOLS:
            return Witness.NAME
        return Witness.DEVICE if self._has_device_open(process.pid) else None

    def _has_device_open(self, pid: int) -> bool:
        folder = f"{self._proc}/{pid}/fd"
        try:
            descriptors = os.listdir(folder)  # noqa: PTH208 - fast
        except OSError:
            return False
        for descriptor in descriptors[:DESCRIPTORS_MAX]:
            try:
                if os.readlink(f"{folder}/{descriptor}").startswith(_DEVICE_PREFIX):  # noqa: PTH115
                    return True
            except OSError:
                continue
        return False

    # --- owners

    def _learn_owners(self, wanted: Wanted, seen: dict[int, int], now_s: float) -> None:
        for pid in wanted.process_ids:
            known = self._owned.get(pid)
            started = seen.get(pid)
            if started is None:
                continue
            if known is None or known.started != started:
                owner = owner_of(pid, self._read(f"{pid}/cgroup", _CGROUP_BYTES_MAX))
                known = self._owned[pid] = _Owned(owner, started, now_s)
            known.seen_s = now_s
        for pid, owned in list(self._owned.items()):
            ended = seen.get(pid) != owned.started
            if ended != owned.owner.ended:
                owned.owner = msgspec.structs.replace(owned.owner, ended=ended)
            if now_s - owned.seen_s > OWNER_KEPT_S:
                del self._owned[pid]
        for pid, _ in sorted(self._owned.items(), key=lambda item: -item[1].seen_s)[self._owners_max :]:
            del self._owned[pid]

    # --- files

    def _process(self, path: str) -> _Process | None:
        return _parsed(self._read(f"{path}/stat", _STAT_BYTES_MAX))

    def _read(self, path: str, limit_bytes: int) -> str:
        """Empty for a file that is gone or may not be read: its process ended while we looked."""
        try:
            fd = os.open(f"{self._proc}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            return os.read(fd, limit_bytes).decode("utf-8", "replace")
        except OSError:
            return ""
        finally:
            os.close(fd)


def _parsed(text: str) -> _Process | None:
    """A `stat` file; None for one that is empty or garbage."""
    opened, closed = text.find("("), text.rfind(")")
    fields = text[closed + 1 :].split(None, _STARTED + 1)
    if opened < 0 or closed < opened or len(fields) <= _STARTED:
        return None
    try:
        return _Process(
            int(text[:opened]),
            text[opened + 1 : closed],
            fields[_STATE],
            int(fields[_THREADS]),
            int(fields[_STARTED]),
        )
    except ValueError:
        return None
