"""The NVML worker as a real process: everything a driver can do to it, with NVIDIA's own bindings."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.adapters.linux.leaks import leaked_workers
from outlast.adapters.nvml.reader import NvmlReader
from outlast.model.observation import SurveyProblem
from tests.contract.node.logs import RealTime
from tests.nvml import FakeNvml
from tests.nvml.frozen import FrozenMount, frozen_mount, why_not

in_a_loop = pytest.mark.asyncio

DEADLINE_S = 1.5
LIBRARY_FOLDERS = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
Make = Callable[..., NvmlReader]


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path).machine("H100", gpus=4)


@pytest.fixture
def make(nvml: FakeNvml, tmp_path: Path) -> Iterator[Make]:
    """Makes readers on the fake library and kills their workers in the end."""
    made: list[NvmlReader] = []

    def reader(**options: object) -> NvmlReader:
        options = {
            "clock": RealTime(),
            "environment": nvml.environment,
            "poll_deadline_s": DEADLINE_S,
            "retry_first_s": 0.05,
            "proc": tmp_path / "proc",  # What other tests leave asleep is not ours.
            **options,
        }
        made.append(NvmlReader(**options))
        return made[-1]

    yield reader
    for one in made:
        one.close()


def status_of(pid: int) -> dict[str, str]:
    """What /proc tells about a process; empty when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def lives(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    return status_of(pid).get("State", "Z")[0] not in "ZX"


async def gone(pid: int) -> None:
    """Until the process has ended."""
    async with asyncio.timeout(20):
        while lives(pid):
            await asyncio.sleep(0.01)


def has_a_real_library() -> bool:
    return any(Path(folder, "libnvidia-ml.so.1").exists() for folder in LIBRARY_FOLDERS)


def worker_pid(reader: NvmlReader) -> int:
    assert reader._worker is not None
    return reader._worker.pid


@in_a_loop
async def test_one_worker_serves_all_surveys_and_stays_small(nvml: FakeNvml, make: Make) -> None:
    """A fresh process a poll would initialise every GPU anew; this one holds under 25 MB."""
    reader = make()
    await reader.survey(nvml.addresses())
    pid = worker_pid(reader)

    await reader.survey(nvml.addresses())

    assert worker_pid(reader) == pid
    status = status_of(pid)
    assert status["Name"] == "outlast-nvml"
    assert int(status["VmRSS"].split()[0]) < 25_000
    assert os.getsid(pid) == pid


@in_a_loop
async def test_the_agent_process_never_loads_the_bindings(nvml: FakeNvml, make: Make) -> None:
    """NVIDIA's code runs only where it may be lost."""
    await make().survey(nvml.addresses())

    assert "pynvml" not in sys.modules


@in_a_loop
async def test_unsupported_is_none_and_never_zero(nvml: FakeNvml, make: Make) -> None:
    """An unsupported field holds 0 and says so only in its own return code."""
    nvml.set("gpu.*.recovery_action", None).set("gpu.*.sram_threshold_exceeded", None)
    nvml.set("gpu.1.field.230", 0).set("gpu.1.field.230.ret", 3)
    nvml.set("gpu.2.recovery_action", 2)

    survey = await make().survey(nvml.addresses())

    assert [gpu.recovery_action for gpu in survey.gpus] == [None, None, 2, None]
    assert {gpu.sram_threshold_exceeded for gpu in survey.gpus} == {None}
    assert {gpu.error for gpu in survey.gpus} == {""}
    assert survey.complete


@in_a_loop
async def test_an_old_driver_costs_only_the_signals_it_lacks(nvml: FakeNvml, make: Make) -> None:
    """Missing functions and older structure versions have a second way, or give None."""
    nvml.action("nvmlDeviceGetTemperatureV", "ret:13").action(
        "nvmlDeviceGetComputeRunningProcesses_v3", "ret:13"
    )
    nvml.set("gpu.*.fabric_version", 2)
    nvml.set("gpu.*.field_remap_pending", None).set("gpu.*.remap_pending", 1).set("gpu.*.remap_failed", 0)

    (gpu, *_) = (await make().survey(nvml.addresses())).gpus

    assert (gpu.temperature_c, gpu.process_ids, gpu.error) == (41, None, "")
    assert (gpu.fabric_state, gpu.fabric_summary) == (3, None)
    assert (gpu.remap_pending, gpu.remap_failed) == (True, False)


@in_a_loop
async def test_values_arrive_as_the_driver_says(nvml: FakeNvml, make: Make) -> None:
    """Each reading is the scripted value of that GPU and no other."""
    nvml.set("gpu.2.ecc_uncorrected_volatile", 7).set("gpu.2.clocks_event_reasons", 0x80)
    nvml.set("gpu.2.mig", 1).set("gpu.2.persistence", 0).set("gpu.2.sram_threshold_exceeded", 1)
    nvml.set("gpu.2.field_remap_failed", 1).set("gpu.2.process_ids", "101,102").set("gpu.2.fabric_summary", 2)
    nvml.set("gpu.2.serial", "x" * 29)

    gpus = (await make().survey(nvml.addresses())).gpus
    sick, well = gpus[2], gpus[1]

    assert (sick.ecc_uncorrected_volatile, sick.clocks_event_reasons, sick.mig_enabled) == (7, 0x80, True)
    assert (sick.persistence_enabled, sick.sram_threshold_exceeded, sick.remap_failed) == (False, True, True)
    assert (sick.process_ids, sick.fabric_summary, sick.index) == ((101, 102), 2, 2)
    assert (well.ecc_uncorrected_volatile, well.mig_enabled, well.process_ids) == (0, False, ())
    assert well.name == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (4, SurveyProblem.NO_PERMISSION),
        (9, SurveyProblem.DRIVER_NOT_LOADED),
        (12, SurveyProblem.LIBRARY_MISSING),
        (18, SurveyProblem.DRIVER_MISMATCH),
        (999, SurveyProblem.FAILED),
    ],
)
@in_a_loop
async def test_why_nvml_does_not_open_is_told_apart(
    nvml: FakeNvml, make: Make, code: int, problem: SurveyProblem
) -> None:
    """Wiring, driver and rights have different cures; each recovers by itself."""
    nvml.action("nvmlInitWithFlags", f"ret:{code}")
    reader = make()

    survey = await reader.survey(nvml.addresses())

    assert (survey.problem, survey.problem_gpu, survey.gpus) == (problem, "", ())
    assert str(code) in survey.message
    nvml.action("nvmlInitWithFlags", "")
    assert (await reader.survey(nvml.addresses())).complete


@in_a_loop
async def test_a_container_without_the_library_is_wiring(make: Make, nvml: FakeNvml, tmp_path: Path) -> None:
    """No libnvidia-ml.so.1 on the path: nothing is said about a GPU."""
    if has_a_real_library():
        pytest.skip("this machine has a real NVIDIA library")

    survey = await make(environment={"LD_LIBRARY_PATH": str(tmp_path)}).survey(nvml.addresses())

    assert survey.problem is SurveyProblem.LIBRARY_MISSING


@pytest.mark.parametrize("action", ["hang", "spin", "sleep:60000"])
@in_a_loop
async def test_a_call_that_does_not_return_is_cut_at_the_deadline(
    nvml: FakeNvml, make: Make, action: str
) -> None:
    """The GPU is named, those before it have answered, and the worker is gone at once."""
    reader = make()
    await reader.survey(nvml.addresses())
    pid = worker_pid(reader)
    nvml.action("nvmlDeviceGetSerial", action, gpu=2)

    survey = await reader.survey(nvml.addresses())

    assert (survey.problem, survey.problem_gpu) == (SurveyProblem.HUNG, nvml.address(2))
    assert [gpu.index for gpu in survey.gpus] == [0, 1]
    assert DEADLINE_S <= survey.duration_s < DEADLINE_S + 5
    await gone(pid)


@in_a_loop
async def test_a_driver_that_hangs_at_the_opening_blames_no_gpu(nvml: FakeNvml, make: Make) -> None:
    """It is tried again after a pause, not at every survey."""
    nvml.action("nvmlInitWithFlags", "hang")
    reader = make(init_deadline_s=1.0, retry_first_s=60.0)

    first = await reader.survey(nvml.addresses())
    second = await reader.survey(nvml.addresses())

    assert [survey.problem for survey in (first, second)] == [SurveyProblem.HUNG] * 2
    assert {survey.problem_gpu for survey in (first, second)} == {""}
    assert second.duration_s < 0.5
    assert "tried again in" in second.message


@in_a_loop
async def test_many_slow_gpus_blame_none(nvml: FakeNvml, make: Make) -> None:
    """When each GPU takes its time, the one being asked at the deadline is not the culprit."""
    nvml.action("nvmlDeviceGetSerial", "sleep:600")
    reader = make()

    survey = await reader.survey(nvml.addresses())

    assert (survey.problem, survey.problem_gpu) == (SurveyProblem.HUNG, "")
    assert "had not answered" in survey.message


@pytest.mark.parametrize(("action", "name"), [("segv", "SIGSEGV"), ("abort", "SIGABRT")])
@in_a_loop
async def test_a_crash_inside_the_library_names_the_gpu_and_the_signal(
    nvml: FakeNvml, make: Make, action: str, name: str
) -> None:
    """The next survey has the other GPUs; the sick one is left alone for a while."""
    reader = make(retry_first_s=60.0)
    nvml.action("nvmlDeviceGetSerial", action, gpu=1)

    crashed = await reader.survey(nvml.addresses())
    after = await reader.survey(nvml.addresses())

    assert (crashed.problem, crashed.problem_gpu) == (SurveyProblem.CRASHED, nvml.address(1))
    assert name in crashed.message
    assert [gpu.index for gpu in after.gpus] == [0, 2, 3]
    assert (after.problem, after.problem_gpu) == (SurveyProblem.CRASHED, nvml.address(1))
    assert "was not asked" in after.message


@in_a_loop
async def test_what_the_library_prints_disturbs_nothing(nvml: FakeNvml, make: Make) -> None:
    """Our frames have a pipe of their own; a library that prints to standard output has none."""
    nvml.action("nvmlDeviceGetSerial", "stdout:OLNV garbage from the driver")

    assert (await make().survey(nvml.addresses())).complete


GARBAGE_WORKERS = {
    "no frame at all": "os.write(1, b'hello world, this is no frame')",
    "a frame beyond the limit": "os.write(1, b'OLNV' + struct.pack('<II', 2**31, 0))",
    "no JSON": "os.write(1, b'OLNV' + struct.pack('<II', 4, 0) + b'\\xff\\xfe{[')",
    "wrong types": "send(0, b'{\"driver_version\": 7}')",
    "an answer to another request": "send(0, b'{}'); send(99, b'{\"done\": true}')",
    "an answer for a GPU nobody asked about": 'send(0, b\'{}\'); send(1, b\'{"gpu": {"pci_address": "x"}}\')',
    "done before it was": "send(0, b'{}'); send(1, b'{\"done\": true}')",
}


@pytest.mark.parametrize("words", GARBAGE_WORKERS)
@in_a_loop
async def test_garbage_ends_the_worker(nvml: FakeNvml, make: Make, words: str) -> None:
    """A violated protocol is its own problem: nothing more is believed, nobody is blamed."""
    script = textwrap.dedent(
        f"""
        import os, struct, time
        def send(request_id, payload):
            os.write(1, b"OLNV" + struct.pack("<II", len(payload), request_id) + payload)
        {GARBAGE_WORKERS[words]}
        time.sleep(60)
        """
    )
    reader = make(command=[sys.executable, "-I", "-c", script])

    survey = await reader.survey(nvml.addresses())

    assert (survey.problem, survey.problem_gpu, survey.gpus) == (SurveyProblem.GARBAGE, "", ())
    assert reader._worker is None


@in_a_loop
async def test_a_worker_that_cannot_be_started_is_a_failure_in_words(nvml: FakeNvml, make: Make) -> None:
    """No exception for the caller."""
    survey = await make(command=["/nonexistent/python"]).survey(nvml.addresses())

    assert survey.problem is SurveyProblem.FAILED
    assert "No such file" in survey.message


@in_a_loop
async def test_a_worker_killed_between_surveys_is_replaced_without_blame(nvml: FakeNvml, make: Make) -> None:
    """The OOM killer says nothing about a GPU."""
    reader = make()
    await reader.survey(nvml.addresses())
    pid = worker_pid(reader)
    os.kill(pid, signal.SIGKILL)
    await gone(pid)

    survey = await reader.survey(nvml.addresses())

    assert survey.complete
    assert worker_pid(reader) != pid


@in_a_loop
async def test_a_cancelled_survey_leaves_no_stale_answers(nvml: FakeNvml, make: Make) -> None:
    """The next survey gets the answers to its own question."""
    reader = make()
    await reader.survey(nvml.addresses())
    nvml.action("nvmlDeviceGetSerial", "sleep:300", gpu=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await reader.survey(nvml.addresses())
    nvml.action("nvmlDeviceGetSerial", "", gpu=0)

    assert (await reader.survey(nvml.addresses()[1:])).complete


@in_a_loop
async def test_release_ends_the_worker_in_its_own_way(nvml: FakeNvml, make: Make) -> None:
    """The library is shut down and the process is gone, so nothing holds the GPU."""
    reader = make()
    await reader.survey(nvml.addresses())
    pid = worker_pid(reader)

    assert await reader.release()

    assert not status_of(pid)


@in_a_loop
async def test_a_driver_reloaded_under_us_is_opened_again(nvml: FakeNvml, make: Make) -> None:
    """An open library answers errors for ever after a reload; all GPUs in error mean a new worker."""
    reader = make()
    await reader.survey(nvml.addresses())
    pid = worker_pid(reader)
    nvml.action("nvmlDeviceGetHandleByPciBusId_v2", "ret:15")
    lost = await reader.survey(nvml.addresses())
    nvml.action("nvmlDeviceGetHandleByPciBusId_v2", "")

    survey = await reader.survey(nvml.addresses())

    assert {gpu.error for gpu in lost.gpus} == {"GPU_IS_LOST"}
    assert survey.complete
    assert worker_pid(reader) != pid


def test_the_worker_dies_with_its_agent_even_in_a_call(nvml: FakeNvml) -> None:
    """kill -9 of the agent leaves no worker that sleeps in an ordinary call."""
    nvml.action("nvmlDeviceGetSerial", "hang", gpu=0)
    with agent(nvml, deadline_s=60.0) as process:
        pid = int(process.stdout.readline())
        process.kill()
        process.wait()

    until = time.monotonic() + 20
    while lives(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not lives(pid)


# Uninterruptible sleep.

AGENT = """
import asyncio, json, os, sys, threading, time
from outlast.adapters.clock import SystemClock
from outlast.adapters.nvml.reader import NvmlReader

async def main():
    reader = NvmlReader(clock=SystemClock(), poll_deadline_s=float(sys.argv[1]), retry_first_s=0.05)
    addresses = tuple(sys.argv[3:])
    lags = []
    async def tick():
        while True:
            start = time.monotonic()
            await asyncio.sleep(0.005)
            lags.append(time.monotonic() - start)
    async with asyncio.TaskGroup() as group:
        ticker = group.create_task(tick())
        for number in range(int(sys.argv[2])):
            survey = group.create_task(reader.survey(addresses))
            while number == 0 and reader._worker is None and not survey.done():
                await asyncio.sleep(0.001)
            if number == 0 and reader._worker is not None:
                print(reader._worker.pid, flush=True)
            answer = await survey
            print(json.dumps({
                "problem": answer.problem, "gpu": answer.problem_gpu, "read": len(answer.gpus),
                "leaked": answer.leaked_workers, "threads": threading.active_count(),
                "lag_s": max(lags, default=0),
            }), flush=True)
        ticker.cancel()

asyncio.run(main())
"""


class agent:  # noqa: N801 - reads as a function
    """An agent process that surveys so many times and ends."""

    def __init__(self, nvml: FakeNvml, *, deadline_s: float = DEADLINE_S, surveys: int = 1) -> None:
        self._command = [sys.executable, "-c", AGENT, str(deadline_s), str(surveys), *nvml.addresses()]
        self._environment = {**os.environ, **nvml.environment}

    def __enter__(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


def run_agent(nvml: FakeNvml, *, surveys: int = 1) -> tuple[list[dict[str, object]], float]:
    """What it found, and how long it took to end after the last answer."""
    with agent(nvml, surveys=surveys) as process:
        lines: list[str] = []
        while len([line for line in lines if line.startswith("{")]) < surveys:
            line = process.stdout.readline()
            assert line, "the agent ended too early"
            lines.append(line)
        answered_s = time.monotonic()
        assert process.wait(timeout=20) == 0
        return [json.loads(line) for line in lines if line.startswith("{")], time.monotonic() - answered_s


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[FrozenMount]:
    """A file system on which a write sleeps where no signal reaches."""
    with frozen_mount(tmp_path) as mount:
        yield mount
        mount.thaw()
        until = time.monotonic() + 20
        while leaked_workers() and time.monotonic() < until:
            time.sleep(0.05)


needs_freezing = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.mark.root
@needs_freezing
def test_a_worker_in_uninterruptible_sleep_is_left_behind_counted_and_capped(
    nvml: FakeNvml, frozen: FrozenMount
) -> None:
    """The agent answers in time and ends at once; later agents see what is stuck, and stop adding to it."""
    nvml.action("nvmlDeviceGetSerial", f"dstate:{frozen.trap}", gpu=2)

    (first, second), end_s = run_agent(nvml, surveys=2)

    assert (first["problem"], first["gpu"], first["read"]) == ("Hung", nvml.address(2), 2)
    assert first["leaked"] == 1
    assert (second["problem"], second["gpu"], second["read"]) == ("Hung", nvml.address(2), 3)
    assert {answer["threads"] for answer in (first, second)} == {1}
    assert max(first["lag_s"], second["lag_s"]) < DEADLINE_S / 2
    assert end_s < 5

    (restarted,), _ = run_agent(nvml)
    assert (restarted["problem"], restarted["leaked"]) == ("Hung", 2)

    (refused,), _ = run_agent(nvml)
    assert (refused["problem"], refused["leaked"], refused["read"]) == ("TooManyLeakedWorkers", 2, 0)

    frozen.thaw()
    until = time.monotonic() + 20
    while leaked_workers() and time.monotonic() < until:
        time.sleep(0.05)
    nvml.action("nvmlDeviceGetSerial", "", gpu=2)
    (recovered,), _ = run_agent(nvml)
    assert (recovered["problem"], recovered["read"], recovered["leaked"]) == (None, 4, 0)


@pytest.mark.root
@needs_freezing
@in_a_loop
async def test_release_says_when_it_could_not_let_go(nvml: FakeNvml, make: Make, frozen: FrozenMount) -> None:
    """A reset must not be tried while a stuck process of ours holds the GPU; no thread waits for it."""
    threads_before = threading.active_count()
    reader = make(proc=Path("/proc"))
    nvml.action("nvmlDeviceGetSerial", f"dstate:{frozen.trap}", gpu=2)
    await reader.survey(nvml.addresses())

    assert not await reader.release()
    assert threading.active_count() == threads_before

    frozen.thaw()
    async with asyncio.timeout(20):
        while not await reader.release():
            await asyncio.sleep(0.05)
