"""Every metric of the agent in one table, and their values now. `python -m outlast.cli.metrics` writes docs.

Little per GPU on purpose: temperatures and clocks are dcgm-exporter's. GPUs are named by PCI address, which
neither moves like an index nor is unknown while NVML is away; `outlast_gpu_info` joins it with the UUID.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import outlast
from outlast.adapters.linux.own_process import OwnProcess, own_process
from outlast.adapters.metrics_page import MetricsPage, parse_address
from outlast.model.health import GPUS_MAX, FaultClass, FaultState, Subsystem
from outlast.model.metrics import Family, Metric, Series, Shape, render, single

if TYPE_CHECKING:
    from outlast.agent.agent import Agent
    from outlast.agent.telemetry import Telemetry
    from outlast.health.verdict import Judgement
    from outlast.ports.clock import Clock

SOURCES_MAX: Final = 16
PROBLEMS_MAX: Final = 64
OBJECTS: Final = ("conditions", "nodehealth", "lease")
RESULTS_MAX: Final = 24
_STATUS: Final = {"Healthy": "true", "Faulty": "false", "Unknown": "unknown"}

BUILD_INFO: Final = Metric(
    name="outlast_build_info",
    shape=Shape.GAUGE,
    about="Always 1; the version is a label.",
    labels=("version",),
)
CONDITION: Final = Metric(
    name="outlast_node_condition",
    shape=Shape.GAUGE,
    about="1 for the status (true, false, unknown) that each of our node conditions has, 0 for the others.",
    labels=("type", "status"),
    series_max=3 * len(Subsystem),
)
FAULTS: Final = Metric(
    name="outlast_faults_open",
    shape=Shape.GAUGE,
    about="Faults that stand, by the cure they need and the subsystem; pairs without one are left out.",
    labels=("class", "subsystem"),
    series_max=len(FaultClass) * len(Subsystem),
)
AWAITING: Final = Metric(
    name="outlast_faults_awaiting_proof",
    shape=Shape.GAUGE,
    about="Faults that nothing has confirmed lately and nothing has cleared.",
)
CHECKED: Final = Metric(
    name="outlast_last_check_timestamp_seconds",
    shape=Shape.GAUGE,
    about="When the last full check of this boot completed; absent until there was one.",
)
QUIESCED: Final = Metric(
    name="outlast_quiesced",
    shape=Shape.GAUGE,
    about="1 while the GPUs are left alone on request, 0 otherwise.",
)
RECORDS: Final = Metric(
    name="outlast_kernel_log_records_total", shape=Shape.COUNTER, about="Records read from the kernel log."
)
LOST: Final = Metric(
    name="outlast_kernel_log_lost_records_total",
    shape=Shape.COUNTER,
    about="Records that were overwritten before they were read, at least.",
)
LOG_READABLE: Final = Metric(
    name="outlast_kernel_log_readable",
    shape=Shape.GAUGE,
    about="1 while the kernel log can be read, 0 while not; absent until it was tried.",
)
DURATION: Final = Metric(
    name="outlast_survey_duration_seconds",
    shape=Shape.SUMMARY,
    about="How long the surveys of a source took.",
    labels=("source",),
    series_max=SOURCES_MAX,
)
FAILURES: Final = Metric(
    name="outlast_survey_failures_total",
    shape=Shape.COUNTER,
    about="Surveys in which the source itself failed, by kind of failure.",
    labels=("source", "problem"),
    series_max=PROBLEMS_MAX,
)
AGE: Final = Metric(
    name="outlast_survey_age_seconds",
    shape=Shape.GAUGE,
    about="Seconds since a source last answered without a failure of its own; since the start, if never.",
    labels=("source",),
    series_max=SOURCES_MAX,
)
LEAKED: Final = Metric(
    name="outlast_nvml_leaked_workers",
    shape=Shape.GAUGE,
    about="NVML workers of any agent in this boot that hang in the driver and cannot be ended.",
)
WRITES: Final = Metric(
    name="outlast_api_writes_total",
    shape=Shape.COUNTER,
    about="Writes to the API server, by object and how they ended: ok, or the kind of error.",
    labels=("object", "result"),
    series_max=RESULTS_MAX,
)
PUBLISHING: Final = Metric(
    name="outlast_event_to_condition_seconds",
    shape=Shape.SUMMARY,
    about="From a verdict that changed to its condition on the Node.",
)
GPU_INFO: Final = Metric(
    name="outlast_gpu_info",
    shape=Shape.GAUGE,
    about="Always 1; who is at a PCI address.",
    labels=("gpu", "uuid"),
    series_max=GPUS_MAX,
)
GPU_PRESENT: Final = Metric(
    name="outlast_gpu_present",
    shape=Shape.GAUGE,
    about="1 for a GPU that is on the bus and answers, 0 for one that was there before.",
    labels=("gpu",),
    series_max=GPUS_MAX,
)
GPU_FAULTS: Final = Metric(
    name="outlast_gpu_faults",
    shape=Shape.GAUGE,
    about="Faults of a GPU, also those that wait for proof.",
    labels=("gpu",),
    series_max=GPUS_MAX,
)
MEMORY: Final = Metric(
    name="process_resident_memory_bytes",
    shape=Shape.GAUGE,
    about="Resident memory, without workers.",
)
CPU: Final = Metric(
    name="process_cpu_seconds_total",
    shape=Shape.COUNTER,
    about="Processor time, without workers.",
)
START: Final = Metric(name="process_start_time_seconds", shape=Shape.GAUGE, about="When the agent started.")

METRICS: Final = (
    *(BUILD_INFO, CONDITION, FAULTS, AWAITING, CHECKED, QUIESCED, RECORDS, LOST, LOG_READABLE, DURATION),
    *(FAILURES, AGE, LEAKED, WRITES, PUBLISHING, GPU_INFO, GPU_PRESENT, GPU_FAULTS, MEMORY, CPU, START),
)
SERIES_MAX: Final = sum(m.series_max * (2 if m.shape is Shape.SUMMARY else 1) for m in METRICS)
"""The most series that one agent can show, whatever its machine does."""


class Sight(NamedTuple):
    """What the page is made of."""

    telemetry: Telemetry
    judgement: Judgement | None
    quiesced: bool
    process: OwnProcess
    now_s: float


def served(address: str, agent: Agent, clock: Clock) -> MetricsPage:
    """The page of a running agent. Raises ValueError for an address that is none."""

    def now() -> bytes:
        quiesced = agent.quiesce.status is not None
        return page(Sight(agent.telemetry, agent.judgement, quiesced, own_process(), clock.monotonic()))

    return MetricsPage(parse_address(address), clock=clock, page=now, health=agent.telemetry.health)


def page(sight: Sight) -> bytes:
    """The page for Prometheus."""
    values = dict(_values(sight))
    return render(Family(metric, values[metric.name]) for metric in METRICS if metric.name in values)


def _values(sight: Sight) -> Iterator[tuple[str, Series]]:
    telemetry, judgement, quiesced, process, now_s = sight
    yield BUILD_INFO.name, (((outlast.__version__,), 1),)
    if judgement is not None:
        yield from _judged(judgement)
    yield QUIESCED.name, single(quiesced)
    yield RECORDS.name, single(telemetry.records)
    yield LOST.name, single(telemetry.lost_records)
    if telemetry.log_readable is not None:
        yield LOG_READABLE.name, single(telemetry.log_readable)
    yield DURATION.name, telemetry.surveys.items()
    yield FAILURES.name, telemetry.survey_failures.items()
    answered_s = telemetry.answered_s
    ages = (
        (source, max(0.0, now_s - answered_s.get(source, telemetry.started_s)))
        for source in telemetry.surveys
    )
    yield AGE.name, ages
    yield LEAKED.name, single(telemetry.leaked_workers)
    yield WRITES.name, telemetry.writes.items()
    yield PUBLISHING.name, single(telemetry.publishing)
    yield MEMORY.name, single(process.memory_bytes)
    yield CPU.name, single(process.cpu_s)
    yield START.name, single(telemetry.started_at.timestamp())


def _judged(judgement: Judgement) -> Iterator[tuple[str, Series]]:
    status, faults = judgement.status, judgement.state.faults
    statuses = (
        ((entry.subsystem.condition_type, word), word == _STATUS[entry.verdict])
        for entry in status.verdicts
        for word in _STATUS.values()
    )
    yield CONDITION.name, statuses
    stands = Counter(
        (fault.fault_class.value, fault.root.subsystem.value)
        for fault in faults
        if fault.state is FaultState.OPEN
    )
    yield FAULTS.name, stands.items()
    yield AWAITING.name, single(len(faults) - stands.total())
    if status.checked_at is not None:
        yield CHECKED.name, single(status.checked_at.timestamp())
    gpus = [gpu.identity for gpu in status.gpus]
    yield GPU_INFO.name, (((gpu.pci_address, gpu.uuid), 1) for gpu in gpus)
    yield GPU_PRESENT.name, (((gpu.identity.pci_address,), gpu.present) for gpu in status.gpus)
    faulty = Counter(fault.gpu.pci_address for fault in faults if fault.gpu is not None)
    yield GPU_FAULTS.name, (((gpu.pci_address,), faulty[gpu.pci_address]) for gpu in gpus)
