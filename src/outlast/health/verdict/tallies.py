"""Some things only count in numbers: one corrected bus error is a note, a thousand in an hour are a fault.

Counted in kernel time, per thing and code. A record that stands for several counts for several.
"""

from __future__ import annotations

import msgspec

from outlast.health.finding import Event
from outlast.health.verdict.state import MARKS_MAX, TALLIES_MAX, JudgeState, Tally

MICROSECOND = 1_000_000


def counted(state: JudgeState, event: Event) -> tuple[JudgeState, bool]:
    """The state with this event counted, and whether there are enough of them now."""
    if event.count_min <= 1:
        return state, True
    known = next(
        (
            tally
            for tally in state.tallies
            if (tally.key, tally.code, tally.boot_id) == (event.key, event.code, state.boot_id)
        ),
        None,
    )
    since_us = event.timestamp_us - int(event.count_window_s * MICROSECOND)
    marks = [mark for mark in (known.marks if known else ()) if mark[0] > since_us]
    marks.append((event.timestamp_us, max(1, event.occurrences)))
    if len(marks) > MARKS_MAX:
        # The older time of the two: it leaves the window sooner, so nothing is counted for too long.
        (first_us, first), (_, second) = marks[:2]
        marks = [(first_us, first + second), *marks[2:]]
    tally = Tally(key=event.key, code=event.code, boot_id=state.boot_id, marks=tuple(marks))
    others = tuple(entry for entry in state.tallies if entry is not known)
    state = msgspec.structs.replace(state, tallies=(*others, tally)[-TALLIES_MAX:])
    return state, sum(times for _, times in marks) >= event.count_min
