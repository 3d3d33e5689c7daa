"""The kernel log read again: what was judged before is no news, whatever became of the position in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from outlast.health.catalogue import builtin
from outlast.health.verdict import JudgeState, Moment, Settings, judge, restore, to_bytes
from outlast.health.verdict.hearing import HEARD_MAX
from outlast.model.observation import KernelRecord

BOOT = "0d1cfb9c-4d0e-4a36-9d38-7d0a4c1f7a01"
UP_S = 10_000.0


def at(monotonic_s: float) -> Moment:
    return Moment(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=monotonic_s), monotonic_s)


def xid(sequence: int, us: int, bus: int = 2, *, replayed: bool = False) -> KernelRecord:
    text = f"NVRM: Xid (PCI:0000:{bus:02x}:00): 48, DBE"
    return KernelRecord(sequence=sequence, timestamp_us=us, priority=4, text=text, replayed=replayed)


def told(state: JudgeState, *records: KernelRecord, s: float = UP_S) -> JudgeState:
    return judge(state, records, at(s), builtin()).state


def began() -> JudgeState:
    return restore(None, BOOT, "", Settings(), at(UP_S))[0]


def restarted(state: JudgeState, boot: str = BOOT) -> JudgeState:
    return restore(to_bytes(state), boot, "", Settings(), at(UP_S + 10))[0]


def keys(state: JudgeState) -> Sequence[str]:
    return [fault.key for fault in state.faults]


def without_faults(state: JudgeState) -> JudgeState:
    """As after their repair was proven."""
    return msgspec.structs.replace(state, faults=())


def test_a_position_that_was_lost_brings_no_repaired_fault_back() -> None:
    """The state knows the line, so reading it again opens nothing."""
    state = restarted(without_faults(told(began(), xid(5, 5_000_000), xid(6, 9_000_000, bus=3))))

    again = told(
        state, xid(5, 5_000_000, replayed=True), xid(6, 9_000_000, bus=3, replayed=True), s=UP_S + 11
    )

    assert keys(again) == []


def test_lines_printed_while_no_agent_ran_are_news() -> None:
    """Also when they were printed in the very moment of the last one that was judged."""
    state = restarted(without_faults(told(began(), xid(5, 5_000_000))))

    again = told(state, xid(6, 5_000_000, bus=3, replayed=True), xid(7, 6_000_000, bus=4, replayed=True))

    assert keys(again) == ["0000:03:00.0", "0000:04:00.0"]


def test_a_live_line_is_always_judged() -> None:
    """Only a log that is read again can tell old news."""
    state = restarted(told(began(), xid(5, 5_000_000)))

    assert "0000:03:00.0" in keys(told(state, xid(1, 1_000, bus=3)))


def test_a_time_from_the_future_hides_nothing() -> None:
    """A date, or a number that somebody made up, is not remembered as how far the log was read."""
    state = restarted(told(began(), xid(5, 10**15)))

    assert "0000:03:00.0" in keys(told(state, xid(6, 6_000_000, bus=3, replayed=True)))


def test_another_boot_has_a_log_of_its_own() -> None:
    """Its lines are counted from zero."""
    state = restarted(told(began(), xid(5, 5_000_000)), boot="1" + BOOT[1:])

    assert "0000:03:00.0" in keys(told(state, xid(1, 1_000_000, bus=3, replayed=True)))


def test_a_flood_is_remembered_within_bounds() -> None:
    """A thousand lines in one moment."""
    state = told(began(), *(xid(number, 5_000_000 + number) for number in range(1000)))

    assert len(state.heard) <= HEARD_MAX
    assert len(to_bytes(state)) < 20_000


def test_a_saved_state_that_no_agent_wrote_stops_nothing() -> None:
    """A fault without codes is none, and a last line from the far future hides no line that comes."""
    saved = json.loads(to_bytes(told(began(), xid(5, 5_000_000))))
    saved["faults"][0]["codes"] = []
    saved["heard_us"] = 10**18

    state, problem = restore(json.dumps(saved).encode(), BOOT, "", Settings(), at(UP_S + 10))

    assert problem == ""
    assert keys(told(state, xid(6, 6_000_000, bus=3, replayed=True))) == ["0000:03:00.0"]
