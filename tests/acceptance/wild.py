"""Blocks of tests/data/wild: log lines as they were published, with the verdict that each deserves.

A block begins with `## id | cure | where | source`. The lines are read in whatever form they were printed
in; {g}, {h} and {0}..{7} are GPUs of the machine. A cure with `?` means at most that.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from outlast.health.catalogue import builtin
from outlast.health.replay import Replay
from outlast.health.replay.line import read_line
from outlast.model.health import FaultState
from tests.acceptance.incidents import STRENGTH
from tests.unit.health.builders import Scene

DATA: Final = Path(__file__).parents[1] / "data" / "wild"
_HEAD: Final = re.compile(r"## (?P<id>[\w-]+) \| (?P<cure>\w+\??) \| (?P<where>[\w-]+) \| (?P<source>.+)")


class Block(msgspec.Struct, frozen=True):
    """What was printed, and what should be made of it."""

    id: str
    cure: str
    where: str
    lines: tuple[str, ...]


class Verdict(msgspec.Struct, frozen=True):
    """The strongest class of any fault, and what the faults of that class are about."""

    cure: str
    about: frozenset[str]

    def fits(self, block: Block, addresses: dict[str, str]) -> bool:
        """Whether it is what the block deserves."""
        wanted = block.cure.rstrip("?")
        if block.cure.endswith("?"):
            return STRENGTH[self.cure] <= STRENGTH[wanted]
        place = addresses.get(block.where)
        return self.cure == wanted and (place is None or self.about == {f"{place}.0"})


def blocks() -> list[Block]:
    """All of them; their ids begin with the name of their file."""
    found: list[Block] = []
    for path in sorted(DATA.glob("*.log")):
        for line in path.read_text().splitlines():
            if head := _HEAD.fullmatch(line):
                found.append(Block(f"{path.stem}-{head['id']}", head["cure"], head["where"], ()))
            else:
                assert not line.startswith("## "), line
                found[-1] = msgspec.structs.replace(found[-1], lines=(*found[-1].lines, line))
    return found


def day_of(chosen: list[Block], rng: Random, times: int) -> Block:
    """Blocks in any order, each several times, with the timestamps of one log that goes on."""
    order = chosen * times
    rng.shuffle(order)
    lines: list[str] = []
    at_s = 1000.0
    for block in order:
        at_s += rng.uniform(0.1, 300)
        for raw in block.lines:
            line = read_line(raw.encode())
            at_s += rng.uniform(0, 0.1)
            mark = "<4>" if line.kernel else "<12>"
            lines += [f"{mark}[{at_s:12.6f}] {part}" for part in line.text.split("\n") if line.relevant]
    return Block("day", "none", "-", tuple(lines))


def addresses(scene: Scene) -> dict[str, str]:
    """The names in the blocks; as a Xid prints them, without the function."""
    named = {str(index): scene.gpu(index)[:-2] for index in range(8)}
    return named | {"g": named["2"], "h": named["5"]}


def lived_through(block: Block) -> tuple[Verdict, dict[str, str]]:
    """A healthy machine prints the lines, is polled, and stays healthy by every other sign."""
    scene = Scene()
    named = addresses(scene)
    worst: dict[tuple[str, str], str] = {}

    def note() -> None:
        for fault in scene.status.faults:
            if fault.state is FaultState.OPEN:
                about = fault.gpu.pci_address if fault.gpu else fault.device or "node"
                worst[fault.id, fault.fault_class.value] = about

    for raw in _named(block, named):
        line = read_line(raw.encode())
        uptime_s = (line.uptime_us or 0) / 1_000_000
        scene.time_s = max(scene.time_s + 0.01, uptime_s if block.id == "day" else 0)
        if line.relevant:
            scene.line(line.text, priority=4 if line.kernel else 12)
        note()
    for step_s in (6.0, 9.0, 15.0):
        scene.time_s += step_s
        scene.tell(scene.pci(), scene.survey())
        note()
    return _strongest(((cure, about) for (_, cure), about in worst.items())), named


def replayed(block: Block) -> tuple[Verdict, dict[str, str]]:
    """The same from a file, where nothing but the log is known."""
    named = addresses(Scene(checked=False))
    replay = Replay(builtin())
    replay.begin_file("wild.log")
    replay.feed("".join(f"{line}\n" for line in _named(block, named)).encode())
    replay.end_file()
    found = ((story.fault_class, story.gpu or story.device or "node") for story in replay.report().faults)
    return _strongest(found), named


def _named(block: Block, named: dict[str, str]) -> list[str]:
    return [re.sub(r"\{([gh0-7])\}", lambda found: named[found[1]], line) for line in block.lines]


def _strongest(found: Any) -> Verdict:
    pairs = list(found)
    cure = max((cure for cure, _ in pairs), key=STRENGTH.__getitem__, default="none")
    return Verdict(cure, frozenset(about for other, about in pairs if other == cure))
