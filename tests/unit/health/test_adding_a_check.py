"""The example of docs/adding-a-check.md is executed: its check with its own tests, in the judge."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.health.verdict import levels
from tests.unit.health.builders import Scene

GUIDE = Path(__file__).parents[3] / "docs" / "adding-a-check.md"


def blocks() -> list[str]:
    """The Python of the guide."""
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)


def executed(source: str) -> dict[str, Any]:
    """The names that a block defines."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(source, str(GUIDE), "exec"), names)
    return names


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A machine whose judge also runs the example."""
    check = executed(blocks()[0])["CHECK"]
    monkeypatch.setattr(levels, "LEVEL_CHECKS", (*levels.LEVEL_CHECKS, check))
    levels.checks_of.cache_clear()
    yield Scene()
    levels.checks_of.cache_clear()


def examples() -> list[Callable[[Scene], None]]:
    """The tests that the guide shows."""
    return [value for name, value in executed(blocks()[1]).items() if name.startswith("test_")]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.__name__)
def test_the_guide_keeps_its_word(example: Callable[[Scene], None], scene: Scene) -> None:
    """Each test of the guide passes with the check of the guide."""
    example(scene)


def test_the_guide_has_its_parts() -> None:
    """One check, three tests, and what it names exists."""
    assert len(blocks()) == 2
    assert len(examples()) == 3
    for path in re.findall(r"`((?:tests|src)/[\w/.-]+\.py)`", GUIDE.read_text()):
        assert "example" in path or (GUIDE.parents[1] / path).exists()
