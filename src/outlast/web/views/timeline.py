"""The timeline of an incident, drawn to scale: one row a step, on a common axis of time.

Geometry only, in the units of the drawing's viewBox; the template turns it into SVG.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from outlast.remediation.page import Milestone
from outlast.web.wording import clock_time, span

WIDTH: Final = 1140.0
LABEL_WIDTH: Final = 132.0
REMARK_WIDTH: Final = 130.0
ROW_HEIGHT: Final = 30.0
TOP: Final = 26.0
BAR_HEIGHT: Final = 12.0
BAR_WIDTH_MIN: Final = 2.0
"""A step shorter than a hair is still drawn as a hair; its time stands beside it."""
TICKS_MAX: Final = 6
_TICK_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


class Bar(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One step of the story."""

    name: str
    x: float
    y: float
    width: float
    text_x: float
    lasted: str
    running: bool
    failed: bool
    started_at: datetime
    ended_at: datetime | None


class Tick(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A mark on the axis."""

    x: float
    label: str


class Timeline(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The drawing."""

    width: float
    height: float
    left: float
    right: float
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]


def timeline(milestones: Sequence[Milestone], now: datetime) -> Timeline | None:
    """Lay the steps out to scale; None where there is nothing to draw."""
    if not milestones:
        return None
    start = min(m.started_at for m in milestones)
    end = max(m.ended_at or now for m in milestones)
    total_s = max(1.0, (end - start).total_seconds())
    left, right = LABEL_WIDTH, WIDTH - REMARK_WIDTH
    scale = (right - left) / total_s

    def x_of(at: datetime) -> float:
        return left + max(0.0, (at - start).total_seconds()) * scale

    bars = []
    for i, one in enumerate(milestones):
        until = max(one.started_at, one.ended_at or now)
        x = min(x_of(one.started_at), right - BAR_WIDTH_MIN)
        width = max(BAR_WIDTH_MIN, x_of(until) - x)
        bars.append(
            Bar(
                name=one.name,
                x=round(x, 1),
                y=TOP + i * ROW_HEIGHT + (ROW_HEIGHT - BAR_HEIGHT) / 2,
                width=round(width, 1),
                text_x=round(x + width + 8, 1),
                lasted=span((until - one.started_at).total_seconds()),
                running=one.ended_at is None,
                failed=one.failed,
                started_at=one.started_at,
                ended_at=one.ended_at,
            )
        )
    return Timeline(
        width=WIDTH,
        height=TOP + len(bars) * ROW_HEIGHT + 4,
        left=left,
        right=right,
        bars=tuple(bars),
        ticks=_ticks(start, total_s, left, scale),
    )


def _ticks(start: datetime, total_s: float, left: float, scale: float) -> tuple[Tick, ...]:
    """Round steps from the start, few enough to be read."""
    step = next((s for s in _TICK_STEPS_S if total_s / s <= TICKS_MAX), _TICK_STEPS_S[-1])
    found = [Tick(x=left, label=clock_time(start))]
    at_s = step
    while at_s <= total_s and len(found) < 2 * TICKS_MAX:
        label = f"+{span(at_s)}" if at_s < 86400 else clock_time(start + timedelta(seconds=at_s))
        found.append(Tick(x=round(left + at_s * scale, 1), label=label))
        at_s += step
    return tuple(found)
