"""How many observations a second the judge takes: kernel lines, surveys, and both as a machine makes them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from statistics import median

from tests.unit.health.builders import EPOCH, Scene, record

from benchmarks.report import Row, Section
from outlast.health.catalogue import builtin
from outlast.health.verdict import Moment, judge
from outlast.health.verdict.judge import Input
from outlast.model.observation import ProcessSurvey, RdmaSurvey

REPETITIONS = 5
RECORDS = 6_000
BATCH = 64
"""Lines that one turn of the agent's loop finds waiting in a flood; at most 4096 are read at once."""
POLL_S = 15.0
LINES_PER_S = 100
GOAL_PER_S = 20_000

FLOOD = (
    "NVRM: Xid (PCI:{g}): 45, pid=4711, name=python3, Ch {i:08x}",
    "NVRM: Xid (PCI:{g}): 13, pid=4711, name=python3, Graphics Exception: ESR 0x57c730={i:#x}",
    "NVRM: Xid (PCI:{g}): 48, An uncorrectable double bit error has been detected on GPU {i}",
)
DAY = (
    "mlx5_core 0000:d2:00.0: Port: 1 Link INIT {i}",
    "EXT4-fs (nvme1n1): mounted filesystem {i} with ordered data mode",
    "audit: type=1400 audit({i}): apparmor=DENIED",
    "NVRM: Xid (PCI:{g}): 13, pid=4711, name=python3, Graphics Exception: ESR 0x57c730={i:#x}",
    "pcieport 0000:00:03.1: AER: Corrected error received: 0000:00:03.1 {i}",
    "Memory cgroup out of memory: Killed process {i} (python3) total-vm:3500000kB",
)

Turn = tuple[Moment, Sequence[Input]]


def run() -> Section:
    """Three loads, each the median of a few repetitions."""
    mixed, in_mix = _mixed()
    flood = _lines(FLOOD)
    polls, in_polls = _polls(240)
    busy = _rate(mixed, in_mix)
    rows = (
        Row(
            "observations of a busy machine",
            f"{busy:,.0f}/s",
            f"> {GOAL_PER_S:,}/s",
            busy > GOAL_PER_S,
            f"{LINES_PER_S} kernel lines a second, and every {POLL_S:.0f} s a survey of each of 4 sources",
        ),
        Row(
            "kernel lines of a flood",
            f"{_rate(flood, RECORDS):,.0f}/s",
            note=f"all of them Xids, on 8 GPUs of which each has a fault; {BATCH} a turn",
        ),
        Row(
            "surveys alone",
            f"{_rate(polls, in_polls):,.0f}/s",
            note="each runs all checks of its source on 8 GPUs with 18 links, or 32 EFA devices",
        ),
    )
    return Section(
        "judge",
        "Observations a second through the judge",
        "One process, one core, processor time; a machine with 8 GPUs and 32 EFA devices in virtual time. An "
        "observation is one kernel record or one survey of one source, from its arrival to verdicts, "
        "conditions and NodeHealth.",
        rows,
    )


def _rate(turns: Sequence[Turn], observations: int) -> float:
    """Median rate over the repetitions."""
    catalogue = builtin()
    rates = []
    for _ in range(REPETITIONS):
        state = _machine().state
        begun = time.process_time()
        for now, inputs in turns:
            state = judge(state, inputs, now, catalogue).state
        rates.append(observations / (time.process_time() - begun))
    return median(rates)


def _machine() -> Scene:
    scene = Scene()
    scene.poll(3)
    return scene


def _lines(texts: Sequence[str]) -> list[Turn]:
    scene = _machine()
    records = [
        record(
            texts[number % len(texts)].replace("{g}", scene.gpu(number % 8)[:-2]).format(i=number),
            number + 1,
            int(scene.uptime_s * 1e6) + number * 1000,
        )
        for number in range(RECORDS)
    ]
    return [
        (_at(scene, number / 1000), records[number : number + BATCH]) for number in range(0, RECORDS, BATCH)
    ]


def _polls(rounds: int) -> tuple[list[Turn], int]:
    scene = _machine()
    turns: list[Turn] = []
    for number in range(rounds):
        turns += [(_at(scene, number * POLL_S + k), [one]) for k, one in enumerate(_surveys(scene))]
    return turns, len(turns)


def _mixed() -> tuple[list[Turn], int]:
    """Four polls with the lines between them, one line a turn: this is no flood."""
    scene = _machine()
    turns: list[Turn] = []
    number = 0
    for poll in range(4):
        turns += [(_at(scene, poll * POLL_S), [one]) for one in _surveys(scene)]
        for _ in range(int(LINES_PER_S * POLL_S)):
            number += 1
            text = DAY[number % len(DAY)].replace("{g}", scene.gpu(number % 8)[:-2]).format(i=number)
            at_s = poll * POLL_S + (number % (LINES_PER_S * POLL_S)) / LINES_PER_S
            line = record(text, number, int((scene.uptime_s + at_s) * 1e6))
            turns.append((_at(scene, at_s), [line]))
    return turns, len(turns)


def _surveys(scene: Scene) -> list[Input]:
    return [scene.pci(), scene.survey(), RdmaSurvey(), ProcessSurvey(whole_machine=True)]


def _at(scene: Scene, after_s: float) -> Moment:
    return Moment(EPOCH + timedelta(seconds=scene.time_s + after_s), scene.uptime_s + after_s)
