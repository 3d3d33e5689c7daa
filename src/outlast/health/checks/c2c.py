"""Does the link between a GPU and its processor (NVLink-C2C) keep making errors?

The hardware repairs them, and what it cannot repair the kernel log tells (Xid 173): a word and no fault.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import readable
from outlast.health.finding import Assessment, Note
from outlast.model.health import Subsystem
from outlast.model.observation import GpuSurvey

NAME: Final = "c2c"
WITHIN_S: Final = 3600.0
COUNTERS: Final = ("c2c_interrupts", "c2c_replay", "c2c_replay_back_to_back")
SHOWN_MAX: Final = 4


def run(view: View) -> Assessment | None:
    """A note where a counter of the link grew in the last hour."""
    gpus = [gpu for gpu in readable(view) if gpu.detail is not None and gpu.detail.c2c_errors]
    if not gpus:
        return None
    noisy = [gpu.pci_address for gpu in gpus if any(_grew(view, gpu.pci_address, name) for name in COUNTERS)]
    if not noisy:
        return Assessment(check=NAME)
    more = f" and {len(noisy) - SHOWN_MAX} more" if len(noisy) > SHOWN_MAX else ""
    text = f"the link to the processor (C2C) of GPU {', '.join(noisy[:SHOWN_MAX])}{more} repairs errors"
    return Assessment(check=NAME, notes=(Note(subsystem=Subsystem.FABRIC, text=text),))


CHECK: Final = LevelCheck(NAME, "links between GPU and processor", frozenset({GpuSurvey}), run)


def _grew(view: View, address: str, counter: str) -> bool:
    return bool(view.grown(address, counter, WITHIN_S))
