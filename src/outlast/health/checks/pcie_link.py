"""The PCIe link of a GPU: fewer lanes, a lower speed under load, packets that are sent again and again.

Idle links lower their speed, and sleeping GPUs may give up lanes, on purpose; and some machines wire
fewer lanes than the GPU has. So both are compared with the peers and with the board's own past.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import assessment, busy, finding, known, peers, readable
from outlast.health.finding import Assessment, Level
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass
from outlast.model.observation import GpuReading, GpuSurvey

NAME: Final = "pcie_link"
LANES_MAX: Final = 32
GENERATION_MAX: Final = 8
AWAKE: Final = (0, 1, 2, None)
"""Performance states in which the link has its full width."""
WIDTH_POLLS: Final = 4
SPEED_POLLS: Final = 8
WINDOW_S: Final = 600.0
REPLAYS: Final = 80
"""In the window: eight a minute, the rate at which NVIDIA's own health watch warns."""
REPLAY_POLLS: Final = 2
ERRORS_CLEAN_SPAN_S: Final = 3600.0
RANK: Final = 12


def run(view: View) -> Assessment | None:
    """Per GPU the first that holds: lanes, speed, errors."""
    gpus = readable(view)
    judged = [gpu for gpu in gpus if gpu.performance_state in AWAKE and (_lanes(gpu) or gpu.pcie_errors)]
    bad = [level for gpu in judged if (level := _level(view, gpu, gpus)) is not None]
    return assessment(NAME, judged, bad)


CHECK: Final = LevelCheck(NAME, "PCIe link of each GPU", frozenset({GpuSurvey}), run)


def _level(view: View, gpu: GpuReading, gpus: list[GpuReading]) -> Level | None:
    remembered, others = known(view, gpu), peers(gpu, gpus)
    lanes = _lanes(gpu)
    best = max([_lanes(peer) for peer in others] + [remembered.pcie_width if remembered else 0])
    possible = gpu.detail.pcie_width_max if gpu.detail and gpu.detail.pcie_width_max else best
    if 0 < lanes < min(best, possible):
        text = f"uses {lanes} PCIe lanes instead of {min(best, possible)}"
        return _finding(gpu, "pcie/width", Reason.PCIE_LINK_DEGRADED, text, WIDTH_POLLS, 60.0)
    generation = _generation(gpu)
    usual = max([_generation(peer) for peer in others if busy(peer)], default=0)
    if busy(gpu) and 0 < generation < usual:
        text = f"uses PCIe generation {generation} under load, its peers {usual}"
        return _finding(gpu, "pcie/generation", Reason.PCIE_LINK_DEGRADED, text, SPEED_POLLS, 60.0)
    replays = view.grown(gpu.pci_address, "pcie_replay", WINDOW_S) or 0
    fatal = view.grown(gpu.pci_address, "pcie_fatal", WINDOW_S) or 0
    if replays >= REPLAYS or fatal:
        what = f"{fatal} fatal PCIe errors" if fatal else f"{replays} PCIe packets sent again"
        text = f"had {what} in {WINDOW_S / 60:.0f} minutes"
        return _finding(gpu, "pcie/errors", Reason.PCIE_ERRORS, text, REPLAY_POLLS, ERRORS_CLEAN_SPAN_S)
    return None


def _finding(gpu: GpuReading, code: str, reason: Reason, text: str, polls: int, clean_span_s: float) -> Level:
    transient = FaultClass.TRANSIENT
    return finding(gpu, code, reason, transient, RANK, text, polls=polls, clean_span_s=clean_span_s)


def _lanes(gpu: GpuReading) -> int:
    lanes = gpu.pcie_width or 0
    return lanes if lanes <= LANES_MAX else 0


def _generation(gpu: GpuReading) -> int:
    generation = gpu.pcie_generation or 0
    return generation if generation <= GENERATION_MAX else 0
