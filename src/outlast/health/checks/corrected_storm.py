"""Corrected memory errors at a rate far above that of the other GPUs: slow, and often the herald of worse.

An idle GPU reads no memory and so shows no errors: after a storm, only load can show that it is over.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import assessment, busy, finding, peers, readable
from outlast.health.finding import Assessment
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass
from outlast.model.observation import GpuReading, GpuSurvey

NAME: Final = "corrected_storm"
COUNTER: Final = "ecc_corrected_volatile"
WINDOW_S: Final = 300.0
RATE_PER_S: Final = 10.0
"""Below it no driver is slowed down; storms that were reported had thousands a second."""
TIMES_PEERS: Final = 10.0
REMEMBERED_S: Final = 24 * 3600.0
POLLS: Final = 2
CLEAN_SPAN_S: Final = 3600.0
RANK: Final = 12


def run(view: View) -> Assessment | None:
    """A finding for each GPU that storms alone; where all storm alike, something else is wrong."""
    gpus = readable(view)
    rates = {gpu.pci_address: _rate(view, gpu) for gpu in gpus}
    judged, bad = [], []
    for gpu in gpus:
        rate = rates[gpu.pci_address]
        if rate is None:
            continue
        others = [other for peer in peers(gpu, gpus) if (other := rates[peer.pci_address]) is not None]
        # The lower middle one; the standard library's median costs the agent a megabyte.
        usual = sorted(others)[(len(others) - 1) // 2] if others else 0.0
        if rate >= RATE_PER_S and rate >= TIMES_PEERS * usual:
            judged.append(gpu)
            bad.append(
                finding(
                    gpu,
                    "ecc/corrected-storm",
                    Reason.CORRECTED_ERROR_STORM,
                    FaultClass.TRANSIENT,
                    RANK,
                    f"corrects {rate:.0f} memory errors a second, its peers {usual:.0f}",
                    polls=POLLS,
                    clean_span_s=CLEAN_SPAN_S,
                )
            )
        elif busy(gpu) or not _stormed(view, gpu):
            judged.append(gpu)
    return assessment(NAME, judged, bad)


CHECK: Final = LevelCheck(NAME, "rate of corrected memory errors", frozenset({GpuSurvey}), run)


def _rate(view: View, gpu: GpuReading) -> float | None:
    grown = view.grown(gpu.pci_address, COUNTER, WINDOW_S)
    return None if grown is None else grown / WINDOW_S


def _stormed(view: View, gpu: GpuReading) -> bool:
    return (view.grown(gpu.pci_address, COUNTER, REMEMBERED_S) or 0) >= RATE_PER_S * WINDOW_S
