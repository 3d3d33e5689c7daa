"""Lines that real machines printed, in the format they came in and in every other one: the same judgement."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from outlast.health.catalogue import builtin
from outlast.health.replay import Replay, Report, read_line

SAMPLES = Path(__file__).parents[3] / "data" / "kmsg-samples.tsv"
CATALOGUE = builtin()
SAYS_NOTHING = {"gpu_identity", "gpu_off_bus_part1", "negative"}
"""Of these a single line opens nothing and need not even be counted."""


class Sample(NamedTuple):
    kind: str
    code: str
    line: str


ROWS = [Sample(*(row.split("\t", 3)[i] for i in (0, 1, 3))) for row in SAMPLES.read_text().splitlines()[1:]]
IDS = [f"{number}-{row.kind}-{row.code}" for number, row in enumerate(ROWS, 1)]


def replayed(line: str) -> Report:
    replay = Replay(CATALOGUE)
    replay.begin_file("sample")
    replay.feed(line.encode())
    replay.end_file()
    return replay.report()


def outcome(report: Report) -> tuple[list[str], list[tuple[str, str, str, str]]]:
    return [t.code for t in report.tallies], [(f.root, f.fault_class, f.gpu, f.device) for f in report.faults]


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_every_collected_line_is_understood_where_it_stands(row: Sample) -> None:
    """A code is counted under its number, another kind under its own; what is benign opens no fault."""
    codes, faults = outcome(replayed(row.line))

    if row.kind == "xid":
        assert codes == [f"xid/{row.code}"] or (row.code == "154" and codes[0].startswith("recovery/"))
    elif row.kind in ("sxid", "sxid_detail"):
        assert codes == [f"sxid/{row.code}"]
    elif row.kind not in SAYS_NOTHING:
        assert len(codes) == 1
    else:
        assert not faults


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_the_format_of_a_line_changes_nothing(row: Sample) -> None:
    """The same words by dmesg, syslog, /dev/kmsg and the journal give the same faults and counts."""
    text = read_line(row.line.encode()).text
    entry = {"MESSAGE": text, "_TRANSPORT": "kernel", "_BOOT_ID": "ab", "__MONOTONIC_TIMESTAMP": "1"}
    numbers = {**entry, "MESSAGE": list(text.encode())}
    expected = outcome(replayed(text))
    for line in (
        f"[  100.000001] {text}",
        f"<4>[  100.000001][  T12] {text}\r\n",
        f"[Fri Aug 30 11:43:09 2024] {text}",
        f"2026-11-30T12:00:00,000000+00:00 {text}",
        f"Nov 30 12:00:00 gpu-17 kernel: {text}",
        f"2026-11-30T12:00:00.000000+00:00 gpu-17 kernel: [  100.000001] {text}",
        f"4,12,100000001,-;{text}",
        json.dumps(entry),
        json.dumps(numbers),
    ):
        assert outcome(replayed(line)) == expected, line


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_no_collected_line_counts_from_a_program(row: Sample) -> None:
    """With a program's tag in front of it, it opens nothing."""
    text = read_line(row.line.encode()).text

    assert not replayed(f"Nov 30 12:00:00 gpu-17 root[7]: {text}").faults
    assert not replayed(json.dumps({"MESSAGE": text, "_TRANSPORT": "syslog"})).faults
