"""A check or rule of ours that fails by itself: said as a doubt about the monitor, and nothing else stops.

Without this one line of a log that a rule trips over would end the agent, and again after each restart.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

import msgspec

from outlast.health.finding import Note
from outlast.health.reasons import Reason
from outlast.health.verdict.state import JudgeState
from outlast.model.health import Subsystem
from outlast.model.observation import Survey

_PREFIX: Final = "broken "
BROKEN_MAX: Final = 16
"""Different failures that are told; one is enough to take the monitor's word away."""


def failed(state: JudgeState, what: str, error: Exception) -> JudgeState:
    """`what` could not judge. The text names the place in our code, which no input can change."""
    key = f"{_PREFIX}{what}"
    if key not in state.notes and sum(1 for name in state.notes if name.startswith(_PREFIX)) >= BROKEN_MAX:
        return state
    text = f"{what} failed ({place_of(error)}), so something may be overlooked"
    note = Note(subsystem=Subsystem.MONITOR, text=text, doubt=Reason.DIAGNOSTICS_FAILED)
    return msgspec.structs.replace(state, notes={**state.notes, key: (note,)})


def works(state: JudgeState, what: str) -> JudgeState:
    """`what` has judged again."""
    key = f"{_PREFIX}{what}"
    if key not in state.notes:
        return state
    notes = {name: notes for name, notes in state.notes.items() if name != key}
    return msgspec.structs.replace(state, notes=notes)


def name_of(reading: object) -> str:
    """What the judging of such a reading is called."""
    return f"judging the {reading.source}" if isinstance(reading, Survey) else "judging the kernel log"


def place_of(error: Exception) -> str:
    """Its kind, and where in our code it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    return (
        f"{type(error).__name__} in {PurePath(trace.tb_frame.f_code.co_filename).name} line {trace.tb_lineno}"
    )
