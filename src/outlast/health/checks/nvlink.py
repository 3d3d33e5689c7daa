"""NVLink: are all links up that should be, and do they carry data without errors?

How many there should be is told by the model, by the peers and by what this board has shown. A board
that never had a link up on this machine may be meant to have none, as in a one-GPU virtual machine.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import assessment, finding, known, of_node, peers, readable
from outlast.health.finding import DETAIL_SPACING_S, Assessment, Level
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Subsystem
from outlast.model.observation import GpuReading, GpuSurvey
from outlast.model.observation.gpu import link_device

NAME: Final = "nvlink"
LINKS_OF_NODE: Final = "NVLink"
LINKS: Final = {
    "Tesla V100-SXM2-16GB": 6,
    "Tesla V100-SXM2-32GB": 6,
    "Tesla V100-SXM3-32GB": 6,
    "NVIDIA A100-SXM4-40GB": 12,
    "NVIDIA A100-SXM4-80GB": 12,
    "NVIDIA A800-SXM4-80GB": 8,
    "NVIDIA H100 80GB HBM3": 18,
    "NVIDIA H800": 8,
    "NVIDIA H20": 18,
    "NVIDIA H200": 18,
    "NVIDIA B200": 18,
    "NVIDIA GB200": 18,
    "NVIDIA GB300": 18,
}
"""Links by the name that NVML gives, where they are part of the board and lead to a switch or to peers."""

DOWN_POLLS: Final = 3
"""Links are read about once a minute; a reset by anybody is over by then."""
DOWN_CLEAN_SPAN_S: Final = 600.0
WINDOW_S: Final = 600.0
LIMITS: Final = {
    "recovery_failed": 1,
    "recovery": 3,
    "local_integrity": 10,
    "effective": 100,
    "replay": 100,
    "crc": 600,
    "crc_flit": 600,
}
"""Errors of one link in the window. Below it the link repairs itself as it is built to."""
ERRORS_CLEAN_SPAN_S: Final = 3600.0
RANK_DOWN: Final = 7
RANK_ERRORS: Final = 12


def run(view: View) -> Assessment | None:
    """Per GPU: links that are down, else links with many errors. Nothing while links train."""
    if view.gpu is None or not view.gpu.detailed or view.just_started:
        return None
    if any(gpu.error for gpu in view.gpu.gpus):
        return None  # While a peer is reset or lost, the links to it are down; the peer is the news.
    gpus = readable(view)
    judged, bad = [], []
    for gpu in gpus:
        detail = gpu.detail
        # In MIG mode a GPU has no use for its links, and the driver may switch them off.
        if detail is None or not detail.nvlinks or gpu.mig_enabled or gpu.mig_pending:
            continue
        judged.append(gpu)
    dark = [gpu for gpu in judged if not any(_states(gpu)) and links_expected(view, gpu, gpus)]
    if len(dark) == len(judged) > 1:
        return assessment(NAME, judged, [_none(len(dark))], also=(LINKS_OF_NODE,))
    for gpu in judged:
        level = _down(view, gpu, gpus) or _errors(view, gpu)
        if level is not None:
            bad.append(level)
    return assessment(NAME, judged, bad, also=(LINKS_OF_NODE,))


CHECK: Final = LevelCheck(NAME, "NVLink states and errors", frozenset({GpuSurvey}), run)


def links_expected(view: View, gpu: GpuReading, gpus: list[GpuReading]) -> int:
    """How many links of this GPU should be up."""
    remembered = [k for other in (gpu, *peers(gpu, gpus)) if (k := known(view, other)) is not None]
    seen = max((k.nvlinks_up for k in remembered), default=0)
    return max(seen, LINKS.get(gpu.name, 0)) if seen else 0


def _states(gpu: GpuReading) -> tuple[bool, ...]:
    return (gpu.detail.nvlinks or ()) if gpu.detail is not None else ()


def _none(gpus: int) -> Level:
    """Boards do not fail all at once: a setting of the driver, the fabric manager or a switch did it."""
    return of_node(
        LINKS_OF_NODE,
        "nvlink/none",
        Reason.NVLINK_DOWN,
        FaultClass.TRANSIENT,
        RANK_DOWN,
        f"No NVLink of any of the {gpus} GPUs is up",
        subsystem=Subsystem.FABRIC,
        polls=DOWN_POLLS,
        spacing_s=DETAIL_SPACING_S,
    )


def _down(view: View, gpu: GpuReading, gpus: list[GpuReading]) -> Level | None:
    states = _states(gpu)
    up, wanted = sum(states), links_expected(view, gpu, gpus)
    if up >= wanted:
        return None
    down = ", ".join(str(link) for link, active in enumerate(states) if not active)
    return finding(
        gpu,
        "nvlink/down",
        Reason.NVLINK_DOWN,
        FaultClass.RESET_CURES,
        RANK_DOWN,
        f"has {up} of {wanted} NVLinks up (down: {down or 'unknown'})",
        subsystem=Subsystem.FABRIC,
        polls=DOWN_POLLS,
        spacing_s=DETAIL_SPACING_S,
        clean_span_s=DOWN_CLEAN_SPAN_S,
    )


def _errors(view: View, gpu: GpuReading) -> Level | None:
    errors = gpu.detail.nvlink_errors if gpu.detail is not None else {}
    for name, limit in LIMITS.items():
        for link in range(len(errors.get(name, ()))):
            grown = view.grown(link_device(gpu.pci_address, link), f"nvlink_{name}", WINDOW_S)
            if grown is not None and grown >= limit:
                what = f"{grown} {name.replace('_', ' ')} errors on NVLink {link}"
                return finding(
                    gpu,
                    "nvlink/errors",
                    Reason.NVLINK_ERROR,
                    FaultClass.TRANSIENT,
                    RANK_ERRORS,
                    f"had {what} in {WINDOW_S / 60:.0f} minutes",
                    subsystem=Subsystem.FABRIC,
                    clean_span_s=ERRORS_CLEAN_SPAN_S,
                )
    return None
