"""What the embedded API server does in a second: one Python process, seen from another one.

For information: it carries the demo and fast tests, never a cluster.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from tests.controlplane.access import MERGE, Access
from tests.controlplane.wire import Wire

from benchmarks import fleet
from benchmarks.report import Row, Section

NODE_COUNT = 1000
PATCHES = 2000
WATCHERS = 4
IN_FLIGHT = 16
REPEATS = 3

Json = dict[str, Any]


def run() -> Section:
    """Start the server as a process of its own, measure from here."""
    found: dict[str, list[float]] = {"creates": [], "patches": [], "events": []}
    for _ in range(REPEATS):
        server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.embedded"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            url = server.stdout.readline().decode().strip()
            for name, rate in asyncio.run(_measure(Access(url))).items():
                found[name].append(rate)
        finally:
            server.stdin.close()
            server.wait(10)
    return Section(
        name="embedded",
        title="The embedded API server",
        method=(
            f"The server is a process of its own on loopback; the client is another Python process with "
            f"{IN_FLIGHT} requests in flight. {NODE_COUNT} Nodes of 15 KB are created, then {PATCHES} merge "
            f"patches change a label while {WATCHERS} watches deliver every change. Median of {REPEATS} "
            "servers."
        ),
        rows=(
            Row("creates of Nodes", f"{median(found['creates']):.0f} /s"),
            Row("patches, while watched", f"{median(found['patches']):.0f} /s"),
            Row(f"events delivered to {WATCHERS} watches", f"{median(found['events']):.0f} /s"),
        ),
    )


async def _measure(access: Access) -> dict[str, float]:
    async with Wire(access) as wire:
        created_s = await _timed(
            range(NODE_COUNT), lambda number: wire.request("POST", fleet.NODES, fleet.node(number))
        )
        listed = await wire.request("GET", fleet.NODES)
        since = listed["metadata"]["resourceVersion"]
        names = [item["metadata"]["name"] for item in listed["items"]]

        async def patch(number: int) -> None:
            body = {"metadata": {"labels": {"bench": str(number)}}}
            path = f"{fleet.NODES}/{names[number % NODE_COUNT]}"
            await wire.request("PATCH", path, body, content_type=MERGE)

        async def watch() -> None:
            left = PATCHES
            async for event in wire.watch(f"{fleet.NODES}?watch=1&resourceVersion={since}"):
                left -= event["type"] == "MODIFIED"
                if not left:
                    return

        begun_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(WATCHERS):
                group.create_task(watch())
            patched_s = await _timed(range(PATCHES), patch)
        delivered_s = time.monotonic() - begun_s
    return {
        "creates": NODE_COUNT / created_s,
        "patches": PATCHES / patched_s,
        "events": WATCHERS * PATCHES / delivered_s,
    }


async def _timed(items: range, work: Callable[[int], Awaitable[object]]) -> float:
    begun_s = time.monotonic()
    await fleet.all_of(items, work, IN_FLIGHT)
    return time.monotonic() - begun_s


async def _serve() -> None:
    from outlast.sim.apiserver import ApiServer

    async with ApiServer() as server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
