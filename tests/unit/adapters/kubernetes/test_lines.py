"""Bytes to lines: any chunking, bounded length, no half line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.adapters.kubernetes.lines import LineSplitter, LineTooLong


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"x"))), st.integers(1, 17))
def test_any_chunking_gives_the_same_lines(lines: list[bytes], chunk_bytes: int) -> None:
    """How the network cuts a stream never changes its lines; empty lines are left out."""
    stream = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter(64)
    got = [
        line
        for start in range(0, len(stream), chunk_bytes)
        for line in splitter.feed(stream[start : start + chunk_bytes])
    ]
    assert got == [line for line in lines if line.strip()]


def test_a_line_cut_off_is_never_given_out() -> None:
    """What is left without its line end when the stream stops was not complete."""
    assert LineSplitter(64).feed(b'{"a":1}\n{"b":') == [b'{"a":1}']


@pytest.mark.parametrize("chunks", [[b"x" * 65], [b"x" * 40, b"x" * 40], [b"a\n", b"x" * 65 + b"\n"]])
def test_a_line_beyond_the_limit_is_refused_while_it_grows(chunks: list[bytes]) -> None:
    """A line that never ends cannot fill the memory."""
    splitter = LineSplitter(64)
    with pytest.raises(LineTooLong, match="line_bytes_max"):
        for chunk in chunks:
            splitter.feed(chunk)
