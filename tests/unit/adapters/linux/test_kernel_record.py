"""The record parser: exact on what the kernel prints, unbreakable on everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.health.sources.kernel_record import LineSplitter, parse_record, unescape
from outlast.model.observation import KERNEL_LINE_BYTES_MAX, KERNEL_PROPERTIES_MAX


def test_a_driver_record_keeps_priority_flags_and_text_exactly() -> None:
    """NVIDIA's driver prints with priority 4 and flag c; nothing of that is dropped or merged."""
    record = parse_record(
        b"4,12045,74889644138,c;NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n"
    )

    assert record is not None
    assert (record.priority, record.facility, record.flags) == (4, 0, "c")
    assert (record.sequence, record.timestamp_us) == (12045, 74889644138)
    assert record.text == "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."


def test_a_record_of_user_space_shows_its_facility() -> None:
    """Facility is priority >> 3: 12 is user space at level 4."""
    record = parse_record(b"12,7,1,-;NVRM: Xid (PCI:0000:02:00): 79, forged")

    assert record is not None
    assert record.facility == 1


def test_later_header_fields_are_ignored() -> None:
    """The kernel may add fields before the semicolon; `caller=` is one."""
    record = parse_record(b"6,1,2,-,caller=T12,new=thing;text; with a semicolon")

    assert record is not None
    assert record.text == "text; with a semicolon"


def test_property_lines_are_kept_apart_from_the_text() -> None:
    """A device name that looks like an Xid must not be found in the text."""
    record = parse_record(b"6,1,2,-;hello\n SUBSYSTEM=pci\n DEVICE=+pci:NVRM: Xid\n")

    assert record is not None
    assert record.text == "hello"
    assert record.properties == ("SUBSYSTEM=pci", "DEVICE=+pci:NVRM: Xid")


def test_properties_are_bounded() -> None:
    """A record with a thousand property lines keeps the first few."""
    record = parse_record(b"6,1,2,-;hello\n" + b" KEY=value\n" * 1000)

    assert record is not None
    assert len(record.properties) == KERNEL_PROPERTIES_MAX


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"three\x0alines\x0a", "three\nlines\n"),
        (rb"caf\xc3\xa9", "café"),
        (rb"broken \xc3 end", "broken � end"),
        (rb"back\x5cx41slash", "back\\x41slash"),
        (rb"not an escape \x4", "not an escape \\x4"),
    ],
)
def test_escapes_are_undone_as_bytes_before_decoding(escaped: bytes, text: str) -> None:
    r"""\xNN stands for a byte, not for a character, and an escaped backslash starts no new escape."""
    assert unescape(escaped) == text


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"garbage",
        b"4,12045;two fields",
        b"x,1,2,-;priority",
        b"4,-1,2,-;negative",
        b"4,1,,-;no time",
        b"4, 1,2,-;space",
        b"4," + b"9" * 25 + b",2,-;a number beyond 64 bits",
        b"4,1,2," + b"f" * 300 + b";a header beyond its limit",
        "4,\u0661,2,-;digits of another script".encode(),
    ],
)
def test_bytes_that_are_no_record_give_none(line: bytes) -> None:
    """The header is exactly numbers; anything else is counted by the reader, not guessed at."""
    assert parse_record(line) is None


@given(
    st.binary(max_size=2000), st.sampled_from([b"", b"4,1,2,c;", b"4,1,2,c,", b"6,18446744073709551615,0,-;"])
)
def test_any_bytes_give_a_bounded_record_or_none(data: bytes, head: bytes) -> None:
    """No input raises, and no record is larger than its input."""
    record = parse_record(head + data)

    if record is not None:
        assert len(record.text) <= len(head + data)
        assert len(record.properties) <= KERNEL_PROPERTIES_MAX
        assert "\n" not in record.flags


@given(st.lists(st.binary(max_size=40)), st.data())
def test_lines_do_not_depend_on_how_the_bytes_arrive(lines: list[bytes], data: st.DataObject) -> None:
    """Any cut of the same stream into reads gives the same lines."""
    stream = b"\n".join(lines) + b"\n"
    whole, pieces = LineSplitter(limit_bytes=20), LineSplitter(limit_bytes=20)
    expected = whole.feed(stream)

    got: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += pieces.feed(stream[:size])
        stream = stream[size:]

    assert got == expected
    assert pieces.cut == whole.cut


def test_a_line_of_a_megabyte_is_cut_and_counted() -> None:
    """The rest of a hostile line is skipped; the next line is whole."""
    splitter = LineSplitter()
    lines: list[bytes] = []
    for _ in range(64):
        lines += splitter.feed(b"A" * 16384)
    lines += splitter.feed(b"A\nnext\n")

    assert [len(line) for line in lines] == [KERNEL_LINE_BYTES_MAX, 4]
    assert splitter.cut == 1
