"""NVML behind a hard deadline: one long-lived worker process, lost and replaced as often as needed.

A GPU whose call hung or crashed a worker is asked last by the next one, after a pause that doubles, and
not at all while the process that hung on it still exists. So one sick GPU costs the others nothing, and
the number of processes that can't die is bounded however often the agent is restarted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from outlast.adapters.linux.leaks import leaked_workers
from outlast.adapters.linux.worker_process import WorkerEnded, WorkerGarbage, WorkerProcess
from outlast.model.observation import GpuDetail, GpuReading, GpuSurvey, SurveyProblem
from outlast.ports.clock import Clock

DETAIL_INTERVAL_S = 60.0
"""How often a survey also reads what changes slowly or costs much: link counters, repairs, histograms."""

POLL_DEADLINE_S = 5.0
INIT_DEADLINE_S = 10.0
RELEASE_DEADLINE_S = 2.0
"""A survey takes at most the poll deadline, and the init deadline more when it has to start a worker."""

LAYOUTS_COMPARED = 3
LEAKED_WORKERS_MAX = 2
GPUS_MAX = 64
RETRY_FIRST_S = 10.0
RETRY_MAX_S = 600.0
OVERSLEPT_S = 2.0
"""A deadline found to be missed by so much more was missed by us: this process did not run meanwhile."""
TRIES_AWAKE_MAX = 3
_EXIT_DEADLINE_S = 1.0

_NVML_PROBLEMS = {
    4: SurveyProblem.NO_PERMISSION,
    9: SurveyProblem.DRIVER_NOT_LOADED,
    12: SurveyProblem.LIBRARY_MISSING,
    18: SurveyProblem.DRIVER_MISMATCH,
}
_WHAT_TO_DO = {
    SurveyProblem.NO_PERMISSION: "the agent may not open the NVIDIA devices",
    SurveyProblem.DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded",
    SurveyProblem.LIBRARY_MISSING: "libnvidia-ml.so.1 is missing; give the container the driver's libraries",
    SurveyProblem.DRIVER_MISMATCH: "driver and library differ in version; reload the driver or reboot",
}

WORKER_COMMAND = (sys.executable, "-I", str(Path(__file__).with_name("worker.py")))


class _Answer(msgspec.Struct):
    gpu: GpuReading | None = None
    done: bool = False
    driver_version: str = ""
    library_version: str = ""
    error: int = 0
    name: str = ""


class _Suspect(msgspec.Struct):
    """A GPU ("" is the driver as a whole) that cost us a worker."""

    problem: SurveyProblem
    pid: int
    retry_at_s: float
    pause_s: float


class _Trouble(Exception):
    def __init__(self, problem: SurveyProblem, message: str, gpu: str = "", *, suspect: bool = False) -> None:
        super().__init__(message)
        self.problem = problem
        self.gpu = gpu
        self.suspect = suspect


class _Overslept(Exception):
    """A deadline passed while this process was stopped, or its machine stood still."""


class NvmlReader:
    """Implements `outlast.ports.node.GpuReader` on Linux. Call from one event loop; surveys take turns.

    `command` starts a worker, `environment` is added to our own (LD_LIBRARY_PATH finds the driver's
    library), `proc` is where processes are looked for. Deadlines are in real seconds, the pauses before
    a suspect GPU is asked again in the clock's.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        poll_deadline_s: float = POLL_DEADLINE_S,
        init_deadline_s: float = INIT_DEADLINE_S,
        leaked_workers_max: int = LEAKED_WORKERS_MAX,
        retry_first_s: float = RETRY_FIRST_S,
        detail_interval_s: float = DETAIL_INTERVAL_S,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        proc: Path = Path("/proc"),
    ) -> None:
        self._clock = clock
        self._poll_deadline_s = poll_deadline_s
        self._init_deadline_s = init_deadline_s
        self._leaked_workers_max = leaked_workers_max
        self._retry_first_s = retry_first_s
        self._detail_interval_s = detail_interval_s
        self._detailed_at_s: float | None = None
        self._details: dict[str, GpuDetail] = {}
        self._layouts: dict[str, tuple[tuple[int, ...], ...]] = {}
        self._environment = dict(environment or {})
        self._command = command
        self._proc = proc
        self._turn = asyncio.Lock()
        self._worker: WorkerProcess | None = None
        self._driver_version = ""
        self._library_version = ""
        self._request_id = 0
        self._suspects: dict[str, _Suspect] = {}
        self._leaked: tuple[int, ...] = ()

    async def survey(self, pci_addresses: tuple[str, ...], *, closely: bool = False) -> GpuSurvey:
        """Ask about these GPUs; always returns in time, with whatever was answered."""
        async with self._turn:
            start_s = asyncio.get_running_loop().time()
            readings: dict[str, GpuReading] = {}
            trouble: _Trouble | None = None
            detailed = closely or self._wants_detail()
            try:
                await self._ask_awake(pci_addresses[:GPUS_MAX], readings, detailed)
                if len(pci_addresses) > GPUS_MAX:
                    many = f"{len(pci_addresses)} GPUs are more than the limit of {GPUS_MAX}; asked the first"
                    raise _Trouble(SurveyProblem.FAILED, many)
            except _Trouble as caught:
                trouble = caught
            except asyncio.CancelledError:
                self._drop()  # Its answers would be taken for those to the next request.
                raise
            if detailed and readings:
                self._detailed_at_s = self._clock.monotonic()
            return GpuSurvey(
                gpus=tuple(
                    self._completed(readings[address]) for address in pci_addresses if address in readings
                ),
                detailed=detailed and bool(readings),
                driver_version=self._driver_version,
                library_version=self._library_version,
                complete=trouble is None,
                problem=trouble.problem if trouble else None,
                problem_gpu=trouble.gpu if trouble else "",
                message=str(trouble) if trouble else "",
                duration_s=asyncio.get_running_loop().time() - start_s,
                leaked_workers=len(self._leaked),
            )

    async def release(self) -> bool:
        """End the worker; True when no process of ours holds a GPU any more. Waits for a running survey."""
        async with self._turn:
            gone = True
            if (worker := self._worker) is not None:
                self._worker = None
                try:
                    worker.send(0, {"exit": True})
                except WorkerEnded:
                    worker.kill()
                worker.close_pipes()
                if not await worker.ended(RELEASE_DEADLINE_S):
                    worker.kill()
                    gone = await worker.ended(_EXIT_DEADLINE_S)
            self._leaked = leaked_workers(self._proc)
            return gone and not self._leaked

    def close(self) -> None:
        """Kill the worker and return at once; for the end of the process."""
        self._drop()

    def _wants_detail(self) -> bool:
        at_s = self._detailed_at_s
        return at_s is None or self._clock.monotonic() - at_s >= self._detail_interval_s

    def _completed(self, reading: GpuReading) -> GpuReading:
        """With the last known details, and whether its MIG layout is moving.

        One change between two polls is a finished step, as when instances are made for each pod.
        """
        address = reading.pci_address
        if reading.error:
            self._details.pop(address, None)
            return reading
        if reading.detail is not None:
            self._details[address] = reading.detail
        layouts = (*self._layouts.get(address, ()), reading.mig_instances or ())[-LAYOUTS_COMPARED:]
        self._layouts[address] = layouts
        moving = len(layouts) == LAYOUTS_COMPARED and all(a != b for a, b in pairwise(layouts))
        return msgspec.structs.replace(reading, detail=self._details.get(address), mig_changed=moving)

    async def _ask_awake(
        self, addresses: tuple[str, ...], readings: dict[str, GpuReading], detail: bool
    ) -> None:
        """Ask, and ask again when it was this process that stood still, which says nothing about a driver."""
        for _ in range(TRIES_AWAKE_MAX):
            try:
                return await self._ask(addresses, readings, detail)
            except _Overslept:
                readings.clear()
        raise _Trouble(SurveyProblem.FAILED, "the agent itself did not run while it asked NVML")

    async def _ask(self, addresses: tuple[str, ...], readings: dict[str, GpuReading], detail: bool) -> None:
        if self._leaked:
            self._leaked = leaked_workers(self._proc)
        if self._worker is not None and self._worker.has_ended():
            self._drop()  # Killed from outside between two surveys, which says nothing about a GPU.
        if self._worker is None:
            await self._start()
        skipped = [address for address in addresses if self._must_wait(address)]
        order = [address for address in addresses if address not in self._suspects]
        order += [address for address in addresses if address in self._suspects and address not in skipped]
        if order:
            await self._request(order, readings, detail)
        if readings and all(reading.error for reading in readings.values()):
            self._drop()  # A driver that was reloaded under an open library answers errors for ever.
        if skipped:
            suspect = self._suspects[skipped[0]]
            wait_s = max(0.0, suspect.retry_at_s - self._clock.monotonic())
            held = f"process {suspect.pid} still hangs on it" if suspect.pid in self._leaked else ""
            why = held or f"it is asked again in {wait_s:.0f} s"
            message = f"GPU {skipped[0]} was not asked: an earlier call did not end well, {why}"
            raise _Trouble(suspect.problem, message, skipped[0])

    def _must_wait(self, address: str) -> bool:
        suspect = self._suspects.get(address)
        return suspect is not None and (
            suspect.pid in self._leaked or self._clock.monotonic() < suspect.retry_at_s
        )

    async def _start(self) -> None:
        self._leaked = leaked_workers(self._proc)
        if len(self._leaked) >= self._leaked_workers_max:
            pids = ", ".join(str(pid) for pid in self._leaked)
            message = f"{len(self._leaked)} killed NVML workers can't end (pids {pids}); a reboot ends them"
            raise _Trouble(SurveyProblem.TOO_MANY_LEAKED_WORKERS, message)
        if self._must_wait("") and (suspect := self._suspects.get("")):
            wait_s = max(0.0, suspect.retry_at_s - self._clock.monotonic())
            raise _Trouble(suspect.problem, f"NVML did not start; it is tried again in {wait_s:.0f} s")
        try:
            self._worker = WorkerProcess(self._command, {**os.environ, **self._environment})
        except OSError as error:
            raise _Trouble(
                SurveyProblem.FAILED, f"no NVML worker could be started: {error.strerror}"
            ) from error
        answer = await self._guarded(self._opened(self._worker), self._init_deadline_s, "opening NVML")
        if answer.error:
            self._drop()
            problem = _NVML_PROBLEMS.get(answer.error, SurveyProblem.FAILED)
            hint = _WHAT_TO_DO.get(problem, "NVML can't be opened")
            raise _Trouble(problem, f"{hint} (NVML error {answer.error}, {answer.name})")
        self._driver_version = answer.driver_version
        self._suspects.pop("", None)

    async def _opened(self, worker: WorkerProcess) -> _Answer:
        request_id, payload = await worker.frame()
        if request_id != 0:
            raise WorkerGarbage("an answer before it was asked")
        return _decode(payload)

    async def _request(self, order: list[str], readings: dict[str, GpuReading], detail: bool) -> None:
        assert self._worker is not None
        waiting = list(order)
        answered_s = [asyncio.get_running_loop().time()]
        collecting = self._collect(self._worker, waiting, readings, answered_s, detail)
        await self._guarded(collecting, self._poll_deadline_s, "reading GPUs", waiting, answered_s)

    async def _collect(
        self,
        worker: WorkerProcess,
        waiting: list[str],
        readings: dict[str, GpuReading],
        answered_s: list[float],
        detail: bool,
    ) -> _Answer:
        self._request_id = (self._request_id + 1) & 0x7FFFFFFF or 1
        worker.send(self._request_id, {"gpus": waiting, "detail": detail})
        while True:
            request_id, payload = await worker.frame()
            answer = _decode(payload)
            if request_id != self._request_id:
                raise WorkerGarbage("an answer to another request")
            if answer.done and not waiting:
                self._library_version = answer.library_version
                return answer
            if answer.gpu is None or not waiting or answer.gpu.pci_address != waiting[0]:
                raise WorkerGarbage("an answer out of order")
            readings[waiting.pop(0)] = answer.gpu
            self._suspects.pop(answer.gpu.pci_address, None)
            answered_s[0] = asyncio.get_running_loop().time()

    async def _guarded(
        self,
        work: Awaitable[_Answer],
        deadline_s: float,
        doing: str,
        waiting: Sequence[str] = (),
        answered_s: Sequence[float] = (),
    ) -> _Answer:
        """Do it in time, or give up the worker and say which GPU is to blame."""
        worker = self._worker
        assert worker is not None
        gpu, start_s = "", asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(deadline_s):
                return await work
        except TimeoutError:
            if asyncio.get_running_loop().time() - start_s > deadline_s + OVERSLEPT_S:
                self._drop()
                raise _Overslept from None
            silent_s = asyncio.get_running_loop().time() - answered_s[0] if answered_s else deadline_s
            # With many slow GPUs the one that is being asked at the deadline is not to blame for it.
            gpu = waiting[0] if waiting and silent_s >= deadline_s / 2 else ""
            slow = f"; {len(waiting)} GPUs had not answered" if waiting and not gpu else ""
            problem, message = SurveyProblem.HUNG, f"no answer within {deadline_s:g} s while {doing}{slow}"
        except WorkerEnded as error:
            gpu = waiting[0] if waiting else ""
            await worker.ended(_EXIT_DEADLINE_S)
            problem = SurveyProblem.CRASHED
            message = f"the NVML worker ended while {doing}: {_ending(worker.exit_status, error)}"
        except WorkerGarbage as error:
            problem, message = SurveyProblem.GARBAGE, f"the NVML worker sent {error} while {doing}"
        self._drop()
        self._leaked = leaked_workers(self._proc)
        self._suspect(gpu, problem, worker.pid)
        raise _Trouble(problem, f"GPU {gpu}: {message}" if gpu else message, gpu)

    def _suspect(self, gpu: str, problem: SurveyProblem, pid: int) -> None:
        before = self._suspects.get(gpu)
        pause_s = min(2 * before.pause_s, RETRY_MAX_S) if before else self._retry_first_s
        self._suspects[gpu] = _Suspect(problem, pid, self._clock.monotonic() + pause_s, pause_s)

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def _decode(payload: bytes) -> _Answer:
    try:
        return msgspec.json.decode(payload, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WorkerGarbage(f"an answer that is none ({error})") from error


def _ending(status: int | None, error: WorkerEnded) -> str:
    if status is None:
        return str(error)
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
