"""Which lines of the kernel log were judged already: a log that is read again tells nothing new.

The position in the log is kept apart from the judgement, and may be lost with it intact. Without this, a
line about a GPU that was repaired since would then be news.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.health.verdict.state import JudgeState, Moment
from outlast.model.observation import KernelRecord

HEARD_MAX: Final = 32
SPAN_US: Final = 1_000_000
"""Lines of several processors may be printed out of order; older than this, all of them came."""
AHEAD_US: Final = 60_000_000
"""A time so far ahead of the machine's own is a date, or made up: nothing is older than it."""


def possible(us: int, now: Moment) -> bool:
    """Whether a kernel time may be one of this boot."""
    return us <= now.monotonic * 1_000_000 + AHEAD_US


def heard(state: JudgeState, record: KernelRecord) -> bool:
    """Whether this line of the present boot was judged before, perhaps by an earlier process."""
    if record.timestamp_us < state.heard_us - SPAN_US:
        return True
    return (record.timestamp_us, record.sequence) in state.heard


def hear(state: JudgeState, record: KernelRecord, now: Moment) -> JudgeState:
    """Remember that this line is being judged."""
    if not possible(record.timestamp_us, now):
        return state
    newest_us = max(state.heard_us, record.timestamp_us)
    recent = [stamp for stamp in state.heard if stamp[0] >= newest_us - SPAN_US]
    recent.append((record.timestamp_us, record.sequence))
    return msgspec.structs.replace(state, heard_us=newest_us, heard=tuple(recent[-HEARD_MAX:]))
