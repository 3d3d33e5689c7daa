"""The NVLink fabric as each GPU sees it: has it joined, and is the way to its peers in order?

A GPU that never joins makes every program fail at its start (CUDA error 802) while all tools look fine:
a matter of the machine's services, never of the board.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import assessment, finding, of_node, readable
from outlast.health.finding import Assessment, Level
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Subsystem
from outlast.model.observation import GpuReading, GpuSurvey

NAME: Final = "fabric"
FABRIC: Final = "fabric"
NOT_STARTED, IN_PROGRESS, COMPLETED = 1, 2, 3
HEALTHY, UNHEALTHY, LIMITED = 1, 2, 3
JOIN_POLLS: Final = 4
HEALTH_POLLS: Final = 3
RANK_JOIN: Final = 9
RANK_HEALTH: Final = 8

MASK: Final = (
    (0, 0x3, {1: "its bandwidth is degraded"}),
    (2, 0x3, {1: "a route is being recovered"}),
    (4, 0x3, {1: "a route is unhealthy"}),
    (6, 0x3, {1: "it recovers from an access time-out"}),
    (
        8,
        0xF,
        {
            2: "its system id is wrong",
            3: "its chassis serial number is wrong",
            4: "it has no partition",
            5: "it has too few NVLinks",
            6: "its firmware does not fit",
            7: "its place is invalid",
            8: "its state is invalid",
        },
    ),
    (12, 0x3, {2: "no partition is assigned to it"}),
    (14, 0x3, {2: "the fabric manager is not connected"}),
)
"""Sub-fields of the health mask: shift, width, and the values that are bad. One is "true" in the first
four and "good" in the others; zero is "not supported" in all."""


def troubles(mask: int) -> tuple[str, ...]:
    """What a health mask complains about, in words."""
    found = []
    for shift, width, bad in MASK:
        value = mask >> shift & width
        if value in bad:
            found.append(bad[value])
    return tuple(found)


def run(view: View) -> Assessment | None:
    """One finding for a fabric that does not form, one for each GPU whose part of it is not healthy."""
    gpus = [gpu for gpu in readable(view) if gpu.fabric_state]
    if not gpus:
        return None
    bad: list[Level] = []
    waiting = [gpu for gpu in gpus if _waits(gpu, gpus)]
    if waiting and view.just_started:
        return None
    if waiting:
        first = waiting[0].pci_address
        what = f"{len(waiting)} of {len(gpus)} GPUs have not joined the NVLink fabric (first: {first})"
        bad.append(
            of_node(
                FABRIC,
                "fabric/not-ready",
                Reason.FABRIC_NOT_READY,
                FaultClass.TRANSIENT,
                RANK_JOIN,
                what,
                subsystem=Subsystem.FABRIC,
                summary=f"{what}; programs fail with CUDA error 802. Look at the fabric manager.",
                polls=JOIN_POLLS,
            )
        )
    bad += [level for gpu in gpus if (level := _unhealthy(gpu)) is not None]
    return assessment(NAME, gpus, bad, also=(FABRIC,))


CHECK: Final = LevelCheck(NAME, "NVLink fabric of each GPU", frozenset({GpuSurvey}), run)


def _waits(gpu: GpuReading, gpus: list[GpuReading]) -> bool:
    if gpu.fabric_state == IN_PROGRESS:
        return True
    linked = bool(gpu.detail and any(gpu.detail.nvlinks or ()))
    # A single GPU without links, as in a virtual machine, has no fabric to join.
    return gpu.fabric_state == NOT_STARTED and (linked or len(gpus) > 1)


def _unhealthy(gpu: GpuReading) -> Level | None:
    if gpu.fabric_state != COMPLETED:
        return None
    words = "; ".join(troubles(gpu.fabric_health_mask or 0))
    if gpu.fabric_status:
        text = f"failed to join the NVLink fabric (NVML error {gpu.fabric_status})"
    elif gpu.fabric_summary == UNHEALTHY:
        text = f"has an unhealthy part of the NVLink fabric ({words or 'no details'})"
    elif gpu.fabric_summary == LIMITED:
        text = f"has an NVLink fabric of limited capacity ({words or 'no details'})"
    elif gpu.fabric_summary != HEALTHY and words:
        text = f"has trouble in the NVLink fabric ({words})"
    else:
        return None
    return finding(
        gpu,
        "fabric/unhealthy",
        Reason.FABRIC_UNHEALTHY,
        FaultClass.TRANSIENT,
        RANK_HEALTH,
        text,
        subsystem=Subsystem.FABRIC,
        polls=HEALTH_POLLS,
    )
