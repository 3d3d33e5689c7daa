"""Does a GPU have all its memory? One that lost a channel comes up with less, and says nothing.

Compared with its peers on the same driver, and with what this board had before in the same ECC mode.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import assessment, finding, known, peers, readable
from outlast.health.finding import Assessment
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass
from outlast.model.observation import GpuReading, GpuSurvey

NAME: Final = "memory_size"
PEER_SHARE: Final = 0.999
OTHER_SHARE: Final = 0.75
"""Less than this of a peer is another model under the same name."""
LEARNED_SHARE: Final = 0.98
"""A driver of another version may count its own reserve differently, by about a hundredth."""
POLLS: Final = 4
RANK: Final = 8


def run(view: View) -> Assessment | None:
    """A finding for each GPU with less memory than it should have."""
    gpus = [gpu for gpu in readable(view) if gpu.memory_total_bytes and gpu.detail is not None]
    bad = []
    for gpu in gpus:
        total = gpu.memory_total_bytes or 0
        usual = max(
            (peer.memory_total_bytes or 0 for peer in peers(gpu, gpus) if _alike(gpu, peer)), default=0
        )
        remembered = known(view, gpu)
        before = remembered.memory_total_bytes if remembered else 0
        if OTHER_SHARE * usual < total < PEER_SHARE * usual or total < LEARNED_SHARE * before:
            should_mib = max(usual, before) // 2**20
            text = f"has {total // 2**20} MiB of memory instead of {should_mib} MiB"
            bad.append(
                finding(
                    gpu,
                    "memory/reduced",
                    Reason.MEMORY_REDUCED,
                    FaultClass.TRANSIENT,
                    RANK,
                    text,
                    polls=POLLS,
                )
            )
    return assessment(NAME, gpus, bad)


CHECK: Final = LevelCheck(NAME, "size of GPU memory", frozenset({GpuSurvey}), run)


def _alike(gpu: GpuReading, peer: GpuReading) -> bool:
    ecc = [other.detail.ecc_enabled for other in (gpu, peer) if other.detail is not None]
    return gpu.mig_enabled == peer.mig_enabled and len(set(ecc)) == 1
