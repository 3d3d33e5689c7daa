"""The page of `outlast check` on a terminal: foreign text, colours, width."""

from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

from outlast.agent.look import Seen
from outlast.cli.check_page import CheckPage
from outlast.cli.check_rows import FaultRow, GpuRow, SlowRow, SourceRow, SubsystemRow, TestRow
from outlast.cli.check_screen import show
from outlast.model.health import Evidence, Fault, FaultClass, Scope, Subsystem, Verdict
from outlast.model.observation.active import Outcome
from tests.unit.cli.test_hostile_text import HOSTILE

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ADDRESS = "0000:10:00.0"


def page(text: str) -> CheckPage:
    """Everything that a node, a driver or a tool can put in."""
    fault = Fault(
        id="f",
        code=text,
        fault_class=FaultClass.RESET_CURES,
        subsystem=Subsystem.GPU,
        scope=Scope.GPU,
        summary=text,
        opened_at=NOW,
        last_seen_at=NOW,
        clears_by=text,
        evidence=(Evidence(at=NOW, source="kernel log", text=text),),
    )
    gpu = GpuRow(
        index=0,
        pci_address=ADDRESS,
        model=text,
        uuid=text,
        serial=text,
        verdict=Verdict.FAULTY,
        reason=text,
        what=text,
    )
    subsystem = SubsystemRow(
        subsystem="GPU", condition="GPUReady", verdict=Verdict.FAULTY, reason="X", message=text, counts=True
    )
    test = TestRow(
        test="context",
        gpus=(ADDRESS,),
        outcome=Outcome.FAILED,
        not_tested="",
        failure="Error",
        why=text,
        engine=text,
        checksum=text,
        bytes_per_second=1e9,
        duration_seconds=1.0,
    )
    return CheckPage(
        level="quick",
        host=text,
        checked_at=NOW,
        duration_seconds=1.0,
        verdict=Verdict.FAULTY,
        exit_code=1,
        headline=text,
        advice=text,
        gpus=(gpu,),
        subsystems=(subsystem,),
        faults=(FaultRow(fault=fault, reason="X", advice=text, age_seconds=90.0),),
        faults_dropped=0,
        sources=(SourceRow(name="NVML", seen=Seen.FAILED, message=text, duration_seconds=0.1),),
        tests=(test,),
        slow=(SlowRow(test="context", gpus=(ADDRESS,), text=text),),
        looked_at=(text,),
        driver_version=text,
        instance_type=text,
        boot_id=text,
    )


def shown(text: str, *, colours: bool) -> str:
    out = StringIO()
    system = "standard" if colours else None
    console = Console(file=out, force_terminal=True, color_system=system, width=100, highlight=False)
    show(console, page(text))
    return out.getvalue()


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_foreign_text_is_shown_and_not_obeyed(text: str) -> None:
    """No escape sequence, no turned-around text and no markup reaches the terminal."""
    output = shown(text, colours=False)

    assert not set(output) & {"\x1b", "\x9b", "\x07", "\u202e", "\t"}
    assert max(map(len, output.splitlines())) <= 100
    if text.startswith("["):
        assert "".join(text.split()) in "".join(output.split())


def test_colour_is_never_the_only_sign() -> None:
    """The same words without colours."""
    assert "\x1b[" in shown("text", colours=True)
    plain = shown("text", colours=False)
    assert "! FAULTY" in plain
    assert "! faulty" in plain
