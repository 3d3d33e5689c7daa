"""What a pod can put into the kernel log by its program's name is published as text and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.unit.health.builders import Scene

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202e\x00"


def strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for entry in value.values():
                yield from strings(entry)
        case list() | tuple():
            for entry in value:
                yield from strings(entry)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:10:1c): 79, pid=7, name={}, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:10:1c): 48, pid=7, name=a, DBE {} ECC Error",
        "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 {} LTSSM Fault Up",
    ],
)
def test_no_published_word_commands_a_terminal(line: str) -> None:
    """Conditions and NodeHealth hold printable characters only; what was not is spelled out."""
    scene = Scene()
    scene.line(line.format(HOSTILE))
    scene.poll()

    said = list(strings(msgspec.to_builtins((scene.status, scene.answer.conditions))))
    assert scene.status.faults
    assert [text for text in said if not text.isprintable()] == []
    assert any("\\x1b" in text for text in said)
