"""What is to be done: `decide(situation, ruling, fleet, now) -> Step`, pure from end to end."""

from outlast.remediation.decide.core import decide
from outlast.remediation.decide.situation import (
    AgentSight,
    FleetView,
    RulingPolicy,
    Situation,
    StormSight,
)

__all__ = ["AgentSight", "FleetView", "RulingPolicy", "Situation", "StormSight", "decide"]
