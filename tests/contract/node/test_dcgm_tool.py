"""`dcgmi` as it misbehaves: a real program that answers, lies, floods, crashes and hangs."""

import asyncio
from pathlib import Path

import pytest

from outlast.adapters.dcgm import tool
from outlast.adapters.dcgm.find import find_dcgmi
from outlast.adapters.dcgm.tool import DcgmTool
from outlast.adapters.linux import command
from outlast.health.sources.dcgm_diag import DiagStatus
from outlast.model.observation.dcgm import DcgmProblem
from tests.contract.node.logs import RealTime
from tests.dcgm import FakeDcgmi, recorded

pytestmark = pytest.mark.asyncio

FAST = 1000.0
"""Pauses of the tool pass this much faster than the programs run."""


@pytest.fixture
def fake(tmp_path: Path) -> FakeDcgmi:
    return FakeDcgmi(tmp_path)


@pytest.fixture
def asked(fake: FakeDcgmi) -> DcgmTool:
    return DcgmTool(fake.command, clock=RealTime(rate=FAST))


async def until_all_ended(fake: FakeDcgmi) -> None:
    async with asyncio.timeout(10):
        while command.unended(fake.command[0]):
            await asyncio.sleep(0.01)


async def test_a_report_comes_through(fake: FakeDcgmi, asked: DcgmTool) -> None:
    """Exit code 0 on Failure is no reason to look away."""
    fake.say("health", recorded("health-failure.json"), 0)

    survey = await asked.health()

    assert survey.overall == "Failure"
    assert len(survey.incidents) == 5
    assert fake.calls() == ["health -c -j"]


async def test_health_never_turns_watches_on(fake: FakeDcgmi, asked: DcgmTool) -> None:
    """The engine is shared; that its watches are off is only said."""
    fake.say("health", recorded("health-watches-off.txt"), 253)

    survey = await asked.health()

    assert survey.problem is DcgmProblem.WATCHES_OFF
    assert not any("-s" in call.split() for call in fake.calls())


async def test_an_engine_that_is_down_is_not_started(fake: FakeDcgmi, asked: DcgmTool) -> None:
    """Neither for a report nor for a diagnostic: `dcgmi diag` alone would start one inside itself."""
    fake.engine_down()
    fake.say("diag", recorded("diag-4.5.0-nvbandwidth-alone.json"))

    survey = await asked.health()
    result = await asked.diagnose(1)

    assert (survey.problem, result.problem) == (DcgmProblem.ENGINE_DOWN, DcgmProblem.ENGINE_DOWN)
    assert not any(call.startswith("diag") for call in fake.calls())


async def test_an_engine_inside_the_diagnostic_is_started_only_where_allowed(
    fake: FakeDcgmi, asked: DcgmTool
) -> None:
    """For a bare machine that surely has no other."""
    fake.engine_down()
    fake.say("diag", recorded("diag-4.5.0-nvbandwidth-alone.json"))

    result = await asked.diagnose(1, embedded=True)

    assert result.problem is None
    assert fake.calls() == ["diag -r 1 -j"]


async def test_a_hanging_tool_costs_its_deadline(
    fake: FakeDcgmi, asked: DcgmTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves nothing behind."""
    monkeypatch.setattr(tool, "HEALTH_DEADLINE_S", 0.3)
    fake.hang("health", partial=b'{"body": {"Overall')

    survey = await asked.health()

    assert survey.problem is DcgmProblem.HUNG
    assert "0.3 s" in survey.message
    assert 0.3 <= survey.duration_s < 3
    await until_all_ended(fake)


async def test_a_flood_costs_its_limit(fake: FakeDcgmi, asked: DcgmTool) -> None:
    """100 MB of braces are neither kept nor parsed."""
    fake.flood("health")

    survey = await asked.health()

    assert survey.problem is DcgmProblem.GARBAGE
    assert str(tool.HEALTH_BYTES_MAX) in survey.message
    await until_all_ended(fake)


async def test_a_crash_is_told_by_its_signal(fake: FakeDcgmi, asked: DcgmTool) -> None:
    """Also where half a report was printed before."""
    fake.crash("health", partial=recorded("health-healthy.json"))

    survey = await asked.health()

    assert survey.problem is DcgmProblem.KILLED
    assert "signal 11" in survey.message
    assert survey.overall == ""


async def test_half_a_report_is_no_report(fake: FakeDcgmi, asked: DcgmTool) -> None:
    """With exit code 0 too."""
    fake.say("health", recorded("health-failure.json")[:300])

    assert (await asked.health()).problem is not None


async def test_a_slow_tool_is_waited_for(fake: FakeDcgmi, asked: DcgmTool) -> None:
    """Within its deadline."""
    fake.slow("health")

    assert (await asked.health()).overall == "Healthy"


async def test_a_tool_that_is_not_there_is_not_installed() -> None:
    """A matter of wiring."""
    missing = DcgmTool(("/nowhere/dcgmi",), clock=RealTime())

    assert (await missing.health()).problem is DcgmProblem.NOT_INSTALLED
    assert (await missing.diagnose(1)).problem is DcgmProblem.NOT_INSTALLED
    assert (await missing.version()).problem is DcgmProblem.NOT_INSTALLED


async def test_a_file_that_is_no_program_is_not_installed(tmp_path: Path) -> None:
    """Such as one for another processor."""
    wrong = tmp_path / "dcgmi"
    wrong.write_bytes(b"\x7fELF not")
    wrong.chmod(0o755)

    assert (await DcgmTool((str(wrong),), clock=RealTime()).health()).problem is DcgmProblem.NOT_INSTALLED


async def test_tool_and_engine_of_different_generations_are_a_mismatch(
    fake: FakeDcgmi, asked: DcgmTool
) -> None:
    """What they say to each other cannot be believed."""
    fake.say("version", recorded("version-4-engine-3.txt"))

    version = await asked.version()

    assert (version.tool, version.engine, version.problem) == (
        "4.6.0",
        "3.3.9",
        DcgmProblem.VERSION_MISMATCH,
    )
    assert (await asked.diagnose(1)).problem is DcgmProblem.VERSION_MISMATCH


async def test_another_host_is_asked_where_told(fake: FakeDcgmi) -> None:
    """In clusters the engine may be behind a service."""
    remote = DcgmTool(fake.command, clock=RealTime(), host="dcgm.example:5555")

    await remote.health()
    await remote.version()

    assert fake.calls() == ["health --host dcgm.example:5555 -c -j", "-v --host dcgm.example:5555"]


async def test_a_diagnostic_of_some_gpus_names_them(fake: FakeDcgmi, asked: DcgmTool) -> None:
    """By DCGM's own ids."""
    fake.say("diag", recorded("diag-4.6.0-level1-remap-failed.json"), 205)

    result = await asked.diagnose(1, gpu_ids=[1, 6])

    assert fake.calls()[-1] == "diag -r 1 -i 1,6 -j"
    assert {test.gpu for test in result.tests if test.error_ids} == {1, 6}


async def test_a_speed_that_depends_on_order_is_measured_alone_before_it_counts(fake: FakeDcgmi) -> None:
    """UP-046: nvbandwidth fails right after the burn test and passes alone, after a pause."""
    clock = RealTime(rate=FAST)
    fake.say("diag", recorded("diag-4.5.0-level3-nvbandwidth-busy.json"), 226)
    fake.say("diag-nvbandwidth", recorded("diag-4.5.0-nvbandwidth-alone.json"))

    result = await DcgmTool(fake.command, clock=clock).diagnose(3)

    assert fake.calls() == ["-v", "diag -r 3 -j", "diag -r nvbandwidth -j"]
    assert clock.slept == [tool.COOL_DOWN_S]
    assert not any(test.error_ids for test in result.tests)
    assert all(test.retried for test in result.tests if test.name == "nvbandwidth")


async def test_what_fails_alone_too_is_a_failure(fake: FakeDcgmi, asked: DcgmTool) -> None:
    """It is run again once, not until it passes."""
    busy = recorded("diag-4.5.0-level3-nvbandwidth-busy.json")
    fake.say("diag", busy, 226)
    fake.say("diag-nvbandwidth", busy, 226)

    result = await asked.diagnose(3)

    assert len([call for call in fake.calls() if call.startswith("diag")]) == 2
    failed = [test for test in result.tests if test.status is DiagStatus.FAIL]
    assert [(test.gpu, test.retried) for test in failed] == [(3, True)]


@pytest.mark.parametrize(
    ("name", "exit_code", "problem"),
    [
        ("diag-4-already-running.json", 217, DcgmProblem.ALREADY_RUNNING),
        ("diag-3-mig.json", 226, DcgmProblem.REFUSED),
    ],
)
async def test_a_diagnostic_that_is_refused_is_no_verdict(
    fake: FakeDcgmi, asked: DcgmTool, name: str, exit_code: int, problem: DcgmProblem
) -> None:
    """Somebody else's run, or a GPU in MIG mode (UP-047)."""
    fake.say("diag", recorded(name), exit_code)

    result = await asked.diagnose(2)

    assert (result.problem, result.tested) == (problem, False)
    assert result.message


async def test_a_diagnostic_that_misses_its_deadline_is_asked_to_stop(
    fake: FakeDcgmi, asked: DcgmTool
) -> None:
    """`dcgmi` must tell the engine, or the tests would go on without it."""
    fake.hang("diag")

    result = await asked.diagnose(2, deadline_s=0.3)

    assert result.problem is DcgmProblem.HUNG
    await until_all_ended(fake)


async def test_a_cancelled_diagnostic_leaves_no_process(fake: FakeDcgmi, asked: DcgmTool) -> None:
    """Active checks give way to work at once."""
    fake.hang("diag")
    task = asyncio.get_running_loop().create_task(asked.diagnose(2))
    async with asyncio.timeout(10):
        while not any(call.startswith("diag") for call in fake.calls()):
            await asyncio.sleep(0.01)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await until_all_ended(fake)


async def test_the_tool_is_found_on_the_path(fake: FakeDcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or nowhere."""
    monkeypatch.setenv("PATH", str(fake.path.parent))
    assert find_dcgmi() == (str(fake.path),)

    monkeypatch.setenv("PATH", "/nowhere")
    assert find_dcgmi() is None


async def test_the_tool_of_a_mounted_machine_runs_in_its_root(
    fake: FakeDcgmi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs that machine's libraries. Without one there the image's own is taken."""
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_dcgmi(tmp_path) is None
    monkeypatch.setenv("PATH", str(fake.path.parent))
    assert find_dcgmi(tmp_path) == (str(fake.path),)

    there = tmp_path / "usr/bin/dcgmi"
    there.parent.mkdir(parents=True)
    there.write_text("#!/bin/sh\n")
    there.chmod(0o755)

    assert find_dcgmi(tmp_path) == ("chroot", str(tmp_path), "/usr/bin/dcgmi")


async def test_a_job_s_view_of_the_gpus_is_not_ours(fake: FakeDcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a job's prolog only some GPUs are visible; the language of the machine is nobody's either."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")

    await DcgmTool(fake.command, clock=RealTime()).health()

    assert "CUDA_VISIBLE_DEVICES" not in fake.environment()
    assert fake.environment()["LC_ALL"] == "C"


async def test_a_level_that_does_not_exist_is_the_caller_s_mistake(fake: FakeDcgmi, asked: DcgmTool) -> None:
    """Nothing is started for it."""
    with pytest.raises(ValueError, match="levels 1 to 4"):
        await asked.diagnose(5)

    assert fake.calls() == []
