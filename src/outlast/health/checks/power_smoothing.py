"""Is the circuit that smooths a GPU's power draw worn out? Its vendor counts down what is left of its life.

The GPU computes as well without it, and only draws power less evenly, so this is a word and no fault.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import readable
from outlast.health.finding import Assessment, Note
from outlast.model.health import Subsystem
from outlast.model.observation import GpuSurvey

NAME: Final = "power_smoothing"
LIFE_LOW_PERCENT: Final = 5
SHOWN_MAX: Final = 4


def run(view: View) -> Assessment | None:
    """A note where it is switched on and has hardly any life left."""
    judged = [
        (gpu.pci_address, gpu.detail.power_smoothing_life_percent)
        for gpu in readable(view)
        if gpu.detail is not None and gpu.detail.power_smoothing_enabled
    ]
    worn = [address for address, life in judged if life is not None and 0 <= life <= LIFE_LOW_PERCENT]
    if not judged:
        return None
    if not worn:
        return Assessment(check=NAME)
    more = f" and {len(worn) - SHOWN_MAX} more" if len(worn) > SHOWN_MAX else ""
    text = f"power smoothing of GPU {', '.join(worn[:SHOWN_MAX])}{more} is nearly worn out"
    return Assessment(check=NAME, notes=(Note(subsystem=Subsystem.GPU, text=text),))


CHECK: Final = LevelCheck(NAME, "life of power smoothing", frozenset({GpuSurvey}), run)
