"""Runs DCGM's diagnostic on idle GPUs where the built-in tests cannot run, and gives way like they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from outlast.active.dcgm import results_of
from outlast.active.plan import Candidate, Plan
from outlast.adapters.active.idle import in_host_pid_namespace, refusal
from outlast.adapters.active.runner import WATCH_S, Tell
from outlast.adapters.dcgm.tool import DcgmTool
from outlast.health.catalogue import Catalogue
from outlast.health.dcgm_diagnosis import diagnose
from outlast.health.sources.dcgm_diag import DiagResult
from outlast.model.observation.active import ActiveResult, ActiveTest, NotTested, Outcome
from outlast.ports.clock import Clock
from outlast.ports.node import GpuReader

ENGINE_PROCESSES: Final = ("nvvs", "nv-hostengine", "dcgmi", "dcgmproftester", "mnubergemm")
"""What DCGM itself puts on a GPU, as /proc names it (a beginning is enough)."""
_COMM_BYTES: Final = 64


class DcgmDiagnostic:
    """One run of `dcgmi diag` for the GPUs of a plan."""

    def __init__(
        self,
        *,
        tool: DcgmTool,
        gpu_reader: GpuReader,
        catalogue: Catalogue,
        clock: Clock,
        proc: Path = Path("/proc"),
        tell: Tell = lambda line: None,
    ) -> None:
        self._tool = tool
        self._gpu_reader = gpu_reader
        self._catalogue = catalogue
        self._clock = clock
        self._proc = proc
        self._tell = tell

    async def run(self, plan: Plan, deadline_s: float) -> tuple[ActiveResult, ...]:
        """A result for each GPU that the plan leaves to DCGM."""
        addresses = tuple(gpu.address for gpu in plan.dcgm)
        host_pids = in_host_pid_namespace()
        survey = await self._gpu_reader.survey(addresses)
        results, fit = [], []
        for gpu in plan.dcgm:
            refused = refusal((gpu,), survey, (), host_pids=host_pids)
            if refused is None and gpu.index is None:
                refused = NotTested.SOFTWARE, "NVML gives no index for it, and DCGM knows GPUs by number"
            if refused is None:
                fit.append(gpu)
            else:
                results.append(_not_tested(gpu, *refused))
        if not fit:
            return tuple(results)
        self._tell(f"dcgmi diag -r {plan.depth.dcgm_run} on {len(fit)} GPUs; takes minutes")
        stopped: list[tuple[NotTested, str]] = []
        diagnosis: DiagResult | None = None
        try:
            async with asyncio.TaskGroup() as group:
                diag = group.create_task(self._diagnose(fit, plan.depth.dcgm_run, deadline_s))
                watch = group.create_task(self._watch(fit, stopped, diag.cancel, host_pids=host_pids))
                await asyncio.wait([diag])
                watch.cancel()
            diagnosis = diag.result()
        except asyncio.CancelledError:
            if not stopped:
                raise
        if diagnosis is None:
            return (*results, *(_not_tested(gpu, *stopped[0]) for gpu in fit))
        return (*results, *results_of(diagnose(diagnosis, self._catalogue), diagnosis, fit))

    async def _diagnose(self, gpus: Sequence[Candidate], run: int, deadline_s: float) -> DiagResult:
        numbers = [gpu.index for gpu in gpus if gpu.index is not None]
        return await self._tool.diagnose(run, numbers, deadline_s)

    async def _watch(
        self,
        gpus: Sequence[Candidate],
        stopped: list[tuple[NotTested, str]],
        stop: Callable[[], bool],
        *,
        host_pids: bool,
    ) -> None:
        """Only where process numbers mean something here: DCGM's own processes have to be told apart."""
        while host_pids:
            await self._clock.sleep(WATCH_S)
            survey = await self._gpu_reader.survey(tuple(gpu.address for gpu in gpus))
            pids = {pid for reading in survey.gpus for pid in reading.process_ids or ()}
            own = {pid for pid in pids if self._is_dcgm(pid)}
            refused = refusal(gpus, survey, own, host_pids=True, started=True)
            if refused is not None:
                stopped.append(refused)
                stop()
                return

    def _is_dcgm(self, pid: int) -> bool:
        try:
            with (self._proc / str(pid) / "comm").open("rb", buffering=0) as file:
                name = (file.read(_COMM_BYTES) or b"").decode("ascii", "replace").strip()
        except OSError:
            return True  # It ended while we looked.
        return name.startswith(ENGINE_PROCESSES)


def _not_tested(gpu: Candidate, reason: NotTested, why: str) -> ActiveResult:
    return ActiveResult(
        test=ActiveTest.DCGM,
        gpus=(gpu.address,),
        outcome=Outcome.NOT_TESTED,
        not_tested=reason,
        why=why,
        model=gpu.model,
    )
