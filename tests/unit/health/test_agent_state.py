"""What is said of the agent's own memory: a note and never a fault."""

from __future__ import annotations

import pytest

from outlast.health.checks.agent_state import CHECK
from outlast.health.checks.declaration import Expected, View
from outlast.model.health import Subsystem
from outlast.model.observation.agent_state import AgentStateSurvey


def said(survey: AgentStateSurvey | None) -> list[str]:
    surveys = {} if survey is None else {survey.source: survey}
    view = View(
        expected=Expected(), pci=None, gpu=None, initializing=False, kernel_log_lost="", surveys=surveys
    )
    assessment = CHECK.run(view)
    if assessment is None:
        return []
    assert assessment.bad == ()
    assert {note.subsystem for note in assessment.notes} <= {Subsystem.MONITOR}
    assert {note.doubt for note in assessment.notes} <= {None}
    return [note.text for note in assessment.notes]


@pytest.mark.parametrize(
    ("survey", "words"),
    [
        (None, []),
        (AgentStateSurvey(), []),
        (
            AgentStateSurvey(unsaved="No space left on device"),
            ["No space left", "reads the kernel log again"],
        ),
        (AgentStateSurvey(forgotten="the saved state has version 9"), ["version 9", "may be forgotten"]),
    ],
)
def test_what_cannot_be_kept_or_read_is_said(survey: AgentStateSurvey | None, words: list[str]) -> None:
    """And nothing is said while all is well."""
    texts = " ".join(said(survey))

    assert bool(texts) is bool(words)
    assert all(word in texts for word in words)
