"""What the demo prints at its end."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from outlast.cli.demo_screen import print_summary
from outlast.sim.demo import IncidentSummary, Report

SUMMARY = IncidentSummary(
    name="gpu-003-2250548d",
    node="gpu-003",
    fault="monitor/hung",
    end="NotNeeded",
    opened_at=datetime(2026, 11, 30, 12, tzinfo=UTC),
    detect_to_block_s=1.4,
    checkpoint_s=79.0,
    drain_s=12.5,
    repair_s=371.0,
    out_s=1154.0,
)
REPORT = Report(
    ok=True,
    over=True,
    simulated_minutes=50.0,
    real_s=60.0,
    nodes=48,
    stories=(),
    incidents=(SUMMARY,),
    false_drains=(),
    violations=(),
    checks=1,
    crashes=(),
    reboots=1,
    replaced=0,
    agent_writes={},
    controller_writes={},
)


@pytest.mark.parametrize("width", [80, 100])
def test_the_summary_fits_the_terminal_and_cuts_nothing_away(width: int) -> None:
    """The most usual terminal has 80 columns; a node whose name is cut off cannot be looked up."""
    paper = io.StringIO()
    print_summary(Console(file=paper, width=width), REPORT, stays=False)
    text = paper.getvalue()
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    for word in ("gpu-003", "monitor hung", "not needed", "1 min 19 s", "CHECKPOINT", "6 min 11 s", "19 min"):
        assert word in text
