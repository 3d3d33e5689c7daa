"""`outlast xid`, `sxid` and `dcgm`: numbers, names and whole lines, for people and for scripts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from outlast.cli import run
from outlast.health.catalogue import CATALOGUE_VERSION, builtin

LINE = (
    "[171167.620236] NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 "
    "(0x021425c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
)
SWITCH_LINE = "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, {}, Link 30 LTSSM Fault Up"


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command prints."""
    assert run(list(arguments)) == code
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:  # type: ignore[type-arg]
    """The same as JSON."""
    found = json.loads(told(capsys, *arguments, "--json", code=code))
    assert isinstance(found, dict)
    assert (found["version"], found["catalogue"]) == (1, CATALOGUE_VERSION)
    return found


def test_an_answer_has_meaning_deed_advice_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    """Four questions, in this order, within the width of a terminal."""
    text = told(capsys, "xid", "79")
    order = [
        "no longer answers",
        "What outlast does",
        "Reboot: now",
        "over when",
        "What you should do",
        "Source:",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize("spelling", ["79", "xid 79", "Xid/79", "XID 79", " 79 "])
def test_a_code_can_be_spelled_as_people_do(spelling: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With and without its kind."""
    assert "FALLEN_OFF_THE_BUS" in told(capsys, "xid", spelling)


def test_a_programs_code_says_what_repeats_of_it_mean(capsys: pytest.CaptureFixture[str]) -> None:
    """One is nothing; several jobs on one GPU accuse it. A fault of the hardware has no such row."""
    text = " ".join(told(capsys, "xid", "31").split())
    assert "nothing happens to the node" in text
    assert "2 different jobs on one GPU within a day" in text
    assert "3 keep new work away where --application-rule is block" in text
    assert "different jobs" not in told(capsys, "xid", "79")


def test_a_pasted_line_is_decoded_and_judged_by_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    """The link event blames its peer, which the number alone does not say."""
    text = told(capsys, "xid", LINE)
    assert all(
        part in text for part in ("sub code   33", "link       1", "BlockNewWork", "other end of the link")
    )
    found = document(capsys, "xid", LINE)
    assert (found["code"], found["blames_peer"], found["line"]["sub_code"]) == (149, True, 33)
    assert (found["class"], found["role"]) == ("Transient", "leader")


def test_words_of_a_line_beat_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A contained error that asks for a reset is no longer contained."""
    line = "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7, name=a, Contained: CE. RST: {}, D-RST: No"
    asked = document(capsys, "xid", line.format("Yes"))
    assert (asked["class"], asked["rung"], asked["line"]["reset_needed"]) == ("ResetCures", "ResetGPU", True)
    assert document(capsys, "xid", line.format("No"))["scope"] == "Instance"
    action = "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)"
    assert document(capsys, "xid", action)["class"] == "RebootCures"


def test_lines_without_a_code_are_understood_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The text of a lost GPU has no number."""
    found = document(capsys, "xid", "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.")
    assert (found["event"], found["class"], found["known"]) == ("gpu/off-bus", "RebootCures", True)


@pytest.mark.parametrize("verb", ["xid", "sxid"])
def test_either_verb_takes_either_line(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever pastes a line need not know which kind it is."""
    assert "Xid 149" in told(capsys, verb, LINE)
    assert "SXid 20034" in told(capsys, verb, SWITCH_LINE.format("Fatal"))


def test_a_code_that_depends_lists_what_it_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    """Xid 149 by number is a table, and a request for the line."""
    text = told(capsys, "xid", "149")
    assert "sub-code 37, status 0x00000000" in text
    assert "look at the peer" in text
    rows = document(capsys, "xid", "149")["events"]
    assert len(rows) == sum(row.xid == 149 for row in builtin().nvlink5)


def test_the_word_in_a_switch_line_decides(capsys: pytest.CaptureFixture[str]) -> None:
    """Fatal needs a reboot of the node, non-fatal is a record."""
    fatal = document(capsys, "sxid", SWITCH_LINE.format("Fatal"))
    assert (fatal["class"], fatal["scope"], fatal["line"]["link"]) == ("RebootCures", "Node", 30)
    assert document(capsys, "sxid", SWITCH_LINE.format("Non-fatal"))["role"] == "informational"
    assert "recorded and nothing else" in told(capsys, "sxid", "20034")


@pytest.mark.parametrize(
    "arguments", [["xid", "9999"], ["sxid", "28006"], ["dcgm", "9999"], ["dcgm", "NOSUCH"]]
)
def test_what_nobody_knows_is_unknown_and_never_a_drain(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3, and what would happen."""
    text = told(capsys, *arguments, code=3)
    assert "Unknown" in text
    assert "drain" in text
    assert document(capsys, *arguments, code=3)["known"] is False


@pytest.mark.parametrize("spelling", ["95", "DCGM_FR_EUD_TEST_FAILED", "eud_test_failed", "dcgm 95"])
def test_a_dcgm_code_by_number_or_name(spelling: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As `dcgmi diag` prints it, or as its header names it."""
    found = document(capsys, "dcgm", spelling)
    assert (found["code"], found["name"], found["class"]) == (95, "EUD_TEST_FAILED", "HardwareGone")


@pytest.mark.parametrize(
    ("spelling", "value"), [("Memory system", 16), ("MEM", 16), ("nvlink", 2), ("Failure", 20), ("warn", 10)]
)
def test_a_dcgm_watch_and_its_values(spelling: str, value: int, capsys: pytest.CaptureFixture[str]) -> None:
    """By the words of `dcgmi health` and by their names."""
    assert document(capsys, "dcgm", spelling)["value"] == value
    text = told(capsys, "dcgm", spelling)
    assert "first rung" in text
    assert "What you should do" in text


def test_part_of_a_dcgm_name_finds_its_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody remembers these names."""
    assert "ROW_REMAP_FAILURE" in told(capsys, "dcgm", "row_remap", code=3)


@pytest.mark.parametrize(
    "arguments",
    [["xid", "abc"], ["xid", "hello (world)"], ["sxid", "abc"], ["xid", "NVRM: Xid (x): y"], ["xid", ""]],
)
def test_nonsense_is_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and what to give instead."""
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert "--help" in printed.err


def test_escape_sequences_in_a_pasted_line_are_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Process names are chosen by users and end on a terminal here."""
    text = told(capsys, "xid", "NVRM: Xid (PCI:0000:cb:00): 13, pid=4, name=\x1b[2Jx, Graphics Exception")
    assert "\x1b" not in text
    assert r"\x1b" in text


def test_overrides_by_option_and_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several files of different tables, told by their columns."""
    xids, switches = tmp_path / "mine.csv", tmp_path / "switches.csv"
    columns = "code,name,class,scope,severity,rung,urgency,role,rank,subsystem,reason,proof,expiry_s,text"
    row = "900,OURS,ResetCures,GPU,error,ResetGPU,now,leader,9,GPU,GpuStuck,RecoveryNone,0,Ours."
    xids.write_text(f"{columns}\n{row}\n")
    switches.write_text(
        "code,name,severity,class,scope,rung,urgency,text\n28006,Theirs,non-fatal,Transient,Domain,Watch,never,Theirs.\n"
    )
    given = ["--catalogue", str(xids), "--catalogue", str(switches)]
    assert "Ours." in told(capsys, "xid", "900", *given)
    assert "Theirs." in told(capsys, "sxid", "28006", *given)
    monkeypatch.setenv("OUTLAST_CATALOGUE", f"{xids}:{switches}")
    assert "Ours." in told(capsys, "xid", "900")
    assert "Theirs." in told(capsys, "sxid", "28006")
    monkeypatch.setenv("OUTLAST_CATALOGUE", str(tmp_path / "absent.csv"))
    assert run(["xid", "79"]) == 2
    assert "absent.csv" in capsys.readouterr().err


def test_the_usual_form_needs_no_parser(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the time of `outlast xid 79` was spent on loading the command line parser."""
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    for arguments in (
        ["xid", "79"],
        ["xid", "79", "--json"],
        ["sxid", "20034"],
        ["dcgm", "95"],
        ["xid", LINE],
    ):
        assert run(arguments) == 0
        assert capsys.readouterr().out


@pytest.mark.parametrize("verb", ["xid", "sxid", "dcgm"])
def test_every_listed_code_can_be_explained(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No row breaks the layout, and each says what outlast does."""
    known = builtin()
    listed = {"xid": known.xids, "sxid": known.sxids, "dcgm": known.dcgm_codes}[verb]
    for code in listed:
        text = told(capsys, verb, str(code))
        assert "What outlast does" in text
        assert "What you should do" in text
        assert all(len(line) <= 100 for line in text.splitlines())


def test_a_row_of_the_users_changes_the_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same file and the same option for every verb that judges."""
    log, mine = tmp_path / "dmesg", tmp_path / "mine.csv"
    log.write_text("[74889.644138] NVRM: Xid (PCI:0000:02:00): 109, pid=7, name=a, Ch 00000008\n")
    mine.write_text(
        "code,name,class,scope,severity,rung,role,rank,subsystem,reason,proof,expiry_s,text\n"
        "109,OURS,Application,GPU,error,Watch,application,12,GPU,ApplicationError,JobEnd,600,Ours.\n"
    )
    assert run(["replay", str(log)]) == 1
    assert run(["replay", str(log), "--catalogue", str(mine)]) == 0
    assert run(["replay", str(log), "--catalogue", str(log)]) == 2
    assert "line 1" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["xid", "sxid", "dcgm"])
def test_a_code_is_an_argument_and_no_option(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Who forgets it is asked for a CODE, as the help calls it."""
    assert run([verb]) == 2
    said = capsys.readouterr().err
    assert "CODE" in said
    assert "--code" not in said
