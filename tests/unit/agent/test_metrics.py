"""The agent's metrics, read with Prometheus' own parser: complete, honest, bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from outlast.adapters.linux.own_process import OwnProcess, own_process
from outlast.agent.metrics import METRICS, SERIES_MAX, Sight, page
from outlast.agent.telemetry import SURVEY_LIMIT_S, Telemetry
from outlast.cli.metrics import document
from outlast.health.verdict import Judgement, JudgeState
from outlast.model.health import Gpu, GpuIdentity, NodeHealthStatus
from outlast.model.metrics import LABEL_VALUE_MAX, Shape
from outlast.model.names import AGENT_CONDITIONS, GPU_READY
from outlast.model.observation import GpuSurvey, KernelLogGap, Survey, SurveyProblem
from tests.unit.agent.rig import Rig, rig


class HandClock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self._now_s = 1000.0

    def now(self) -> datetime:
        """Wall time."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._now_s)

    def monotonic(self) -> float:
        """Seconds."""
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        """Not to be waited for."""
        raise AssertionError(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
HERE = OwnProcess(40_000_000, 1.5)


def parsed(text: bytes) -> Samples:
    """Every sample, by name and labels; none twice."""
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, key
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def of(there: Rig) -> Samples:
    agent = there.agents[-1]
    now_s = there.clock.monotonic()
    return parsed(page(Sight(agent.telemetry, agent.judgement, False, own_process(), now_s)))


@pytest.mark.asyncio
async def test_a_running_agent_shows_what_it_published() -> None:
    """Conditions, GPUs, surveys and writes agree with what the API server was told."""
    async with rig() as there, there.running():
        await there.until_condition(GPU_READY, "True")
        found = of(there)
        assert value(found, "outlast_node_condition", type="GPUReady", status="true") == 1
        assert value(found, "outlast_node_condition", type="GPUReady", status="false") == 0
        assert {labels for name, labels in found if name == "outlast_gpu_present"} == {
            frozenset({("gpu", address)}) for address in there.hardware.gpus
        }
        assert value(found, "outlast_api_writes_total", object="conditions", result="ok") >= 1
        assert value(found, "outlast_event_to_condition_seconds_count") >= 1
        assert value(found, "outlast_survey_duration_seconds_count", source="NVML") >= 1
        assert value(found, "outlast_kernel_log_readable") == 1
        assert value(found, "process_resident_memory_bytes") > 1e6

        there.xid(1, 79, "GPU has fallen off the bus.")
        await there.until_condition(GPU_READY, "False")

        found = of(there)
        assert value(found, "outlast_node_condition", type="GPUReady", status="false") == 1
        assert value(found, "outlast_faults_open", **{"class": "RebootCures", "subsystem": "GPU"}) == 1
        assert value(found, "outlast_gpu_faults", gpu=there.gpu(1)) == 1
        assert value(found, "outlast_gpu_faults", gpu=there.gpu(0)) == 0


def test_before_the_first_look_nothing_is_claimed() -> None:
    """No condition, no time of a check, no readable log: absent, not zero."""
    clock = HandClock()
    found = parsed(page(Sight(Telemetry(clock), None, False, HERE, clock.monotonic())))
    names = {name for name, _ in found}
    assert not names & {
        "outlast_node_condition",
        "outlast_last_check_timestamp_seconds",
        "outlast_kernel_log_readable",
    }
    assert value(found, "outlast_quiesced") == 0


class Odd(StrEnum):
    """Problems of a source that has far too many."""

    A = 'quo"te'
    B = "back\\slash"
    C = "line\nbreak"
    D = "{}"


def test_a_hostile_machine_makes_no_more_series_than_the_table_says() -> None:
    """A thousand sources, problems, GPUs and errors with any text: bounded, escaped, still one valid page."""

    class Foreign(Survey, frozen=True, kw_only=True):
        source: ClassVar[str] = "x"
        problem: Odd | None = None

    clock = HandClock()
    telemetry = Telemetry(clock)
    for number in range(1000):
        name = f'{number}"}} 1\nouch{{a="\\' + "\udcff" * 300
        made = type("Foreign", (Foreign,), {"source": name}, frozen=True)
        for problem in (None, *Odd):
            telemetry.surveyed(made(problem=problem), 0.1)
        telemetry.wrote(name, name)
        telemetry.heard(KernelLogGap(lost=3, reason=name))
    gpus = tuple(
        Gpu(identity=GpuIdentity(pci_address=f'"\n{number}', uuid='\\"\n' * 500)) for number in range(1000)
    )
    status = NodeHealthStatus(gpus=gpus, checked_at=datetime(2026, 1, 1, tzinfo=UTC))
    judgement = Judgement(state=JudgeState(version=1), status=status, conditions=())

    text = page(Sight(telemetry, judgement, True, HERE, clock.monotonic()))

    found = parsed(text)
    assert len(found) <= SERIES_MAX < 500
    table = {metric.name: set(metric.labels) for metric in METRICS}
    for name, labels in found:
        base = name.removesuffix("_sum").removesuffix("_count")
        assert {label for label, _ in labels} == table[base]
        assert all(len(text) <= LABEL_VALUE_MAX for _, text in labels)
    assert len(text) < 128 * 1024


def test_a_failed_survey_counts_and_grows_old() -> None:
    """The age is that of the last answer, the failure says its kind."""
    clock = HandClock()
    telemetry = Telemetry(clock)
    telemetry.surveyed(GpuSurvey(complete=True), 0.2)
    clock.advance(60)
    telemetry.surveyed(GpuSurvey(problem=SurveyProblem.HUNG, leaked_workers=1), 5.0)
    found = parsed(page(Sight(telemetry, None, False, HERE, clock.monotonic())))
    assert value(found, "outlast_survey_age_seconds", source="NVML") == 60
    assert value(found, "outlast_survey_failures_total", source="NVML", problem="Hung") == 1
    assert value(found, "outlast_survey_duration_seconds_sum", source="NVML") == pytest.approx(5.2)


def test_a_loop_that_does_not_turn_is_named() -> None:
    """In its time it is well; past it, it is not; a hang of the machine inside its deadline is no illness."""
    clock = HandClock()
    telemetry = Telemetry(clock)
    telemetry.alive("gpu poll", SURVEY_LIMIT_S)
    telemetry.alive("judge", None)
    clock.advance(SURVEY_LIMIT_S - 1)
    assert telemetry.health() == (True, "every loop turns\n")
    clock.advance(2)
    well, text = telemetry.health()
    assert not well
    assert "gpu poll" in text


def test_names_follow_the_conventions() -> None:
    """Counters end in _total, times in seconds, sizes in bytes; every name is ours or the standard's."""
    for metric in METRICS:
        assert metric.name.startswith(("outlast_", "process_"))
        assert (metric.shape is Shape.COUNTER) == metric.name.endswith("_total")
        assert not metric.name.endswith(("_ms", "_milliseconds", "_mb"))
        assert metric.about.endswith(".")
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert len(AGENT_CONDITIONS) * 3 == next(
        m.series_max for m in METRICS if m.name == "outlast_node_condition"
    )


def test_the_page_in_docs_is_the_table() -> None:
    """`python -m outlast.cli.metrics > docs/metrics.md`."""
    assert (Path(__file__).parents[3] / "docs/metrics.md").read_text() == document()
    assert msgspec.structs.fields(type(METRICS[0]))
