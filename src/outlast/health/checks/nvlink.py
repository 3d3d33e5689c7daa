"""NVLink: are all links up that should be, and do they carry data without errors?

How many there should be is told by what this board has shown, and by its peers where the links are part of
the board. Links join two ends: several GPUs that lose some at once, or one whose peer is away, are no bad
board, and drain nobody.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import assessment, finding, known, of_node, peers, readable
from outlast.health.checks.wording import some
from outlast.health.finding import DETAIL_SPACING_S, Assessment, Level
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Subsystem
from outlast.model.observation import GpuReading, GpuSurvey
from outlast.model.observation.gpu import link_device

NAME: Final = "nvlink"
LINKS_OF_NODE: Final = "NVLink"
BUILT_IN: Final = ("SXM", "HBM3", "NVIDIA H800", "NVIDIA H20", "NVIDIA H200", "NVIDIA GB", "NVIDIA B")
"""In, or alone as, the name of boards whose links lead to a switch or to each other; PCIe boards have bridges
between some of them or none, and parts of a machine (p3.8xlarge) have fewer links up than the board has."""
BRIDGED: Final = ("PCIe", "NVL")
PEERS_MIN: Final = 2

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
    judged = [gpu for gpu in gpus if _has_links(gpu)]
    down = [gpu for gpu in judged if sum(_states(gpu)) < links_expected(view, gpu, gpus)]
    bad: list[Level] = []
    if len(down) > 1:
        # What each of them lost is not told from the rest, so nothing is over for any of them either.
        dark = not any(any(_states(gpu)) for gpu in judged)
        bad.append(_none(len(down)) if dark else _several(down, len(judged)))
    elif down:
        bad.append(_down(view, down[0], gpus))
    whole = [gpu for gpu in judged if gpu not in down]
    bad += [level for gpu in whole if (level := _errors(view, gpu)) is not None]
    covered = judged if len(down) == 1 else whole
    return assessment(NAME, covered, bad, also=(LINKS_OF_NODE,) if judged else ())


CHECK: Final = LevelCheck(NAME, "NVLink states and errors", frozenset({GpuSurvey}), run)


def links_expected(view: View, gpu: GpuReading, gpus: list[GpuReading]) -> int:
    """How many links of this GPU should be up: as many as it ever had, or as most of its peers have."""
    own = _most(view, gpu)
    others = sorted(_most(view, peer) for peer in peers(gpu, gpus)) if built_in(gpu.name) else []
    return max(own, others[(len(others) - 1) // 2]) if len(others) >= PEERS_MIN else own


def built_in(name: str) -> bool:
    """Whether boards of this name come with NVLinks."""
    return any(word in name for word in BUILT_IN) and not any(word in name for word in BRIDGED)


def _most(view: View, gpu: GpuReading) -> int:
    remembered = known(view, gpu)
    return max(sum(_states(gpu)), remembered.nvlinks_up if remembered else 0)


def _has_links(gpu: GpuReading) -> bool:
    """It shows links, and may use them: in MIG mode the driver may switch them off."""
    return bool(_states(gpu)) and not gpu.mig_enabled and not gpu.mig_pending


def _peer_is_away(view: View, gpus: list[GpuReading]) -> bool:
    """A GPU of this machine is missing, or another driver has it: links to it are down with it."""
    here = {gpu.pci_address for gpu in gpus}
    listed = {device.address for device in view.pci.gpus} if view.pci is not None else set()
    return not listed <= here or len(here) < view.expected.gpus


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


def _several(down: list[GpuReading], gpus: int) -> Level:
    """The other end is one of them, or what is between them."""
    return of_node(
        LINKS_OF_NODE,
        "nvlink/down-several",
        Reason.NVLINK_DOWN,
        FaultClass.TRANSIENT,
        RANK_DOWN,
        f"{len(down)} of {gpus} GPUs lack NVLinks ({some([gpu.pci_address for gpu in down])})",
        subsystem=Subsystem.FABRIC,
        polls=DOWN_POLLS,
        spacing_s=DETAIL_SPACING_S,
        clean_span_s=DOWN_CLEAN_SPAN_S,
    )


def _down(view: View, gpu: GpuReading, gpus: list[GpuReading]) -> Level:
    states = _states(gpu)
    up, wanted = sum(states), links_expected(view, gpu, gpus)
    down = some([str(link) for link, active in enumerate(states) if not active])
    away = _peer_is_away(view, gpus)
    return finding(
        gpu,
        "nvlink/down",
        Reason.NVLINK_DOWN,
        FaultClass.TRANSIENT if away else FaultClass.RESET_CURES,
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
        for link, value in enumerate(errors.get(name, ())):
            if value is None or value < limit:
                continue  # It cannot have grown by more than it is.
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
