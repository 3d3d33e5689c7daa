"""Active tests in real worker processes, on a CUDA library of ours: what a GPU can do to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from outlast.active.plan import DEPTHS, Candidate, Capabilities, Level, Plan, Step, plan
from outlast.adapters.active.runner import ActiveRunner
from outlast.adapters.nvml.reader import NvmlReader
from outlast.model.observation.active import ActiveResult, ActiveTest, Failure, NotTested, Outcome
from tests.contract.node.logs import RealTime
from tests.cuda import FakeCuda
from tests.nvml import FakeNvml
from tests.nvml.frozen import frozen_mount, why_not
from tests.unit.active.devices import has_torch

in_a_loop = pytest.mark.asyncio
Results = dict[tuple[ActiveTest, tuple[int, ...]], ActiveResult]


class Bench:
    """Three GPUs, their tests, and what happens to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nvml = FakeNvml(folder).machine("H100", gpus=3)
        self.cuda = FakeCuda(folder, self.nvml.addresses())
        self.said: list[str] = []
        self.reader = NvmlReader(
            clock=RealTime(), environment=self.nvml.environment, poll_deadline_s=2.0, proc=folder / "proc"
        )
        self.took_s = 0.0

    def gpus(self) -> list[Candidate]:
        return [
            Candidate(address=address, uuid=f"GPU-00000000-0000-0000-0000-{n:012d}", model="H100", index=n)
            for n, address in enumerate(self.nvml.addresses())
        ]

    def plan(self, *tests: ActiveTest, pairs: bool = False, deadline_s: float = 60.0) -> Plan:
        """These tests, small enough for memory that is host memory."""
        depth = msgspec.structs.replace(
            DEPTHS[Level.DEEP],
            tests=() if pairs else tests,
            pair_tests=tests if pairs else (),
            memory_bytes_max=4 << 20,
            memory_piece_bytes=1 << 20,
            copy_bytes=4 << 20,
            gemm_size=64,
            gemm_iterations=5,
            deadline_s=deadline_s,
            pair_deadline_s=deadline_s,
        )
        made = plan(Level.DEEP, self.gpus(), Capabilities(torch="on the processor"))
        wanted = [
            tuple(
                msgspec.structs.replace(step, tests=kept, deadline_s=deadline_s)
                for step in steps
                if (kept := tuple(test for test in step.tests if test in tests))
            )
            for steps in made.rounds
        ]
        rounds = tuple(steps for steps in wanted if steps)
        return Plan(level=Level.DEEP, depth=depth, rounds=rounds, not_tested=(), deadline_s=60.0)

    async def run(
        self, planned: Plan, **options: object
    ) -> dict[tuple[ActiveTest, tuple[int, ...]], ActiveResult]:
        """Results by test and GPU numbers."""
        options = {"watch_s": 0.1, "host_pids": True, "device": "cpu", **options}
        runner = ActiveRunner(
            gpu_reader=self.reader,
            clock=RealTime(),
            environment=self.cuda.environment,
            tell=self.said.append,
            **options,  # type: ignore[arg-type]
        )
        start_s = time.monotonic()
        results = await runner.run(planned)
        self.took_s = time.monotonic() - start_s
        numbers = {address: n for n, address in enumerate(self.nvml.addresses())}
        return {(result.test, tuple(numbers[gpu] for gpu in result.gpus)): result for result in results}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.reader.close()


@in_a_loop
async def test_good_gpus_pass_everything_that_the_driver_can_run(bench: Bench) -> None:
    """Context, copies and memory through the real worker; each result names its engine."""
    results = await bench.run(bench.plan(ActiveTest.CONTEXT, ActiveTest.HOST_COPY, ActiveTest.MEMORY))

    assert len(results) == 9
    assert {result.outcome for result in results.values()} == {Outcome.PASSED}
    assert {result.engine for result in results.values()} == {"CUDA driver 13.0"}
    assert all(results[ActiveTest.HOST_COPY, (n,)].bytes_per_s for n in range(3))
    assert any("memory-pattern" in line for line in bench.said)


@in_a_loop
async def test_pairs_meet_and_copy(bench: Bench) -> None:
    """Three GPUs make three pairs; the way that the copies take is said."""
    bench.cuda.action("cuCtxEnablePeerAccess", "ret:704", gpu=0)  # Enabled before: no trouble.

    results = await bench.run(bench.plan(ActiveTest.PEER_COPY, pairs=True))
    bench.cuda.set("no_peer_access", 1)
    indirect = await bench.run(bench.plan(ActiveTest.PEER_COPY, pairs=True))

    assert set(results) == {(ActiveTest.PEER_COPY, pair) for pair in [(0, 1), (0, 2), (1, 2)]}
    assert {result.outcome for result in (*results.values(), *indirect.values())} == {Outcome.PASSED}
    assert {result.engine for result in results.values()} == {"CUDA driver 13.0, direct"}
    assert {result.engine for result in indirect.values()} == {"CUDA driver 13.0, through the host"}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("gpu.1.stuck", "4000001:3", "1 wrong bits"), ("gpu.1.wrap", str(2 << 20), "its own address")],
)
@in_a_loop
async def test_bad_memory_is_found_on_its_gpu_only(bench: Bench, key: str, value: str, words: str) -> None:
    """A bit that is stuck, an address line that is stuck."""
    bench.cuda.set(key, value)

    results = await bench.run(bench.plan(ActiveTest.MEMORY))

    bad = results[ActiveTest.MEMORY, (1,)]
    assert (bad.outcome, bad.failure) == (Outcome.FAILED, Failure.WRONG_MEMORY)
    assert words in bad.why
    assert {results[ActiveTest.MEMORY, (n,)].outcome for n in (0, 2)} == {Outcome.PASSED}


@pytest.mark.parametrize(
    ("code", "outcome", "what"),
    [
        (214, Outcome.FAILED, Failure.ERROR),
        (719, Outcome.FAILED, Failure.ERROR),
        (802, Outcome.FAILED, Failure.FABRIC_NOT_READY),
        (803, Outcome.NOT_TESTED, NotTested.SOFTWARE),
        (46, Outcome.NOT_TESTED, NotTested.GPU_BUSY_FOREIGN),
        (2, Outcome.NOT_TESTED, NotTested.NO_ROOM),
        (12345, Outcome.NOT_TESTED, NotTested.SOFTWARE),
    ],
)
@in_a_loop
async def test_what_cuda_says_is_sorted_by_whose_fault_it_is(
    bench: Bench, code: int, outcome: Outcome, what: Failure | NotTested
) -> None:
    """Only errors of the device are its fault; what nobody knows is not."""
    bench.cuda.action("cuDevicePrimaryCtxRetain", f"ret:{code}", gpu=2)

    result = (await bench.run(bench.plan(ActiveTest.CONTEXT)))[ActiveTest.CONTEXT, (2,)]

    assert (result.outcome, result.failure or result.not_tested) == (outcome, what)


@in_a_loop
async def test_after_an_error_the_other_tests_of_the_gpu_do_not_run(bench: Bench) -> None:
    """A context that broke answers errors for ever: they would say nothing new."""
    bench.cuda.action("cuMemsetD32_v2", "ret:719", gpu=0)

    results = await bench.run(bench.plan(ActiveTest.CONTEXT, ActiveTest.MEMORY))

    assert results[ActiveTest.CONTEXT, (0,)].failure is Failure.ERROR
    assert results[ActiveTest.MEMORY, (0,)].not_tested is NotTested.EARLIER_TEST


@in_a_loop
async def test_a_hang_costs_its_deadline_and_keeps_what_was_found_before(bench: Bench) -> None:
    """Neither good nor bad; the others are done."""
    bench.cuda.action("cuMemcpyHtoD_v2", "hang", gpu=1)

    results = await bench.run(bench.plan(ActiveTest.CONTEXT, ActiveTest.HOST_COPY, deadline_s=3.0))

    assert results[ActiveTest.CONTEXT, (1,)].outcome is Outcome.PASSED
    assert results[ActiveTest.HOST_COPY, (1,)].not_tested is NotTested.DEADLINE
    assert results[ActiveTest.HOST_COPY, (0,)].outcome is Outcome.PASSED
    assert bench.took_s < 10


@in_a_loop
async def test_a_crash_names_its_signal(bench: Bench) -> None:
    """A library that crashes is not yet a sick GPU."""
    bench.cuda.action("cuDevicePrimaryCtxRetain", "segv", gpu=1)

    result = (await bench.run(bench.plan(ActiveTest.CONTEXT)))[ActiveTest.CONTEXT, (1,)]

    assert result.not_tested is NotTested.CRASHED
    assert "SIGSEGV" in result.why


@pytest.mark.root
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@in_a_loop
async def test_a_worker_that_cannot_be_killed_is_said_and_not_waited_for(
    bench: Bench, tmp_path: Path
) -> None:
    """Uninterruptible sleep inside CUDA."""
    with frozen_mount(tmp_path) as mount:
        bench.cuda.action("cuMemAlloc_v2", f"dstate:{mount.trap}", gpu=0)
        result = (await bench.run(bench.plan(ActiveTest.CONTEXT, deadline_s=2.0)))[ActiveTest.CONTEXT, (0,)]

    assert result.not_tested is NotTested.DEADLINE
    assert "cannot be killed" in result.why
    assert bench.took_s < 15


@in_a_loop
async def test_a_busy_gpu_is_never_touched(bench: Bench) -> None:
    """A process on it, an unlisted one that holds memory, a driver that does not say: all are left alone."""
    bench.nvml.set("gpu.0.process_ids", "4711").set("gpu.1.memory_used", 30 << 30)
    bench.nvml.action("nvmlDeviceGetComputeRunningProcesses_v3", "ret:3", gpu=2)
    for gpu in range(3):
        bench.cuda.action("cuDevicePrimaryCtxRetain", f"touch:{bench.folder}/touched", gpu=gpu)

    results = await bench.run(bench.plan(ActiveTest.CONTEXT))

    assert {result.not_tested for result in results.values()} == {NotTested.GPU_BUSY_FOREIGN}
    assert "4711" in results[ActiveTest.CONTEXT, (0,)].why
    assert "30.0 GiB" in results[ActiveTest.CONTEXT, (1,)].why
    assert not (bench.folder / "touched").exists()


@pytest.mark.parametrize("what", ["a process", "a lost GPU", "a hung NVML"])
@in_a_loop
async def test_it_gives_way_at_once(bench: Bench, what: str) -> None:
    """A job that starts midway gets the GPU; so does whoever repairs it."""
    started = bench.folder / "started"
    bench.cuda.action("cuMemsetD32_v2", f"touch:{started}", gpu=1).action(
        "cuMemcpyDtoH_v2", "sleep:300", gpu=1
    )
    planned = bench.plan(ActiveTest.MEMORY, deadline_s=60.0)

    async def disturb() -> None:
        async with asyncio.timeout(30):
            while not started.exists():
                await asyncio.sleep(0.01)
        if what == "a process":
            bench.nvml.set("gpu.1.process_ids", "4711")
        elif what == "a lost GPU":
            bench.nvml.action("nvmlDeviceGetHandleByPciBusId_v2", "ret:15", gpu=1)
        else:
            bench.nvml.action("nvmlDeviceGetUUID", "hang", gpu=1)

    async with asyncio.TaskGroup() as group:
        group.create_task(disturb())
        results = await bench.run(planned)

    result = results[ActiveTest.MEMORY, (1,)]
    wanted = NotTested.GPU_BUSY_FOREIGN if what == "a process" else NotTested.NOT_HEALTHY
    assert result.not_tested is wanted
    assert bench.took_s < 15
    if what == "a process":
        assert "process 4711 began to use it" in result.why
        assert results[ActiveTest.MEMORY, (0,)].outcome is Outcome.PASSED


@in_a_loop
async def test_our_own_worker_is_nobody_else(bench: Bench) -> None:
    """In a pid namespace of its own NVML's number of our worker is not our number: one process is ours."""
    started = bench.folder / "started"
    bench.cuda.action("cuMemsetD32_v2", f"touch:{started}", gpu=0).action("cuMemcpyDtoH_v2", "sleep:10")

    async def appear() -> None:
        async with asyncio.timeout(30):
            while not started.exists():
                await asyncio.sleep(0.01)
        bench.nvml.set("gpu.*.process_ids", "999")

    async with asyncio.TaskGroup() as group:
        group.create_task(appear())
        results = await bench.run(bench.plan(ActiveTest.MEMORY), host_pids=False)

    assert {result.outcome for result in results.values()} == {Outcome.PASSED}


@in_a_loop
async def test_what_has_no_engine_says_so(bench: Bench) -> None:
    """No CUDA library, an interpreter that is not there: not tested, never failed."""
    bench.cuda.folder = bench.folder

    results = await bench.run(bench.plan(ActiveTest.CONTEXT))
    other = await bench.run(bench.plan(ActiveTest.CONTEXT), python="/nonexistent/python")

    assert {result.not_tested for result in results.values()} == {NotTested.NO_ENGINE}
    assert {result.not_tested for result in other.values()} == {NotTested.SOFTWARE}


if has_torch():

    @in_a_loop
    async def test_products_agree_between_workers(bench: Bench) -> None:
        """The same worker, with torch on the processor: equal engines, equal checksums."""
        results = await bench.run(bench.plan(ActiveTest.GEMM, deadline_s=100.0))

        assert {result.outcome for result in results.values()} == {Outcome.PASSED}
        assert len({result.checksum for result in results.values()}) == 1
        assert "on cpu" in results[ActiveTest.GEMM, (0,)].engine

    @in_a_loop
    async def test_workers_add_up_alone_and_in_pairs(bench: Bench) -> None:
        """One worker a member, over a file; gloo here, NCCL where there are GPUs."""
        results = await bench.run(bench.plan(ActiveTest.ALL_REDUCE, pairs=True, deadline_s=100.0))

        assert {gpus for _, gpus in results} == {(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)}
        assert {result.outcome for result in results.values()} == {Outcome.PASSED}
        assert "gloo" in results[ActiveTest.ALL_REDUCE, (0, 1)].engine


def test_a_step_never_names_a_gpu_twice(bench: Bench) -> None:
    """Workers of one round share nothing."""
    for steps in bench.plan(ActiveTest.PEER_COPY, pairs=True).rounds:
        used = [gpu for step in steps for gpu in step.gpus]
        assert len(used) == len({gpu.address for gpu in used})
        assert all(isinstance(step, Step) for step in steps)
