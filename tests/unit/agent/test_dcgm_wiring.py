"""DCGM is a source only where it is installed or named; otherwise nothing of it is even loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from outlast.adapters.clock import SystemClock
from outlast.agent.sources import Places, build
from tests.dcgm import FakeDcgmi


def names(places: Places) -> list[str]:
    return [polled.name for polled in build(places, SystemClock()) if "DCGM" in polled.name]


def test_a_machine_without_the_tool_has_no_such_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor an exporter that nobody named."""
    monkeypatch.setenv("PATH", "/nowhere")

    assert names(Places()) == []


def test_the_tool_makes_a_source_unless_it_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` finds it, `off` does not look, an address asks another engine."""
    monkeypatch.setenv("PATH", str(FakeDcgmi(tmp_path).path.parent))

    assert names(Places()) == ["DCGM"]
    assert names(Places(dcgm="off")) == []
    assert names(Places(dcgm="dcgm.example:5555")) == ["DCGM"]


def test_a_named_exporter_makes_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no tool."""
    monkeypatch.setenv("PATH", "/nowhere")

    assert names(Places(dcgm_exporter="http://localhost:9400/metrics")) == ["DCGM exporter"]


def test_nothing_of_it_is_loaded_where_it_is_not() -> None:
    """The agent pays for what a machine has."""
    script = """
import sys
from outlast.adapters.clock import SystemClock
from outlast.agent.sources import Places, build
build(Places(), SystemClock())
print([name for name in sys.modules if "dcgm" in name and "adapters" in name])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PATH": "/nowhere"}, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "['outlast.adapters.dcgm', 'outlast.adapters.dcgm.find']"
