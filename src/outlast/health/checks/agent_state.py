"""The agent itself: its disk is full or damaged, a source fails by its own code. No fault of the machine.

But worth a word: after a restart the log is read again, and what was learned of this machine may be gone.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.finding import Assessment, Note
from outlast.health.reasons import Reason
from outlast.model.health import Subsystem
from outlast.model.observation.agent_state import AgentStateSurvey

NAME: Final = "agent_state"


def run(view: View) -> Assessment | None:
    """A note for what cannot be kept or read, and a doubt for a source whose own code fails."""
    survey = view.newest(AgentStateSurvey)
    if survey is None:
        return None
    texts = []
    if survey.unsaved:
        texts.append(f"state cannot be saved ({survey.unsaved}): a restart reads the kernel log again")
    if survey.forgotten:
        texts.append(f"{survey.forgotten}: what an earlier agent knew may be forgotten")
    notes = [Note(subsystem=Subsystem.MONITOR, text=text) for text in texts]
    if survey.broken:
        text = f"asking {' and '.join(survey.broken)} failed, so something may be overlooked"
        notes.append(Note(subsystem=Subsystem.MONITOR, text=text, doubt=Reason.DIAGNOSTICS_FAILED))
    return Assessment(check=NAME, notes=tuple(notes))


CHECK: Final = LevelCheck(
    NAME, "whether the agent's memory is kept and its sources work", frozenset({AgentStateSurvey}), run
)
