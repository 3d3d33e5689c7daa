"""From findings to faults to verdicts: debounce, correlate, clear by proof, and say it.

`judge` is the only door: a pure function from state, readings and a moment to the next state, the
NodeHealth status and the five conditions.
"""

from outlast.health.verdict.judge import Judgement, judge
from outlast.health.verdict.memory import restore, start, to_bytes
from outlast.health.verdict.state import ApplicationRule, JudgeState, Moment, Settings

__all__ = [
    "ApplicationRule",
    "JudgeState",
    "Judgement",
    "Moment",
    "Settings",
    "judge",
    "restore",
    "start",
    "to_bytes",
]
