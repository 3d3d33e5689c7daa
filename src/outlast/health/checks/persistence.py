"""Persistence mode: without it the driver forgets what it asked for when its last program ends.

No fault, but worth a word, because "asks for no recovery" then proves less.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import readable
from outlast.health.finding import Assessment, Note
from outlast.model.health import Subsystem
from outlast.model.observation import GpuSurvey

NAME: Final = "persistence"


def run(view: View) -> Assessment | None:
    """A note when it is off for any GPU."""
    gpus = [gpu for gpu in readable(view) if gpu.persistence_enabled is not None]
    if not gpus:
        return None
    off = [gpu.pci_address for gpu in gpus if not gpu.persistence_enabled]
    where = "all GPUs" if len(off) == len(gpus) else f"GPU {', '.join(off[:4])}"
    forgets = "the driver may forget that it asked for a reboot"
    text = f"Persistence mode is off for {where} (PersistenceOff): {forgets}."
    notes = (Note(subsystem=Subsystem.GPU, text=text),) if off else ()
    return Assessment(check=NAME, notes=notes)


CHECK: Final = LevelCheck(NAME, "persistence mode", frozenset({GpuSurvey}), run)
