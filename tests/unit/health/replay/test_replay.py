"""Whole logs: what opens a fault, what joins it, what harms nobody, where a boot begins; and any bytes."""

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.health.catalogue import Catalogue, builtin, tables
from outlast.health.finding import Proof
from outlast.health.replay import Replay, Report
from outlast.health.replay.machine import SAME_PER_SECOND_MAX
from outlast.health.replay.replay import MACHINES_MAX
from outlast.health.replay.story import ENTRIES_MAX, STORIES_MAX, TALLIES_MAX
from tests.unit.health.replay.test_line import FOREIGN_FORMS, KERNEL_FORMS, XID

CATALOGUE = builtin()


def replayed(*pieces: bytes) -> Report:
    replay = Replay(CATALOGUE)
    replay.begin_file("log")
    for piece in pieces:
        replay.feed(piece)
    replay.end_file()
    return replay.report()


def log(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def xid(code: int, time: str, detail: str = "pid=1, name=a, x", gpu: str = "0000:02:00") -> str:
    return f"[{time}] NVRM: Xid (PCI:{gpu}): {code}, {detail}"


def kinds(report: Report) -> list[str]:
    return [entry.kind for entry in report.timeline]


def test_a_burst_is_one_fault_with_the_lines_that_prove_it() -> None:
    """An echo that is printed first joins its cause; each code keeps the line that brought it."""
    report = replayed(
        log(
            "[  1.0] usb 1-1: new device",
            xid(45, "200.0"),
            xid(48, "200.1"),
            xid(63, "200.2"),
            xid(94, "203.0"),
        )
    )

    (fault,) = report.faults
    assert (fault.root, fault.gpu, fault.where.line) == ("xid/48", "0000:02:00.0", 3)
    assert {code.code: code.where.line for code in fault.codes} == {
        "xid/48": 3,
        "xid/45": 2,
        "xid/63": 4,
        "xid/94": 5,
    }
    assert fault.lines == 4


def test_an_application_error_opens_nothing_and_is_counted() -> None:
    """By GPU and code, with the number of processes."""
    report = replayed(log(*(xid(13, f"{100 + i}.0", f"pid={i % 2}, name=a, x") for i in range(6))))

    assert not report.faults
    (tally,) = report.tallies
    assert (tally.code, tally.count, tally.pids, tally.first.line, tally.last.line) == ("xid/13", 6, 2, 1, 6)


def test_time_passes_by_the_logs_own_clock() -> None:
    """A leader behind the window of the first is a story of its own; one within it joins."""
    together = replayed(log(xid(48, "100.0"), xid(79, "150.0")))
    apart = replayed(log(xid(48, "100.0"), xid(79, "2000.0")))

    assert [len(r.faults) for r in (together, apart)] == [1, 2]


def test_the_window_holds_over_a_new_year_without_years() -> None:
    """Two seconds are two seconds, also around midnight of 31 December."""
    report = replayed(
        log(
            "Dec 31 23:59:59 h kernel: NVRM: Xid (PCI:0000:02:00): 48, x",
            "Jan  1 00:00:01 h kernel: NVRM: Xid (PCI:0000:02:00): 79, x",
        )
    )

    assert len(report.faults) == 1


def test_relative_times_add_up_over_lines_that_say_nothing() -> None:
    """`dmesg -d` tells only the step from line to line."""
    steps = [f"[  +{100}.000000] usb something" for _ in range(20)]
    report = replayed(
        log(
            "[  +0.000001] NVRM: Xid (PCI:0000:02:00): 48, x",
            *steps,
            "[  +0.1] NVRM: Xid (PCI:0000:02:00): 79, x",
        )
    )

    assert len(report.faults) == 2


@pytest.mark.parametrize(
    "between",
    [
        ["[    0.000000] Linux version 6.1.0"],
        ["[    0.000000] Command line: x"],
        ["-- Boot 5fd2d9f0a3c14c7c8d8e9fa0b1c2d3e4 --"],
        ["-- Reboot --"],
        [],
    ],
    ids=["banner", "zero", "journal", "old journal", "time goes back"],
)
def test_a_new_boot_is_seen(between: list[str]) -> None:
    """By its banner, by the journal's line or by a clock that begins again; the fault waits for proof."""
    report = replayed(log(xid(79, "900.0"), *between, xid(13, "100.0")))

    assert report.boots == 2
    assert report.faults[0].state == "AwaitingProof"


def test_journal_entries_of_two_boots_are_two_boots() -> None:
    """The boot id is in each entry."""
    entry = '{{"MESSAGE":"{}","_TRANSPORT":"kernel","_BOOT_ID":"{}","__MONOTONIC_TIMESTAMP":"{}"}}'
    report = replayed(
        log(entry.format(XID, "aa", 5), entry.format("NVRM: Xid (PCI:0000:02:00): 13, x", "bb", 9))
    )

    assert report.boots == 2
    assert report.faults[0].state == "AwaitingProof"


def test_several_marks_of_one_boot_are_one_boot() -> None:
    """The journal's line, the banner and a hundred lines at zero."""
    report = replayed(
        log(
            xid(79, "900.0"),
            "-- Boot 5fd2d9f0a3c14c7c8d8e9fa0b1c2d3e4 --",
            "[    0.000000] Linux version 6.1.0",
            *["[    0.000000] BIOS-e820: x"] * 100,
            xid(79, "100.0"),
        )
    )

    assert report.boots == 2
    assert "again" in kinds(report)


def test_a_part_of_the_log_that_comes_twice_is_judged_once() -> None:
    """Bug reports hold the same log several times."""
    once = log(xid(48, "100.0"), xid(13, "150.0"), xid(79, "160.0"))
    report = replayed(once, once)

    assert (len(report.faults), report.boots, report.repeated) == (1, 1, 3)
    assert report.faults[0].lines == 3


def test_a_boot_is_dated_by_its_own_first_line_and_not_counted_twice() -> None:
    """Also when the same part of the log comes again, banner included."""
    part = log(
        f"Nov 30 10:00:00 h kernel: [  900.000000] {XID}",
        "Nov 30 10:05:00 h kernel: [    0.000000] Linux version 6.1.0",
        f"Nov 30 10:06:00 h kernel: [   60.000000] {XID}",
    )
    report = replayed(part, part)

    assert report.boots == 2
    assert report.repeated == 3
    assert [entry.at for entry in report.timeline if entry.kind == "boot"] == ["Nov 30 10:05:00"]


def test_machines_of_one_log_do_not_share_their_gpus() -> None:
    """A central log server writes all of them into one file."""
    line = "Nov 30 12:00:00 {} kernel: NVRM: Xid (PCI:0000:02:00): {}, x"
    report = replayed(log(line.format("a", 48), line.format("b", 79), line.format("a", 63)))

    assert [(f.host, f.root) for f in report.faults] == [("a", "xid/48"), ("b", "xid/79")]


@pytest.mark.parametrize("form", KERNEL_FORMS)
def test_a_fault_is_found_in_every_format(form: str) -> None:
    """From bytes to a fault, with foreign lines around it."""
    report = replayed(log("-- Logs begin", KERNEL_FORMS[form][0] + XID, "Nov 30 h systemd[1]: x"))

    assert [(f.root, f.where.line) for f in report.faults] == [("xid/79", 2)]


@pytest.mark.parametrize("form", FOREIGN_FORMS)
def test_no_format_lets_a_program_make_a_fault(form: str) -> None:
    """What a program wrote is counted and shown, never judged."""
    report = replayed(log(FOREIGN_FORMS[form] + XID))

    assert not report.faults
    assert report.not_from_kernel == 1
    assert "Xid" in report.not_from_kernel_examples[0]


@pytest.mark.parametrize("foreign", [0, 1, 7, 9, 50])
@pytest.mark.parametrize(
    "form",
    [
        "nothing",
        "dmesg",
        "rsyslog",
        "rsyslog RFC 3339",
        "dmesg iso with comma",
        "syslog in Polish",
        "tag alone",
    ],
)
def test_a_line_is_found_among_any_share_of_foreign_ones(form: str, foreign: int) -> None:
    """The short cut through syslog files misses nothing, whatever the rest of the block looks like."""
    text = "EXT4-fs (nvme0n1p1): Remounting filesystem read-only"
    noise = ["Nov 30 12:00:00 h app[1]: nvme NVR", "2026-11-30T12:00:00Z h app: I/O error", '{"log":"BUG: "}']
    lines = [KERNEL_FORMS[form][0] + text, KERNEL_FORMS[form][0] + XID]
    report = replayed(log(*noise * foreign, lines[0], *noise * foreign, lines[1], *noise * foreign))

    assert {tally.code for tally in report.tallies} >= {"xid/79"}
    assert len(report.tallies) == 2
    assert report.not_from_kernel == 0


def test_an_off_bus_text_of_three_lines_is_one_fault_with_its_gpu() -> None:
    """Other lines may come in between."""
    report = replayed(
        log(
            "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0",
            "[ 1843.308150] mlx5_core 0000:5c:00.0: Port: 1 Link INIT",
            "[ 1843.308151] NVRM: (PCI ID: 10de:26b5) installed in this system has",
            "[ 1843.308152] NVRM: fallen off the bus and is not responding to commands.",
        )
    )

    assert [f.gpu for f in report.faults] == ["0000:b3:00.0"]


def test_a_code_that_ends_by_silence_ends_in_the_log_too() -> None:
    """Virtual time makes it expire; what needs a probe stays."""
    entry = msgspec.structs.replace(CATALOGUE.xids[48], proof=Proof.EXPIRY, expiry_s=600)
    catalogue = Catalogue({tables.XID: {entry.key: entry}})
    ended = {}
    for hours in (0, 1):
        replay = Replay(catalogue)
        replay.begin_file("log")
        replay.feed(
            log(xid(48, "100.0"), xid(79, "100.0", gpu="0000:03:00"), xid(13, f"{200 + 3600 * hours}.0"))
        )
        ended[hours] = [(fault.root, fault.ended != "") for fault in replay.report().faults]

    assert ended[0] == [("xid/48", False), ("xid/79", False)]
    assert ended[1] == [("xid/48", True), ("xid/79", False)]


def test_a_flood_is_counted_whole_and_judged_in_part() -> None:
    """Of lines that differ only in numbers, a bounded number in each second goes to the judge."""
    count = 20 * SAME_PER_SECOND_MAX
    report = replayed(log(*(xid(48, f"100.{i:06d}", f"pid={i}, name=a, x") for i in range(count))))

    assert report.faults[0].lines == count
    assert report.tallies[0].last.line == count


def test_a_worse_line_in_a_flood_is_not_taken_for_one_of_it() -> None:
    """Only numbers behind the code make no difference; words do, and so does the code."""
    noise = [
        f"[100.{i:06d}] NVRM: Xid (PCI:0000:02:00): 145, RLW_REMAP Nonfatal XC0 i0 Link {i} (0x4 0x4)"
        for i in range(500)
    ]
    report = replayed(
        log(
            *noise,
            "[100.9] NVRM: Xid (PCI:0000:02:00): 145, RLW_REMAP Fatal XC0 i0 Link 1 (0x4 0x40)",
            xid(79, "100.95"),
        )
    )

    assert {code.code for fault in report.faults for code in fault.codes} == {"xid/145", "xid/79"}


def test_numbers_that_decide_are_not_taken_for_noise() -> None:
    """A sub-code is a number, and so is a recovery action: the rare one in a flood of others is judged."""
    line = (
        "[100.{:06d}] NVRM: Xid (PCI:0000:02:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 1 (0x{:03x}001c6 0x0)"
    )
    suspect = [line.format(i, 37) for i in range(500)]
    report = replayed(log(*suspect, line.format(600, 4)))

    assert [fault.fault_class for fault in report.faults] == ["ResetCures"]


def test_all_that_is_kept_has_a_limit() -> None:
    """A log of other addresses, hosts and codes without end fills no memory, and the rest is counted."""
    lines = (
        f"Nov 30 12:00:00 h{i % (MACHINES_MAX + 500)} kernel: NVRM: Xid (PCI:{i % 65536:04x}:02:00): 79, x"
        for i in range(TALLIES_MAX + 2_000)
    )
    report = replayed(log(*lines))

    assert len(report.faults) <= STORIES_MAX
    assert len(report.tallies) <= TALLIES_MAX
    assert len(report.timeline) <= ENTRIES_MAX
    assert set(report.left_out) == {"machines", "faults"}


def test_more_faults_than_a_judge_keeps_are_said() -> None:
    """The agent keeps a bounded number of open faults of one machine, and so does the replay of one."""
    report = replayed(log(*(xid(79, f"{100 + i}.0", gpu=f"{i:04x}:02:00") for i in range(100))))

    assert len(report.faults) + report.left_out["faults"] == 100


_LINES = st.sampled_from(
    [
        *(p[0] + XID for p in KERNEL_FORMS.values()),
        *(p + XID for p in FOREIGN_FORMS.values()),
        "[    0.000000] Linux version 6",
        "-- Reboot --",
        "[   50.000000] NVRM: Xid (PCI:0000:02:00): 13, pid=3, name=x, y",
        "[  +9.5] usb",
        " SUBSYSTEM=pci",
        "something else",
        "[  60.0] NVRM: " + "y" * 300,
        '{"MESSAGE":[78,86,82,77],"_TRANSPORT":"kernel"}',
    ]
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(_LINES, st.text(max_size=20)), max_size=8), st.booleans(), st.data())
def test_where_a_log_is_cut_into_pieces_makes_no_difference(
    lines: list[str], ends: bool, data: st.DataObject
) -> None:
    """Any cuts, also within a line, a character or an escape."""
    whole = "\n".join(lines).encode("utf-8", "replace") + (b"\n" if ends else b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))

    expected = msgspec.to_builtins(replayed(whole), enc_hook=list)
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert msgspec.to_builtins(replayed(*pieces), enc_hook=list) == expected


def test_a_log_of_all_formats_may_be_cut_anywhere() -> None:
    """Split at positions all over it: in times, tags, JSON and texts."""
    whole = log(*(p[0] + XID for p in KERNEL_FORMS.values()), *(p + XID for p in FOREIGN_FORMS.values()))
    expected = msgspec.to_builtins(replayed(whole))
    for cut in range(0, len(whole), 41):
        assert msgspec.to_builtins(replayed(whole[:cut], whole[cut:])) == expected, cut


@pytest.mark.parametrize("before", [0, 65_000, 65_500, 65_536, 70_000, 200_000])
def test_a_line_without_end_is_read_to_its_limit_wherever_it_is_cut(before: int) -> None:
    """What stands behind 64 KiB of a line is not looked at, in one piece or in many."""
    line = b"[ 1.0] NVRM: " + b"y" * before + XID.encode() + b"z" * 100_000 + b"\n" + XID.encode() + b"\n"
    whole = replayed(line)
    parts: Iterable[bytes] = (line[i : i + 10_000] for i in range(0, len(line), 10_000))

    assert msgspec.to_builtins(replayed(*parts)) == msgspec.to_builtins(whole)
    assert whole.files[0].lines == 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=5))
def test_no_bytes_make_a_replay_fail(pieces: list[bytes]) -> None:
    """Any bytes end with a report."""
    replayed(*pieces)
