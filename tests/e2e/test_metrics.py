"""The metrics of the agent's process, scraped as Prometheus would, while NVML works and while it hangs."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outlast.model.names import GPU_MONITOR_READY, GPU_READY
from tests.e2e.test_agent_process import EIGHT_GPUS, eventually, place, running


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def fetch(port: int, path: str) -> tuple[int, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return answer.status, answer.read().decode()


def samples(port: int) -> dict[str, float]:
    """Samples without the labels that only say which machine it is."""
    found = {}
    for family in text_string_to_metric_families(fetch(port, "/metrics")[1]):
        for sample in family.samples:
            labels = ",".join(sorted(v for k, v in sample.labels.items() if k not in ("gpu", "uuid")))
            found[f"{sample.name}[{labels}]"] = sample.value
    return found


@pytest.mark.asyncio
async def test_a_hung_driver_shows_in_the_metrics_and_makes_nobody_restart_the_agent(tmp_path: Path) -> None:
    """/metrics answers at once and says Hung; /healthz goes on being 200, for the agent itself is well."""
    port = free_port()
    async with place(tmp_path) as there:
        extra = (*EIGHT_GPUS, "--metrics-address", f"127.0.0.1:{port}")
        async with running(there, *extra):
            await there.until(GPU_READY, "True")
            first = await asyncio.to_thread(samples, port)
            assert first["outlast_node_condition[GPUReady,true]"] == 1
            assert first["outlast_survey_duration_seconds_count[NVML]"] >= 1
            assert first["outlast_api_writes_total[conditions,ok]"] >= 1
            assert 20e6 < first["process_resident_memory_bytes[]"] < 80e6

            there.nvml.action("nvmlDeviceGetUUID", "hang", gpu=0)
            await there.until(GPU_MONITOR_READY, "False", "DiagnosticsHung")

            async def told() -> bool:
                found = await asyncio.to_thread(samples, port)
                return (
                    found["outlast_node_condition[GPUMonitorReady,false]"] == 1
                    and found.get("outlast_survey_failures_total[Hung,NVML]", 0) >= 1
                    and found["outlast_faults_open[Monitor,MonitorHung]"] == 1
                )

            await eventually(told)
            assert await asyncio.to_thread(fetch, port, "/healthz") == (200, "every loop turns\n")
