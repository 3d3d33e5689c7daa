"""Runs a plan of active tests: a killable worker a GPU, on GPUs that are idle and stay so.

Somebody else's process on a GPU, a GPU that falls ill or an NVML that stops answering ends the tests there at
once: a test is never worth a job. A worker that hangs costs its deadline; nothing waits for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Final

import msgspec

from outlast.active.plan import Candidate, Depth, Plan, Step
from outlast.adapters.active.idle import in_host_pid_namespace, refusal
from outlast.adapters.linux.worker_process import WorkerEnded, WorkerGarbage, WorkerProcess
from outlast.model.observation import GpuSurvey
from outlast.model.observation.active import ActiveResult, ActiveTest, Failure, NotTested, Outcome
from outlast.ports.clock import Clock
from outlast.ports.node import GpuReader

WATCH_S: Final = 2.0
"""How often NVML is asked whether the GPUs are still ours alone."""
GONE_S: Final = 2.0
"""How long a worker that was told to end may take before it is called stuck."""
FRAMES_MAX: Final = 20_000
WORKER: Final = Path(__file__).with_name("worker.py")

Tell = Callable[[str], None]


class _Answer(msgspec.Struct):
    test: ActiveTest | None = None
    share: float | None = None
    outcome: Outcome | None = None
    not_tested: NotTested | None = None
    failure: Failure | None = None
    why: str = ""
    engine: str = ""
    checksum: str = ""
    bytes_per_s: float | None = None
    duration_s: float = 0.0
    done: bool = False


class _Running:
    """A step under way."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.task: asyncio.Task[list[ActiveResult]] | None = None
        self.stopped: tuple[NotTested, str] | None = None

    def stop(self, reason: NotTested, why: str) -> None:
        """Give way, at once."""
        if self.task is not None and not self.task.done() and self.stopped is None:
            self.stopped = (reason, why)
            self.task.cancel()


class ActiveRunner:
    """Runs plans. `python` has to be able to import torch for the tests that need it."""

    def __init__(
        self,
        *,
        gpu_reader: GpuReader,
        clock: Clock,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        device: str = "cuda",
        watch_s: float = WATCH_S,
        host_pids: bool | None = None,
        tell: Tell = lambda line: None,
    ) -> None:
        self._gpu_reader = gpu_reader
        self._clock = clock
        self._command = (python, "-I", str(WORKER))
        self._environment = {**os.environ, **(environment or {})}
        self._device = device
        self._watch_s = watch_s
        self._host_pids = in_host_pid_namespace() if host_pids is None else host_pids
        self._tell = tell
        self._own: set[int] = set()

    async def run(self, plan: Plan, until_s: float = inf) -> tuple[ActiveResult, ...]:
        """All results, those of tests that could not run too. Raises nothing for a sick GPU.

        `until_s`, of the clock's monotonic seconds, ends whatever runs and lets nothing new begin.
        """
        results = list(plan.not_tested)
        for number, planned in enumerate(plan.rounds):
            left_s = until_s - self._clock.monotonic()
            if left_s <= 0:
                why = "the deadline of the whole check came first"
                for step in planned:
                    results += _all_not_tested(step.tests, step, NotTested.DEADLINE, why)
                continue
            steps = [
                msgspec.structs.replace(step, deadline_s=min(step.deadline_s, left_s)) for step in planned
            ]
            names = ", ".join(dict.fromkeys(test for step in steps for test in step.tests))
            self._tell(f"round {number + 1} of {len(plan.rounds)}: {names} on {len(steps)} at a time")
            results += await self._round(plan.depth, steps)
        return tuple(results)

    async def _round(self, depth: Depth, steps: Sequence[Step]) -> list[ActiveResult]:
        survey = await self._look(steps)
        results: list[ActiveResult] = []
        running: list[_Running] = []
        for step in steps:
            refused = refusal(step.gpus, survey, self._own, host_pids=self._host_pids)
            if refused is not None:
                results += _all_not_tested(step.tests, step, *refused)
            else:
                running.append(_Running(step))
        if not running:
            return results
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(self._watch(running))
            for one in running:
                one.task = group.create_task(self._step(depth, one))
            await asyncio.wait([one.task for one in running if one.task is not None])
            watcher.cancel()
        for one in running:
            assert one.task is not None
            results += one.task.result()
        return results

    async def _watch(self, running: Sequence[_Running]) -> None:
        while True:
            await self._clock.sleep(self._watch_s)
            left = [one for one in running if one.task is not None and not one.task.done()]
            survey = await self._look([one.step for one in left])
            for one in left:
                refused = refusal(one.step.gpus, survey, self._own, host_pids=self._host_pids, started=True)
                if refused is not None:
                    one.stop(*refused)

    async def _look(self, steps: Sequence[Step]) -> GpuSurvey:
        addresses = tuple(dict.fromkeys(gpu.address for step in steps for gpu in step.gpus))
        return await self._gpu_reader.survey(addresses)

    # --- one step

    async def _step(self, depth: Depth, running: _Running) -> list[ActiveResult]:
        step = running.step
        if step.tests != (ActiveTest.ALL_REDUCE,):
            return await self._work(depth, running, step.gpus, {})
        with tempfile.TemporaryDirectory(prefix="outlast-check-") as folder:
            members = [
                {"rendezvous": str(Path(folder) / "meet"), "rank": rank, "size": len(step.gpus)}
                for rank in range(len(step.gpus))
            ]
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._work(depth, running, (gpu,), member))
                        for gpu, member in zip(step.gpus, members, strict=True)
                    ]
            except asyncio.CancelledError:
                if running.stopped is None:
                    raise
                return _all_not_tested(step.tests, step, *running.stopped)
            return [_together(step, [result for task in tasks for result in task.result()])]

    async def _work(
        self, depth: Depth, running: _Running, gpus: Sequence[Candidate], more: Mapping[str, object]
    ) -> list[ActiveResult]:
        """One worker from start to end; always gives a result for each test."""
        step = running.step
        results: dict[ActiveTest, ActiveResult] = {}
        try:
            worker = WorkerProcess(self._command, self._environment_of(gpus))
        except OSError as error:
            why = f"the worker cannot be started: {error.strerror}"
            return _all_not_tested(step.tests, step, NotTested.SOFTWARE, why)
        self._own.add(worker.pid)
        reason, why = NotTested.CRASHED, "the worker ended early"
        try:
            async with asyncio.timeout(step.deadline_s):
                await self._collect(worker, self._request(depth, step, gpus, more), step, results)
        except TimeoutError:
            reason, why = NotTested.DEADLINE, f"it did not end within {step.deadline_s:.0f} s"
        except (WorkerEnded, WorkerGarbage) as error:
            await worker.ended(GONE_S)
            status = worker.exit_status
            why = f"the worker ended early ({error if status is None else _ending(status)})"
        except asyncio.CancelledError:
            if running.stopped is None:
                raise
            reason, why = running.stopped
        finally:
            worker.kill()
        missing = [test for test in step.tests if test not in results]
        if missing and not await worker.ended(GONE_S):
            why += f"; its process {worker.pid} cannot be killed, so the driver holds it"
        return [*results.values(), *_all_not_tested(missing, step, reason, why)]

    async def _collect(
        self,
        worker: WorkerProcess,
        request: dict[str, object],
        step: Step,
        results: dict[ActiveTest, ActiveResult],
    ) -> None:
        await worker.frame()
        worker.send(1, request)
        for _ in range(FRAMES_MAX):
            _, payload = await worker.frame()
            answer = _decode(payload)
            if answer.done:
                await worker.ended(GONE_S)
                return
            if answer.test is None or answer.test not in step.tests:
                raise WorkerGarbage("an answer about a test that nobody asked for")
            where = " and ".join(_label(gpu) for gpu in step.gpus)
            if answer.outcome is None:
                self._tell(f"GPU {where}: {answer.test} {100 * (answer.share or 0.0):.0f} %")
                continue
            self._tell(f"GPU {where}: {answer.test} {answer.outcome.value}")
            results[answer.test] = _result(step, answer)
        raise WorkerGarbage(f"more than {FRAMES_MAX} answers")

    def _request(
        self, depth: Depth, step: Step, gpus: Sequence[Candidate], more: Mapping[str, object]
    ) -> dict[str, object]:
        return {
            "tests": [test.value for test in step.tests],
            "gpus": [{"address": gpu.address, "uuid": gpu.uuid} for gpu in gpus],
            "memory_bytes_max": depth.memory_bytes_max,
            "memory_piece_bytes": depth.memory_piece_bytes,
            "copy_bytes": depth.copy_bytes,
            "gemm_size": depth.gemm_size,
            "gemm_iterations": depth.gemm_iterations,
            "deadline_s": step.deadline_s,
            "device": self._device,
            **more,
        }

    def _environment_of(self, gpus: Sequence[Candidate]) -> dict[str, str]:
        environment = {**self._environment, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        if all(gpu.uuid for gpu in gpus):
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in gpus)
        elif all(gpu.index is not None for gpu in gpus):
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu.index) for gpu in gpus)
        return environment


def _decode(payload: bytes) -> _Answer:
    try:
        return msgspec.json.decode(payload, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WorkerGarbage(f"an answer that is none ({error})") from error


def _result(step: Step, answer: _Answer) -> ActiveResult:
    assert answer.test is not None
    assert answer.outcome is not None
    failed = answer.outcome is Outcome.FAILED
    return ActiveResult(
        test=answer.test,
        gpus=tuple(gpu.address for gpu in step.gpus),
        outcome=answer.outcome,
        why=answer.why[:300],
        not_tested=(answer.not_tested or NotTested.SOFTWARE)
        if answer.outcome is Outcome.NOT_TESTED
        else None,
        failure=(answer.failure or Failure.ERROR) if failed else None,
        engine=answer.engine[:128],
        model=_common_model(step),
        checksum=answer.checksum[:128],
        bytes_per_s=answer.bytes_per_s,
        duration_s=answer.duration_s,
    )


def _together(step: Step, members: Sequence[ActiveResult]) -> ActiveResult:
    """One result of what several workers did together: the worst of them."""
    order = (Outcome.FAILED, Outcome.NOT_TESTED, Outcome.PASSED)
    worst = min(members, key=lambda result: order.index(result.outcome))
    rates = [result.bytes_per_s for result in members if result.bytes_per_s is not None]
    return msgspec.structs.replace(worst, bytes_per_s=min(rates) if len(rates) == len(members) else None)


def _all_not_tested(
    tests: Sequence[ActiveTest], step: Step, reason: NotTested, why: str
) -> list[ActiveResult]:
    return [
        ActiveResult(
            test=test,
            gpus=tuple(gpu.address for gpu in step.gpus),
            outcome=Outcome.NOT_TESTED,
            not_tested=reason,
            why=why,
            model=_common_model(step),
        )
        for test in tests
    ]


def _common_model(step: Step) -> str:
    models = {gpu.model for gpu in step.gpus}
    return models.pop() if len(models) == 1 else ""


def _label(gpu: Candidate) -> str:
    return str(gpu.index) if gpu.index is not None else gpu.address


def _ending(status: int) -> str:
    import signal

    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
