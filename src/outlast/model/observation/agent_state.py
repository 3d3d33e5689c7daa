"""How the agent itself is: whether its memory outlives it, and whether its sources work."""

from __future__ import annotations

from typing import ClassVar

from outlast.model.observation.base import Survey


class AgentStateSurvey(Survey, frozen=True, kw_only=True):
    """The last try to keep the agent's state, and what became of the state of the process before."""

    source: ClassVar[str] = "agent state"
    unsaved: str = ""
    """Why it cannot be saved now; empty while it can."""
    forgotten: str = ""
    """Why what an earlier process had saved could not be read, in whole or in part."""
    broken: tuple[str, ...] = ()
    """Sources whose code fails by itself, each with the place."""
