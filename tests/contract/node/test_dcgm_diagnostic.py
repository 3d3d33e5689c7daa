"""DCGM's diagnostic as an active test: a real program, recorded reports, and a GPU that gets busy."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.active.plan import Candidate, Capabilities, Level, plan
from outlast.adapters.active import dcgm
from outlast.adapters.active.dcgm import DcgmDiagnostic
from outlast.adapters.dcgm.tool import DcgmTool
from outlast.adapters.nvml.reader import NvmlReader
from outlast.health.catalogue import builtin
from outlast.model.health import FaultClass
from outlast.model.observation.active import ActiveResult, Failure, NotTested, Outcome
from tests.contract.node.logs import RealTime
from tests.dcgm import FakeDcgmi, recorded
from tests.nvml import FakeNvml

pytestmark = pytest.mark.asyncio


class Bench:
    """Eight GPUs, a dcgmi, and what it says of each."""

    def __init__(self, folder: Path) -> None:
        self.nvml = FakeNvml(folder).machine("H100", gpus=8)
        self.fake = FakeDcgmi(folder)
        self.reader = NvmlReader(
            clock=RealTime(), environment=self.nvml.environment, poll_deadline_s=5.0, proc=folder / "proc"
        )
        self.proc = folder / "proc"

    async def run(self, deadline_s: float = 20.0) -> list[ActiveResult]:
        """In the order of the GPUs."""
        gpus = [
            Candidate(address=address, model="H100", index=number)
            for number, address in enumerate(self.nvml.addresses())
        ]
        made = plan(Level.STANDARD, gpus, Capabilities(dcgm="4.6.0"))
        diagnostic = DcgmDiagnostic(
            tool=DcgmTool(self.fake.command, clock=RealTime(rate=1000.0)),
            gpu_reader=self.reader,
            catalogue=builtin(),
            clock=RealTime(rate=50.0),
            proc=self.proc,
        )
        results = await diagnostic.run(made, deadline_s)
        return sorted(results, key=lambda result: result.gpus)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.reader.close()


async def test_the_gpu_that_failed_is_named_with_its_cure(bench: Bench) -> None:
    """A remap that failed is a new board; a code that nobody knows is no fault; the others passed."""
    bench.fake.say("diag", recorded("diag-4.6.0-level1-remap-failed.json"), 226)

    results = await bench.run()

    assert (results[6].outcome, results[6].failure) == (Outcome.FAILED, Failure.DIAGNOSTIC)
    assert results[6].cure is FaultClass.HARDWARE_GONE
    assert "dcgm/80" in results[6].why
    assert results[1].not_tested is NotTested.INCONCLUSIVE
    assert any("diag -r 2 -i 0,1,2,3,4,5,6,7" in call for call in bench.fake.calls())


@pytest.mark.parametrize(
    "report", ["diag-3-level3-all-skip.json", "diag-4.5.2-level2-skips.json", "diag-4-already-running.json"]
)
async def test_what_was_skipped_or_refused_passes_nobody(bench: Bench, report: str) -> None:
    """All skipped is nothing tested."""
    bench.fake.say("diag", recorded(report))

    assert {result.outcome for result in await bench.run()} == {Outcome.NOT_TESTED}


async def test_a_hang_of_the_tool_says_nothing_of_a_gpu(bench: Bench) -> None:
    """It costs its deadline."""
    bench.fake.hang("diag")

    results = await bench.run(deadline_s=1.0)

    assert {result.not_tested for result in results} == {NotTested.INCONCLUSIVE}
    assert all("did not answer" in result.why for result in results)


async def test_a_busy_gpu_is_left_out_of_the_run(bench: Bench) -> None:
    """The others are diagnosed."""
    bench.nvml.set("gpu.3.process_ids", "4711")
    bench.fake.say("diag", recorded("diag-4.6.0-level1-remap-failed.json"), 226)

    results = await bench.run()

    assert results[3].not_tested is NotTested.GPU_BUSY_FOREIGN
    assert any("-i 0,1,2,4,5,6,7" in call for call in bench.fake.calls())


@pytest.mark.parametrize(("name", "stops"), [("python3", True), ("nvvs", False)])
async def test_it_gives_way_to_others_and_not_to_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, stops: bool
) -> None:
    """Processes of DCGM itself are on the GPU while it runs."""
    monkeypatch.setattr(dcgm, "in_host_pid_namespace", lambda: True)
    (bench.proc / "4711").mkdir(parents=True)
    (bench.proc / "4711/comm").write_text(f"{name}\n")
    bench.fake.hang("diag")

    async def begin() -> None:
        async with asyncio.timeout(20):
            while not any(call.startswith("diag") for call in bench.fake.calls()):
                await asyncio.sleep(0.01)
        bench.nvml.set("gpu.5.process_ids", "4711")

    async with asyncio.TaskGroup() as group:
        group.create_task(begin())
        results = await bench.run(deadline_s=30.0 if stops else 3.0)

    reason = NotTested.GPU_BUSY_FOREIGN if stops else NotTested.INCONCLUSIVE
    assert {result.not_tested for result in results} == {reason}
