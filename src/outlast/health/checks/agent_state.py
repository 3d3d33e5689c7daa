"""The agent's memory on disk: full, read-only, damaged. No fault, and nothing is judged otherwise for it.

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
    """A note for what cannot be kept, and one for what could not be read."""
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


CHECK: Final = LevelCheck(NAME, "whether the agent's memory is kept", frozenset({AgentStateSurvey}), run)
