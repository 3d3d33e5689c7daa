"""What outlast costs to run: the agent's memory and idle processor time, the controller's memory, the start.

Memory is as the kernel counts it (smaps_rollup); processor time is from /proc/PID/stat over a minute in which
nothing happens. All on a real kube-apiserver, with production defaults.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.controlplane.installation import LEADER_LEASE, Installation
from tests.controlplane.processes import Program, Reaper
from tests.controlplane.wire import Wire

from benchmarks import fleet
from benchmarks.kernel_line import Box
from benchmarks.report import Row, Section

Json = dict[str, Any]

SETTLE_S = 30.0
"""After the agent has vouched for its node: caches are warm, the first writes are done."""
IDLE_S = 90.0
AGENT_GOAL_MB = 45
AGENT_GOAL_PERCENT = 0.3
CONTROLLER_NODES = 10_000
CONTROLLER_GOAL_MB = 500
CONTROLLER_SETTLE_S = 20.0
CONTROLLER_IDLE_S = 20.0
START_GOAL_S = 0.15
STARTS = 15
DEADLINE_S = 120.0
COMMANDS = (("--version",), ("--help",), ("xid", "79"))
WHY_SLOW = "; a verb loads the command-line parser, which --version and --help do without"


@dataclass(frozen=True)
class Usage:
    """One process at rest."""

    memory: dict[str, float]
    peak_mb: float
    percent: float


def run() -> Section:
    """Measure all three; about five minutes, most of it waiting."""
    with (
        tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder,
        fleet.reaper() as keeper,
        # Without the controller-manager, which has no part in it: it would treat each new Node for minutes.
        fleet.installed(controllers=False) as installation,
    ):
        agent, worker = _agent(installation, Path(folder), keeper)
        controller = asyncio.run(_controller(installation, Path(folder), keeper))
    return Section(
        name="footprint",
        title="What it costs to run",
        method=(
            f"Agent: a machine with {fleet.GPUS} GPUs whose NVML is a C library of our own behind NVIDIA's "
            "Python bindings, production defaults, a kubeconfig in JSON so that no YAML parser is loaded "
            "(as with a pod's service account, which was not measured; in YAML it is about 1 MB more); "
            f"looked at {SETTLE_S + IDLE_S:.0f} s after it vouched for its node, processor time over the "
            f"last {IDLE_S:.0f} s. Controller: mode Enforce, elected, on a real kube-apiserver with "
            f"{CONTROLLER_NODES:,} Nodes of 15 KB, as many NodeHealth objects with {fleet.GPUS} GPUs each, "
            f"and as many Leases; looked at {CONTROLLER_SETTLE_S:.0f} s after it led, then left alone for "
            f"{CONTROLLER_IDLE_S:.0f} s. Start: median of {STARTS} processes."
        ),
        rows=(*_agent_rows(agent, worker), *_controller_rows(controller), *_start_rows()),
    )


def _usage(pid: int, idle_s: float) -> Usage:
    before_s, begun_s = fleet.cpu_s(pid, with_dead_children=True), time.monotonic()
    time.sleep(idle_s)
    used_s = fleet.cpu_s(pid, with_dead_children=True) - before_s
    percent = 100 * used_s / (time.monotonic() - begun_s)
    return Usage(fleet.memory_mb(pid), fleet.peak_mb(pid), percent)


def _wait(program: Program, ready: Callable[[], bool]) -> None:
    program.wait_ready(ready, deadline_s=DEADLINE_S)


# -- agent --------------------------------------------------------------------------------------


def _agent(installation: Installation, folder: Path, keeper: Reaper) -> tuple[Usage, Usage]:
    """The agent, and the worker process that talks to the driver for it."""
    installation.admin.request("POST", fleet.NODES, fleet.node(0, "agent"))
    name = fleet.node(0, "agent")["metadata"]["name"]
    box = Box(installation, folder, name, keeper)
    box.boot()
    assert box.agent is not None
    try:
        _wait(box.agent, lambda: _vouched(installation, name))
        time.sleep(SETTLE_S)
        workers = fleet.children(box.agent.pid)
        if len(workers) != 1:
            raise RuntimeError(f"the agent should have one worker, it has {len(workers)}")
        worker_s, begun_s = fleet.cpu_s(workers[0]), time.monotonic()
        agent = _usage(box.agent.pid, IDLE_S)
        worker_percent = 100 * (fleet.cpu_s(workers[0]) - worker_s) / (time.monotonic() - begun_s)
        worker = Usage(fleet.memory_mb(workers[0]), fleet.peak_mb(workers[0]), worker_percent)
    finally:
        box.down()
    # The policy of the controller's part would rule it too.
    installation.admin.request("DELETE", f"{fleet.NODES}/{name}")
    installation.admin.request("DELETE", f"{fleet.HEALTHS}/{name}")
    return agent, worker


def _vouched(installation: Installation, name: str) -> bool:
    conditions = installation.admin.get(f"{fleet.NODES}/{name}")["status"]["conditions"]
    return any(c["type"] == "GPUReady" and c["status"] == "True" for c in conditions)


def _agent_rows(agent: Usage, worker: Usage) -> tuple[Row, ...]:
    rss_mb = agent.memory["rss"]
    percent = agent.percent + worker.percent
    return (
        Row(
            "agent, resident memory",
            f"{rss_mb:.1f} MB",
            f"< {AGENT_GOAL_MB} MB",
            rss_mb < AGENT_GOAL_MB,
            f"PSS {agent.memory['pss']:.1f} MB, peak {agent.peak_mb:.1f} MB",
        ),
        Row(
            "its NVML worker, resident memory",
            f"{worker.memory['rss']:.1f} MB",
            note=f"PSS {worker.memory['pss']:.1f} MB; apart, so that a hung driver takes only it",
        ),
        Row(
            "agent and worker, idle processor time",
            f"{percent:.2f} % of a core",
            f"< {AGENT_GOAL_PERCENT} %",
            percent < AGENT_GOAL_PERCENT,
            f"agent {agent.percent:.2f} %, worker {worker.percent:.2f} %",
        ),
    )


# -- controller ---------------------------------------------------------------------------------


async def _controller(installation: Installation, folder: Path, keeper: Reaper) -> Usage:
    async with Wire(installation.admin) as wire:
        await wire.request("POST", fleet.POLICIES, fleet.policy())
        await fleet.register(wire, CONTROLLER_NODES)
    return await asyncio.to_thread(_controller_usage, installation, folder, keeper)


def _controller_usage(installation: Installation, folder: Path, keeper: Reaper) -> Usage:
    name = "outlast-controller-footprint"
    program, _ = fleet.controller_process(installation, name, folder, keeper)
    program.start()
    try:
        _wait(program, lambda: _holder(installation) == name)
        _wait(program, lambda: _ruled(installation) == CONTROLLER_NODES)
        time.sleep(CONTROLLER_SETTLE_S)
        return _usage(program.pid, CONTROLLER_IDLE_S)
    finally:
        program.stop()


def _holder(installation: Installation) -> str:
    return str(installation.admin.get(LEADER_LEASE)["spec"].get("holderIdentity", ""))


def _ruled(installation: Installation) -> int:
    """How many nodes the controller says that its policy rules: proof that it has seen them all."""
    found = installation.admin.get(f"{fleet.POLICIES}/{fleet.POLICY}")
    return int(found.get("status", {}).get("nodes", 0))


def _controller_rows(controller: Usage) -> tuple[Row, ...]:
    rss_mb = controller.memory["rss"]
    return (
        Row(
            f"controller with {CONTROLLER_NODES:,} nodes, resident memory",
            f"{rss_mb:.0f} MB",
            f"< {CONTROLLER_GOAL_MB} MB",
            rss_mb < CONTROLLER_GOAL_MB,
            f"peak {controller.peak_mb:.0f} MB",
        ),
        Row(
            "the same, processor time while nothing changes",
            f"{controller.percent:.1f} % of a core",
        ),
    )


# -- start --------------------------------------------------------------------------------------


def _start_rows() -> tuple[Row, ...]:
    outlast = Path(sys.executable).with_name("outlast")
    rows = []
    bare_s = median(_start_s([sys.executable, "-c", "pass"]) for _ in range(STARTS))
    for arguments in COMMANDS:
        took_s = median(_start_s([str(outlast), *arguments]) for _ in range(STARTS))
        rows.append(
            Row(
                f"`outlast {' '.join(arguments)}`",
                f"{took_s * 1000:.0f} ms",
                f"< {START_GOAL_S * 1000:.0f} ms",
                took_s < START_GOAL_S,
                f"Python itself {bare_s * 1000:.0f} ms" + (WHY_SLOW if took_s >= START_GOAL_S else ""),
            )
        )
    return tuple(rows)


def _start_s(command: list[str]) -> float:
    begun_s = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env={**os.environ, "COLUMNS": "100"})
    return time.perf_counter() - begun_s
