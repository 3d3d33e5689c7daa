"""5,000 nodes of 15 KB into a cache: time beside a bare curl of the same list, and peak memory.

A real API server on loopback. Each measurement is a process of its own; ours and curl's run one after
the other and the ratio is taken pair by pair, so that other work on the machine hits both.
`python -m benchmarks.cache_load` prints the rows.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.report import Row, Section
from outlast.adapters.clock import SystemClock
from outlast.adapters.kubernetes import KubernetesCluster, Limits, find_access
from outlast.adapters.kubernetes.cache import WatchCache
from outlast.model.cluster import NODES, Node
from outlast.ports.cluster import Change, Synced

NODE_COUNT = 5000
REPEATS = 7
CREATES_IN_FLIGHT = 48
PEAK_GOAL_MB = 100
RATIO_GOAL = 1.5
DEADLINE_S = 120.0
STREAM = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"


def run() -> Section:
    """Start an API server, fill it, measure."""
    from tests.controlplane import binaries
    from tests.controlplane.plane import Plane, PlaneOptions

    if shutil.which("curl") is None:
        raise RuntimeError("needs curl to compare with: apt-get install curl")
    with Plane(binaries.obtain(), PlaneOptions(controllers=False)) as plane:
        kubeconfig = plane.kubeconfig
        asyncio.run(_fill(kubeconfig))
        headers = [f"{name}: {value}" for name, value in plane.admin.headers()]
        curl = Curl(plane.admin.url, str(plane.admin.ca_file), headers)
        body_bytes = curl.body_bytes()
        figures = _measure(kubeconfig, curl)
    return _section(figures, body_bytes)


class Curl:
    """The floor: the same bytes, read and thrown away."""

    def __init__(self, url: str, ca_file: str, headers: list[str]) -> None:
        # HTTP/1.1 as ours: with HTTP/2 curl is two to three times slower here, which would flatter us.
        # And not as curl: an API server indents its JSON for a user agent that begins with curl.
        self._base = ["curl", "-sSN", "--http1.1", "--fail", "-A", "outlast-benchmark", "--cacert", ca_file]
        for header in headers:
            self._base += ["-H", header]
        self._url = f"{url}/api/v1/nodes"

    def body_bytes(self) -> int:
        answer = subprocess.run([*self._base, self._url], stdout=subprocess.PIPE, check=True)
        return len(answer.stdout)

    def streaming_s(self) -> float:
        """Until the mark that ends a streaming list."""
        begun = time.perf_counter()
        with subprocess.Popen([*self._base, f"{self._url}?{STREAM}"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            subprocess.run(["grep", "-m1", "-q", "initial-events-end"], stdin=process.stdout, check=True)
            took_s = time.perf_counter() - begun
            process.kill()
        return took_s

    def paged_s(self) -> float:
        """Pages of 500 through one connection; the tokens are taken first, outside of the time."""
        urls = [f"{self._url}?limit=500"]
        while token := self._token(urls[-1]):
            urls.append(f"{self._url}?limit=500&continue={token}")
        begun = time.perf_counter()
        # Compressed, as our client asks for pages: the same request, the same bytes on the wire.
        subprocess.run([*self._base, "--compressed", *urls], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - begun

    def whole_s(self) -> float:
        """The whole list as one body."""
        begun = time.perf_counter()
        subprocess.run([*self._base, self._url], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - begun

    def _token(self, url: str) -> str:
        answer = subprocess.run([*self._base, url], stdout=subprocess.PIPE, check=True)
        return str(json.loads(answer.stdout)["metadata"].get("continue", ""))


def _measure(kubeconfig: Path, curl: Curl) -> dict[str, list[dict[str, float]]]:
    ways: dict[str, Callable[[], dict[str, float]]] = {
        "streaming": lambda: _child(kubeconfig, "streaming"),
        "curl streaming": lambda: {"s": curl.streaming_s()},
        "paged": lambda: _child(kubeconfig, "paged"),
        "curl paged": lambda: {"s": curl.paged_s()},
        "curl whole": lambda: {"s": curl.whole_s()},
    }
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, way in ways.items():
            figures[name].append(way())
    return figures


def _section(figures: dict[str, list[dict[str, float]]], body_bytes: int) -> Section:
    def mid(way: str, key: str = "s") -> float:
        return median(figure[key] for figure in figures[way])

    def beside(way: str, floor: str) -> float:
        return median(a["s"] / b["s"] for a, b in zip(figures[way], figures[floor], strict=True))

    peak_mb = max(figure["peak_mb"] for figure in figures["streaming"])
    ratio = beside("streaming", "curl streaming")
    paged_ratio = beside("paged", "curl paged")
    rows = (
        Row(
            "peak RSS of the process, streaming list",
            f"{peak_mb:.0f} MB",
            f"< {PEAK_GOAL_MB} MB",
            peak_mb < PEAK_GOAL_MB,
            f"{mid('streaming', 'before_mb'):.0f} MB before the list",
        ),
        Row(
            "time to a complete cache / curl of the same streaming list",
            f"{ratio:.2f} x",
            f"< {RATIO_GOAL} x",
            ratio < RATIO_GOAL,
            f"{mid('streaming'):.2f} s / {mid('curl streaming'):.2f} s",
        ),
        Row("processor time of our process for the streaming list", f"{mid('streaming', 'cpu_s'):.2f} s"),
        Row("first object in the cache", f"{mid('streaming', 'first_s') * 1000:.0f} ms"),
        Row(
            "fallback: pages of 500 / curl of the same pages",
            f"{paged_ratio:.2f} x",
            f"< {RATIO_GOAL} x",
            paged_ratio < RATIO_GOAL,
            f"{mid('paged'):.2f} s / {mid('curl paged'):.2f} s, "
            f"peak {max(f['peak_mb'] for f in figures['paged']):.0f} MB",
        ),
        Row(
            "beside curl of one whole body",
            f"{beside('streaming', 'curl whole'):.2f} x",
            note=f"{mid('curl whole'):.2f} s; needs the whole body in memory, which is why it is not done",
        ),
    )
    return Section(
        name="cache_load",
        title="5,000 nodes into the cache",
        method=(
            f"{NODE_COUNT} Nodes, {body_bytes / NODE_COUNT / 1000:.1f} KB each as JSON, in a real "
            "kube-apiserver on the same machine. Typed decode into a cache; medians over "
            f"{REPEATS} pairs of processes, ours and curl's one after the other."
        ),
        rows=rows,
    )


def _child(kubeconfig: Path, way: str) -> dict[str, float]:
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.cache_load", "child", str(kubeconfig), way],
        stdout=subprocess.PIPE,
        check=True,
        timeout=DEADLINE_S,
    )
    figures: dict[str, float] = json.loads(answer.stdout)
    return figures


async def _load(kubeconfig: str, way: str) -> dict[str, float]:
    """In a process of its own: follow until the list is complete."""
    clock = SystemClock()
    async with KubernetesCluster(find_access(kubeconfig), clock=clock, rng=Random(1)) as cluster:
        cache: WatchCache[Node] = cluster.cache(NODES)
        cache.can_stream_lists = way == "streaming"
        first: list[float] = []
        done = asyncio.Event()

        def on_change(change: Change) -> None:
            if isinstance(change, Synced):
                done.set()
            elif not first:
                first.append(time.perf_counter())

        before_mb = _peak_mb()
        begun, cpu_s = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cache.run(on_change))
            await done.wait()
            took_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
            task.cancel()
        assert len(cache.values()) == NODE_COUNT
        return {
            "s": took_s,
            "cpu_s": cpu_s,
            "first_s": first[0] - begun,
            "before_mb": before_mb,
            "peak_mb": _peak_mb(),
        }


def _peak_mb() -> float:
    # Not ru_maxrss: that one is inherited from the process that started us.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("the kernel tells no peak memory (VmHWM)")


async def _fill(kubeconfig: Path) -> None:
    from tests.controlplane.machines import Machine, node_object, node_status

    gate = asyncio.Semaphore(CREATES_IN_FLIGHT)
    # Filling is not measured; a create may wait its turn for as long as it needs.
    limits = Limits(request_deadline_s=60.0)
    async with KubernetesCluster(
        find_access(kubeconfig), clock=SystemClock(), rng=Random(1), limits=limits
    ) as cluster:

        async def create(number: int) -> None:
            machine = Machine(name=f"node-{number:05d}", padded=True)
            body: dict[str, Any] = {**node_object(machine), "status": node_status(machine)}
            async with gate:
                await cluster.create(NODES, body)

        async with asyncio.TaskGroup() as group:
            for number in range(NODE_COUNT):
                group.create_task(create(number))


def main(argv: list[str]) -> None:
    if argv[:1] == ["child"]:
        print(json.dumps(asyncio.run(_load(argv[1], argv[2]))))
        return
    section = run()
    print(section.title, "-", section.method)
    for row in section.rows:
        verdict = {True: "met", False: "MISSED", None: ""}[row.met]
        print(f"{row.figure:62} {row.value:>9} {row.goal:>9} {verdict:7} {row.note}")


if __name__ == "__main__":
    main(sys.argv[1:])
