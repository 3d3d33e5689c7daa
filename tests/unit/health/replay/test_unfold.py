"""Records that span lines: found as in any other format, at their own lines, whatever is in them."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.health.catalogue import builtin
from outlast.health.replay import Replay, Report
from outlast.health.replay.unfold import RECORD_BYTES_MAX, unfolded

LOST = "NVRM: Xid (PCI:0000:4b:00): 79, pid=1, name=a, GPU has fallen off the bus."
BOOT = "a" * 32
CALM = "usb 1-1: new high-speed USB device"


def entry(message: Any, transport: str = "kernel") -> dict[str, Any]:
    """A journal entry."""
    return {
        "__CURSOR": "s=1",
        "__REALTIME_TIMESTAMP": "1796000000000000",
        "__MONOTONIC_TIMESTAMP": "4479102938",
        "_BOOT_ID": BOOT,
        "_TRANSPORT": transport,
        "MESSAGE": message,
        "_HOSTNAME": "gpu-17",
    }


def pretty(*entries: dict[str, Any]) -> bytes:
    """`journalctl -o json-pretty`."""
    return b"".join(json.dumps(one, indent="\t", separators=(",", " : ")).encode() + b"\n" for one in entries)


def export(*entries: dict[str, Any]) -> bytes:
    """`journalctl -o export`; values of several lines with their length."""
    out = b""
    for one in entries:
        for name, value in one.items():
            data = value.encode()
            if "\n" in value:
                out += name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
            else:
                out += name.encode() + b"=" + data + b"\n"
        out += b"\n"
    return out


def dmesg(*messages: str, **more: str) -> bytes:
    """`dmesg --json`, laid out as util-linux does."""
    head, foot = '{\n   "dmesg": [\n      {\n', "      }\n   ]\n}\n"
    fields = [
        "".join(f'         "{k}": {json.dumps(v)},\n' for k, v in more.items())
        + f'         "pri": 4,\n         "time": {100 + at}.000001,\n         "msg": {json.dumps(text)}\n'
        for at, text in enumerate(messages)
    ]
    return (head + "      },{\n".join(fields) + foot).encode()


def played(pieces: Iterable[bytes]) -> Report:
    """The log through the replay."""
    replay = Replay(builtin())
    replay.begin_file("log")
    for piece in unfolded(pieces):
        replay.feed(piece)
    replay.end_file()
    return replay.report()


LOGS = {
    "pretty": (pretty(entry(CALM), entry(LOST)), 10),
    "pretty, as numbers": (pretty(entry(CALM), entry(list(LOST.encode()))), 10),
    "export": (export(entry(CALM), entry(LOST)), 9),
    "export, several lines": (export(entry("one\ntwo"), entry(f"{LOST}\nand more")), 11),
    "dmesg": (dmesg(CALM, LOST), 8),
    "dmesg -x": (dmesg(CALM, LOST, fac="kern"), 9),
    "dmesg, a record of several lines": (dmesg(CALM, f"x\n{LOST}"), 8),
}


@pytest.mark.parametrize(("log", "line"), LOGS.values(), ids=LOGS)
@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_a_fault_is_found_at_its_own_line(log: bytes, line: int, size: int) -> None:
    """However the log is cut into pieces."""
    report = played(log[at : at + size] for at in range(0, len(log), size))

    [fault] = report.faults
    assert (fault.root, fault.gpu) == ("xid/79", "0000:4b:00.0")
    assert fault.where.line == line
    assert report.files[0].lines == log.count(b"\n")


@pytest.mark.parametrize("log", [log for log, _ in LOGS.values()], ids=LOGS)
def test_a_log_that_is_cut_short_still_tells_its_beginning(log: bytes) -> None:
    """A fault before the cut is a fault, and no cut makes one up."""
    found = [len(played([log[:end]]).faults) for end in (*range(0, len(log), 5), len(log))]

    assert found == sorted(found)
    assert set(found) == {0, 1}


@pytest.mark.parametrize(
    "log",
    [
        pretty(entry(LOST, "stdout")),
        pretty(entry(f'x\n}}\n{{"MESSAGE":"{LOST}","_TRANSPORT":"kernel"}}', "stdout")),
        pretty(entry(f"{'x' * (RECORD_BYTES_MAX + 10)}\n[ 1.0] {LOST}", "stdout")),
        export(entry(LOST, "stdout")),
        export(entry(f"x\n\n_TRANSPORT=kernel\nMESSAGE={LOST}\n\n[ 1.0] {LOST}", "stdout")),
        export(entry(f"{'x' * RECORD_BYTES_MAX}\n[ 1.0] {LOST}", "stdout")),
        dmesg(LOST, fac="user"),
        dmesg(f'x\n      }},{{\n"msg": "{LOST}"', fac="user"),
    ],
)
@pytest.mark.parametrize("size", [64, 4096, 10**6])
def test_no_message_of_a_program_becomes_a_record_of_the_kernel(log: bytes, size: int) -> None:
    """Whatever ends of lines, braces and names of fields it holds, and however long it is."""
    assert not played(log[at : at + size] for at in range(0, len(log), size)).faults


@pytest.mark.parametrize("log", [pretty(entry(CALM)), export(entry(CALM)), dmesg(CALM)])
def test_another_format_behind_it_is_read_too(log: bytes) -> None:
    """Logs are joined with `cat`."""
    assert len(played([log + f"[  100.000000] {LOST}\n".encode()]).faults) == 1


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_any_other_log_passes_as_it_is(pieces: list[bytes]) -> None:
    """Byte for byte."""
    assert b"".join(unfolded(pieces)) == b"".join(pieces)


@pytest.mark.parametrize("log", [log for log, _ in LOGS.values()], ids=LOGS)
@given(at=st.floats(0, 1), junk=st.binary(max_size=40))
def test_damage_is_no_exception(log: bytes, at: float, junk: bytes) -> None:
    """Bytes in a wrong place cost at most the records around them."""
    place = int(at * len(log))
    played([log[:place] + junk + log[place:]])
