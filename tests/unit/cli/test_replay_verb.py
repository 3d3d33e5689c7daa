"""`outlast replay`: files of every kind in, a page or JSON out, exit codes that a script can trust."""

import bz2
import gzip
import io
import json
import lzma
import os
import sys
from pathlib import Path
from random import Random

import pytest

from outlast.cli import run

FAULT = b"[  100.0] NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n"
CALM = b"[  100.0] usb 1-1: new high-speed USB device\n"


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_bytes(CALM * 3 + FAULT + CALM)
    return path


def test_a_fault_is_exit_code_1_with_its_line_and_the_policys_answer(
    faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Summary on top, then what proves it and what would be done."""
    code = run(["replay", str(faulty)])

    text = capsys.readouterr().out
    assert code == 1
    assert text.startswith("1 fault (1 RebootCures) on 1 GPU.")
    assert f"{faulty}:4" in text
    assert "policy: block new work > ask jobs for a checkpoint > drain > reboot" in text
    assert "Observe" in text
    assert "were not read" in text


def test_a_calm_log_is_exit_code_0_and_not_called_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log without a fault proves nothing about the GPUs, and the page says so."""
    (tmp_path / "calm").write_bytes(CALM)

    assert run(["replay", str(tmp_path / "calm")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("No fault of the machine.")
    assert "nothing here is called healthy" in " ".join(text.split())


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(FAULT),
        gzip.compress(CALM) + gzip.compress(FAULT),
        lzma.compress(FAULT),
        lzma.compress(CALM * 100_000) + lzma.compress(FAULT),
        bz2.compress(FAULT),
        bz2.compress(CALM * 100_000 + FAULT),
        gzip.compress(CALM * 200_000 + FAULT),
        b"\xff\xfe" + FAULT.decode().encode("utf-16-le"),
        FAULT.replace(b"\n", b"\r\n"),
        FAULT.rstrip(b"\n"),
        b"\xef\xbb\xbf" + CALM + FAULT,
    ],
    ids=[
        "gzip", "two gzips", "xz", "two xz", "bzip2", "long bzip2", "long gzip", "utf-16",
        "crlf", "no end", "bom",
    ],
)  # fmt: skip
def test_packed_and_encoded_logs_are_read(packed: bytes, tmp_path: Path) -> None:
    """By their first bytes; the name does not matter."""
    (tmp_path / "log").write_bytes(packed)

    assert run(["replay", str(tmp_path / "log")]) == 1


def test_standard_input_is_a_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`journalctl -k | outlast replay -`, packed or not."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(FAULT))))

    assert run(["replay", "-"]) == 1
    assert "(stdin):1" in capsys.readouterr().out


def test_what_was_read_before_damage_counts_and_the_damage_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cut gzip file still tells its beginning."""
    whole = gzip.compress(FAULT + os.urandom(50_000).hex().encode())
    (tmp_path / "cut.gz").write_bytes(whole[:-20_000])
    (tmp_path / "bad.gz").write_bytes(whole[:20_000] + b"\xff" * 2_000 + whole[22_000:])

    for name, words in (("cut.gz", "end too early"), ("bad.gz", "damaged")):
        assert run(["replay", str(tmp_path / name)]) == 1
        assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "does not exist"),
        ("", "is a directory"),
        ("/dev/zero", "is a device"),
        ("zst", "zstd -dc"),
        ("journal", "journalctl --file"),
        ("zip", "unzip -p"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_and_exit_code_2(
    name: str, words: str, tmp_path: Path, faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is read, so that a wrong name costs no hour."""
    (tmp_path / "zst").write_bytes(b"\x28\xb5\x2f\xfd....")
    (tmp_path / "journal").write_bytes(b"LPKSHHRH....")
    (tmp_path / "zip").write_bytes(b"PK\x03\x04....")

    assert run(["replay", str(faulty), str(tmp_path / name)]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out


@pytest.mark.parametrize(
    "content",
    [b"", b"\x7fELF\x00" * 200, bytes(5000), Random(7).randbytes(100_000)],
    ids=["empty", "binary", "zeros", "random"],
)
def test_nothing_to_read_is_exit_code_3(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty or binary file is not a log without faults."""
    (tmp_path / "x").write_bytes(content)

    assert run(["replay", str(tmp_path / "x")]) == 3
    out = capsys.readouterr().out
    assert out.startswith("Nothing could be read as a log.")
    assert "is empty" in out or "is no log" in out


def test_a_partly_bad_file_tells_how_much_of_it_was_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What could be read is judged, the rest counted."""
    (tmp_path / "x").write_bytes(FAULT + b"\x00\x01\x02\n" * 3 + CALM)

    assert run(["replay", str(tmp_path / "x")]) == 1
    assert "3 of its lines hold bytes that are no text" in capsys.readouterr().out


def test_json_is_one_versioned_document(faulty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts: the same facts, and the steps of the policy."""
    assert run(["replay", "--json", str(faulty)]) == 1
    document = json.loads(capsys.readouterr().out)

    assert document["version"] == 1
    (fault,) = document["faults"]
    assert (fault["root"], fault["where"]) == ("xid/79", {"file": str(faulty), "line": 4})
    assert fault["policy"]["steps"][:2] == ["BlockNewWork", "RequestCheckpoint"]
    assert "pid_set" not in document["tallies"][0]


def test_several_files_are_one_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order given; a line's number is that of its own file."""
    (tmp_path / "a").write_bytes(CALM + b"[ 200.0] NVRM: Xid (PCI:0000:02:00): 48, x\n")
    (tmp_path / "b").write_bytes(b"[ 210.0] NVRM: Xid (PCI:0000:02:00): 79, x\n")

    run(["replay", "--json", str(tmp_path / "a"), str(tmp_path / "b")])
    (fault,) = json.loads(capsys.readouterr().out)["faults"]

    assert [code["where"] for code in fault["codes"]] == [
        {"file": str(tmp_path / "a"), "line": 2},
        {"file": str(tmp_path / "b"), "line": 1},
    ]


def test_a_policy_file_gives_the_path(
    tmp_path: Path, faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its ladder and its mode; what is wrong with it is said with its place."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: outlast.dev/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: x}\n"
        "spec: {mode: Enforce, ladders: [{class: RebootCures, rungs: [BlockNewWork, Hold]}]}\n"
    )
    assert run(["replay", "--policy", str(policy), str(faulty)]) == 1
    assert "policy: block new work > hold for a human.\n" in capsys.readouterr().out

    for text, words in (
        ("kind: Pod", "0 objects of kind RemediationPolicy"),
        ("{", "is no YAML"),
        ("kind: RemediationPolicy\nspec: {mode: Sometimes}", "Sometimes"),
        ("kind: RemediationPolicy\nspec: {ladders: [{class: RebootCures, rungs: [Reboot]}]}", "Drain"),
    ):
        policy.write_text(text)
        assert run(["replay", "--policy", str(policy), str(faulty)]) == 2
        assert words in capsys.readouterr().err


def test_gpu_and_since_narrow_the_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another GPU, or a later date, and there is no fault."""
    (tmp_path / "x").write_bytes(b"Nov 30 12:00:00 h kernel: NVRM: Xid (PCI:0000:02:00): 79, x\n")
    path = str(tmp_path / "x")

    assert run(["replay", "--gpu", "0000:02:00", path]) == 1
    assert run(["replay", "--gpu", "0000:03:00.0", path]) == 0
    assert run(["replay", "--since", "2026-11-30T11:00", path]) == 1
    assert run(["replay", "--since", "2026-11-30T13:00", path]) == 0
    capsys.readouterr()
    (tmp_path / "undated").write_bytes(FAULT)
    assert run(["replay", "--since", "2026-11-30T13:00", str(tmp_path / "undated")]) == 1
    assert "has no dates, so --since left nothing out" in capsys.readouterr().out
    assert run(["replay", "--since", "yesterday", path]) == 2
    assert "is no date" in capsys.readouterr().err


def test_no_file_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """With what to do."""
    assert run(["replay", "--jsno", "x"]) == 2
    assert "there is no option --jsno" in capsys.readouterr().err
    assert run(["replay"]) == 2
    assert "Name a file, or - for standard input" in capsys.readouterr().err


def test_text_of_a_log_cannot_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Escape sequences of a hostile process name are spelled out."""
    (tmp_path / "x").write_bytes(
        b"[ 1.0] NVRM: Xid (PCI:0000:02:00): 79, pid=1, name=\x1b]0;owned\x07, x\n"
        b"Nov 30 12:00:00 h evil: NVRM: Xid \x1b[31m\xe2\x80\xae\n"
    )
    run(["replay", str(tmp_path / "x")])
    out = capsys.readouterr().out

    assert "\x1b" not in out
    assert "\u202e" not in out


def test_silence_in_half_a_log_is_not_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is missing may hold the fault: the words and the exit code say that it was not read."""
    path = tmp_path / "kern.log.gz"
    path.write_bytes(gzip.compress(CALM * 3)[:-8])

    assert run(["replay", str(path)]) == 3
    assert "No fault of the machine in what could be read." in capsys.readouterr().out


def test_a_gpu_that_is_no_address_is_refused(faulty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else nothing would match it, and that would read as good news."""
    assert run(["replay", "--gpu", "3", str(faulty)]) == 2
    assert "--gpu '3' is no PCI address; write it as 0000:65:00.0." in capsys.readouterr().err
    assert run(["replay", "--gpu", "00000000:02:00.0", str(faulty)]) == 1
