"""What outlast costs to run: the agent's memory and idle processor time, the controller's memory, the start.

Memory is as the kernel counts it (smaps_rollup); processor time is from /proc/PID/stat over a minute in which
nothing happens. All on a real kube-apiserver, with production defaults.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from tests.controlplane.installation import LEADER_LEASE, Installation
from tests.controlplane.processes import Program, Reaper
from tests.controlplane.wire import Wire
from tests.dcgm import FakeDcgmi, recorded
from tests.nvml import FakeNvml
from tests.rdma_tree import RdmaTree

from benchmarks import fleet
from benchmarks.kernel_line import Box
from benchmarks.report import Row, Section

Json = dict[str, Any]

RDMA_DEVICES = 32
SCRAPE_S = 15.0
CHROOT = '#!/bin/sh\nroot=$1; program=$2; shift 2; exec "$root$program" "$@"\n'
HELPERS = ("NVML worker", "outlast-files")
SOURCES = ("NVML", "PCI", "RDMA", "processes", "host", "DCGM", "DCGM exporter")
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


class FullBox(Box):
    """A machine with every source there is: EFA devices, DCGM with its exporter, metrics that are scraped."""

    def __init__(self, installation: Installation, folder: Path, name: str, keeper: Reaper) -> None:
        super().__init__(installation, folder, name, keeper)
        rdma = RdmaTree(self._sysfs)
        for number in range(RDMA_DEVICES):
            rdma.add_efa(f"rdmap{number}s0", f"0000:{0xA0 + number // 8:02x}:{number % 8:02x}.0")
        dcgmi = FakeDcgmi(self._folder)
        there = self._folder / "usr/bin/dcgmi"
        there.parent.mkdir(parents=True)
        there.write_text(f'#!/bin/sh\nexec {dcgmi.path} "$@"\n')
        there.chmod(0o755)
        programs = self._folder / "programs"
        programs.mkdir()
        # The fake machine has no shell of its own that the fake tool could run with.
        (programs / "chroot").write_text(
            '#!/bin/sh\nroot=$1; program=$2; shift 2; exec "$root$program" "$@"\n'
        )
        (programs / "chroot").chmod(0o755)
        self._environment["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self._exporter = ThreadingHTTPServer(("127.0.0.1", 0), _ExporterPage)
        threading.Thread(target=self._exporter.serve_forever, daemon=True).start()
        self._argv += ["--dcgm-exporter", f"http://127.0.0.1:{self._exporter.server_port}/metrics"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.metrics_port = free.getsockname()[1]
        self._argv += ["--metrics-address", f"127.0.0.1:{self.metrics_port}", "--proc-root", "/proc"]

    def scrape(self) -> str:
        """What Prometheus would read."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as page:
            return str(page.read().decode())

    def close(self) -> None:
        """Give everything back."""
        self.down()
        self._exporter.shutdown()
        self._exporter.server_close()


def exporter_page() -> bytes:
    """What dcgm-exporter says of the machine: the recorded lines of one good GPU, for each of ours."""
    lines = recorded("exporter-h100.prom").decode().splitlines()
    good = [line for line in lines if 'gpu="1"' in line]
    page = [line for line in lines if line.startswith("#")]
    for number in range(fleet.GPUS):
        address = f"0000{FakeNvml.address(number)}".upper()
        for line in good:
            placed = re.sub(r'pci_bus_id="[^"]*"', f'pci_bus_id="{address}"', line)
            named = re.sub(r'UUID="[^"]*"', f'UUID="GPU-{number:08x}"', placed)
            page.append(named.replace('gpu="1"', f'gpu="{number}"'))
    return "\n".join(page).encode() + b"\n"


class _ExporterPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = exporter_page()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not into the report."""


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
        agent, helpers, tools = _agent(installation, Path(folder), keeper)
        controller = asyncio.run(_controller(installation, Path(folder), keeper))
    return Section(
        name="footprint",
        title="What it costs to run",
        method=(
            f"Agent: a machine with {fleet.GPUS} GPUs whose NVML is a C library of our own behind NVIDIA's "
            f"Python bindings, {RDMA_DEVICES} EFA devices in a /sys tree, a scripted dcgmi, a served page of "
            "dcgm-exporter, the /proc of this machine, metrics scraped every "
            f"{SCRAPE_S:.0f} s; production defaults, a kubeconfig in JSON so that no YAML parser is loaded "
            "(as with a pod's service account, which was not measured; in YAML it is about 1 MB more); "
            f"looked at {SETTLE_S + IDLE_S:.0f} s after it vouched for its node, processor time over the "
            f"last {IDLE_S:.0f} s. Controller: mode Enforce, elected, on a real kube-apiserver with "
            f"{CONTROLLER_NODES:,} Nodes of 15 KB, as many NodeHealth objects with {fleet.GPUS} GPUs each, "
            f"and as many Leases; looked at {CONTROLLER_SETTLE_S:.0f} s after it led, then left alone for "
            f"{CONTROLLER_IDLE_S:.0f} s. Start: median of {STARTS} processes."
        ),
        rows=(*_agent_rows(agent, helpers, tools), *_controller_rows(controller), *_start_rows()),
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


def _agent(installation: Installation, folder: Path, keeper: Reaper) -> tuple[Usage, dict[str, Usage], float]:
    """The agent, by name the helper processes that do for it what may hang, and percent spent in tools."""
    installation.admin.request("POST", fleet.NODES, fleet.node(0, "agent"))
    name = fleet.node(0, "agent")["metadata"]["name"]
    box = FullBox(installation, folder, name, keeper)
    box.boot()
    assert box.agent is not None
    try:
        _wait(box.agent, lambda: _vouched(installation, name))
        _wait(box.agent, lambda: _all_sources_answer(box))
        _settle(box, SETTLE_S)
        helpers = {_process_name(pid): pid for pid in fleet.children(box.agent.pid)}
        if set(helpers) != set(HELPERS):
            raise RuntimeError(f"the agent should have the helpers {HELPERS}, it has {sorted(helpers)}")
        before_s = {name: fleet.cpu_s(pid) for name, pid in helpers.items()}
        own_s, begun_s = fleet.cpu_s(box.agent.pid), time.monotonic()
        tools_s = fleet.cpu_s(box.agent.pid, with_dead_children=True) - own_s
        _settle(box, IDLE_S)
        took_s = time.monotonic() - begun_s

        def usage(pid: int, used_s: float) -> Usage:
            return Usage(fleet.memory_mb(pid), fleet.peak_mb(pid), 100 * used_s / took_s)

        agent_s = fleet.cpu_s(box.agent.pid)
        tools_s = fleet.cpu_s(box.agent.pid, with_dead_children=True) - agent_s - tools_s
        agent = usage(box.agent.pid, agent_s - own_s)
        used = {name: usage(pid, fleet.cpu_s(pid) - before_s[name]) for name, pid in helpers.items()}
    finally:
        box.close()
    # The policy of the controller's part would rule it too.
    installation.admin.request("DELETE", f"{fleet.NODES}/{name}")
    installation.admin.request("DELETE", f"{fleet.HEALTHS}/{name}")
    return agent, used, 100 * tools_s / took_s


def _settle(box: FullBox, seconds: float) -> None:
    """Let time pass, scraped as in a cluster."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        box.scrape()
        time.sleep(min(SCRAPE_S, left_s))


def _all_sources_answer(box: FullBox) -> bool:
    text = box.scrape()
    return all(f'outlast_survey_duration_seconds_count{{source="{source}"}}' in text for source in SOURCES)


def _process_name(pid: int) -> str:
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    words = Path(f"/proc/{pid}/cmdline").read_bytes()
    return "NVML worker" if b"nvml/worker.py" in words else name


def _vouched(installation: Installation, name: str) -> bool:
    conditions = installation.admin.get(f"{fleet.NODES}/{name}")["status"]["conditions"]
    return any(c["type"] == "GPUReady" and c["status"] == "True" for c in conditions)


def _agent_rows(agent: Usage, helpers: dict[str, Usage], tools_percent: float) -> tuple[Row, ...]:
    rss_mb = agent.memory["rss"]
    percent = agent.percent + sum(helper.percent for helper in helpers.values())
    parts = [f"agent {agent.percent:.2f} %"]
    parts += [f"{name} {helper.percent:.2f} %" for name, helper in sorted(helpers.items())]
    return (
        Row(
            "agent with all sources on, resident memory",
            f"{rss_mb:.1f} MB",
            f"< {AGENT_GOAL_MB} MB",
            rss_mb < AGENT_GOAL_MB,
            f"PSS {agent.memory['pss']:.1f} MB, peak {agent.peak_mb:.1f} MB",
        ),
        *(
            Row(
                f"its helper {name}, resident memory",
                f"{helper.memory['rss']:.1f} MB",
                note=f"PSS {helper.memory['pss']:.1f} MB; apart, so that what hangs takes only it",
            )
            for name, helper in sorted(helpers.items())
        ),
        Row(
            "agent and helpers, idle processor time",
            f"{percent:.2f} % of a core",
            f"< {AGENT_GOAL_PERCENT} %",
            percent < AGENT_GOAL_PERCENT,
            ", ".join(parts),
        ),
        Row(
            "tools that it starts (here a dcgmi of shell scripts), processor time",
            f"{tools_percent:.2f} % of a core",
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
