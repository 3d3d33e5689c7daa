"""A driver that stops answering, until the API says so: the production agent and a real kube-apiserver.

The worker sleeps where no signal reaches it (it creates a file on a frozen ext4), as one does whose driver
holds its process. The clock starts when the worker is seen asleep.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.controlplane.installation import Installation
from tests.nvml.frozen import FrozenMount, frozen_mount, why_not

from benchmarks import fleet
from benchmarks.kernel_line import Box, following, forget
from benchmarks.report import Row, Section
from outlast.adapters.linux.leaks import leaked_workers
from outlast.adapters.nvml.reader import POLL_DEADLINE_S

ROUNDS = 5
GOAL_S = POLL_DEADLINE_S + 1.0
READY_DEADLINE_S = 90.0
SEEN_DEADLINE_S = 60.0
XID = (79, "GPU has fallen off the bus.")
CONDITION = "GPUMonitorReady"


def run() -> Section:
    """Start a control plane and one agent, hang its driver, thaw it, again and again."""
    if reason := why_not():
        raise RuntimeError(reason)
    with fleet.installed() as installation:
        hung_s, line_s = asyncio.run(_measure(installation))
    slowest_s = max(hung_s)
    rows = (
        Row("hang until the condition, median", f"{median(hung_s):.2f} s"),
        Row("slowest", f"{slowest_s:.2f} s", f"< {GOAL_S:g} s", slowest_s < GOAL_S),
        Row("beyond the stated deadline, slowest", f"{slowest_s - POLL_DEADLINE_S:.2f} s"),
        Row("a kernel line meanwhile, slowest", f"{max(line_s) * 1000:.0f} ms"),
        Row("rounds", f"{len(hung_s)}"),
    )
    return Section(
        name="hang",
        title="A driver that hangs until the condition is visible",
        method=(
            f"One machine with {fleet.GPUS} GPUs and `outlast agent` as a process with production defaults; "
            "etcd, kube-apiserver, kube-controller-manager and scheduler on the same machine. A call of NVML "
            "for one GPU goes to sleep where no signal reaches it; the stated deadline of a poll is "
            f"{POLL_DEADLINE_S:g} s. Time from when the worker is first seen asleep (looked for each 5 ms) "
            f"until a watch of the Nodes delivers {CONDITION}=False. While it sleeps an Xid {XID[0]} is "
            "printed: time until GPUReady=False. Then the file system is thawed and the machine boots anew."
        ),
        rows=rows,
        peer="Others hang with the driver: a health check in the same process says nothing at all.",
    )


async def _measure(installation: Installation) -> tuple[list[float], list[float]]:
    hung_s, line_s = [], []
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder, fleet.reaper() as keeper:
        async with following(installation) as (wire, seen):
            await wire.request("POST", fleet.NODES, fleet.node(0))
            box = Box(installation, Path(folder), "node-00000", keeper, proc_root=Path("/proc"))
            try:
                for number in range(ROUNDS):
                    box.down()
                    await forget(wire, box)
                    box.boot()
                    await seen.until(box.name, "True", READY_DEADLINE_S)
                    await seen.until(box.name, "True", READY_DEADLINE_S, type_=CONDITION)
                    mount = Path(folder) / f"round-{number}"
                    mount.mkdir()
                    with frozen_mount(mount) as frozen:
                        box.nvml.action("nvmlDeviceGetSerial", f"dstate:{frozen.trap}", gpu=2)
                        asleep_s = await _asleep()
                        begun_s = box.say(5, *XID)
                        line_s.append(await seen.until(box.name, "False", SEEN_DEADLINE_S) - begun_s)
                        said_s = await seen.until(box.name, "False", SEEN_DEADLINE_S, type_=CONDITION)
                        hung_s.append(said_s - asleep_s)
                        box.down()
                        await _thaw(box, frozen)
            finally:
                box.down()
    return hung_s, line_s


async def _asleep() -> float:
    """When a worker was seen in uninterruptible sleep."""
    until_s = time.monotonic() + SEEN_DEADLINE_S
    while time.monotonic() < until_s:
        if await asyncio.to_thread(_any_worker_sleeps):
            return time.monotonic()
        await asyncio.sleep(0.005)
    raise RuntimeError("the worker did not go to sleep")


def _any_worker_sleeps() -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        if name.endswith("(outlast-nvml") and rest.split()[0] == "D":
            return True
    return False


async def _thaw(box: Box, frozen: FrozenMount) -> None:
    box.nvml.action("nvmlDeviceGetSerial", "", gpu=2)
    frozen.thaw()
    until_s = time.monotonic() + SEEN_DEADLINE_S
    while leaked_workers() and time.monotonic() < until_s:  # noqa: ASYNC110 - nobody wakes us
        await asyncio.sleep(0.05)
