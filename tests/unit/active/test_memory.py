"""Memory tests on plain memory that is well, and broken in one way each."""

from itertools import count

import pytest

from outlast.active.device import NoRoom, WrongMemory
from outlast.active.memory import try_context, try_host_copy, try_memory, try_peer_copy
from tests.unit.active.devices import PlainMemory, stuck_bit

CHUNK = 64 * 1024


def ignore(share: float) -> None:
    pass


def test_good_memory_passes_and_is_given_back() -> None:
    """As much as is allowed is tested, and nothing stays allocated."""
    memory = PlainMemory()
    told: list[float] = []

    assert try_memory(memory, 8 * CHUNK, told.append, CHUNK) == 8 * CHUNK
    assert (memory.used, told[-1]) == (0, 1.0)
    assert told == sorted(told)


def test_only_free_memory_is_taken() -> None:
    """What a driver needs is left."""
    memory = PlainMemory(size=10 * CHUNK)

    assert try_memory(memory, 1 << 40, ignore, CHUNK) == 9 * CHUNK


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("at", [0, CHUNK + 12345, 4 * CHUNK - 1])
def test_a_bit_that_is_stuck_is_found_wherever_it_is(at: int, bit: int) -> None:
    """The message says where, what was written and what came back."""
    with pytest.raises(WrongMemory, match=f"1 wrong bits.*offset {at // 4 * 4:#x}"):
        try_memory(PlainMemory(sick=stuck_bit(at, bit)), 4 * CHUNK, ignore, CHUNK)


@pytest.mark.parametrize("line", [CHUNK, 2 * CHUNK])
def test_an_address_line_that_is_stuck_is_found(line: int) -> None:
    """Constant patterns cannot see it: the same memory under two addresses holds the same constant."""
    with pytest.raises(WrongMemory, match="its own address"):
        try_memory(PlainMemory(wraps_at=line), 4 * CHUNK, ignore, CHUNK)


def test_two_data_lines_that_touch_are_found() -> None:
    """Bit 3 follows bit 2: no constant of all zeros, ones or alternating pairs shows every such couple."""

    def touch(offset: int, data: bytearray) -> None:
        if offset == 0 and data[0] & 4:
            data[0] |= 8

    with pytest.raises(WrongMemory):
        try_memory(PlainMemory(sick=touch), 4 * CHUNK, ignore, CHUNK)


def test_memory_is_given_back_after_a_failure_too() -> None:
    """A failed test holds nothing."""
    memory = PlainMemory(sick=stuck_bit(0, 0))

    with pytest.raises(WrongMemory):
        try_memory(memory, 4 * CHUNK, ignore, CHUNK)
    assert memory.used == 0


def test_too_little_memory_is_not_a_fault() -> None:
    """No room to test says nothing about the memory."""
    with pytest.raises(NoRoom):
        try_memory(PlainMemory(size=CHUNK), 1 << 40, ignore, CHUNK)


def test_the_context_test_reads_back_its_word() -> None:
    """It passes on good memory and fails where the word does not come back."""
    try_context(PlainMemory())
    with pytest.raises(WrongMemory, match="0x5afec0de"):
        try_context(PlainMemory(sick=stuck_bit(5, 0)))


def test_copy_rates_are_bytes_by_the_clock() -> None:
    """One second for each look at the clock: 1 MiB a second each way."""
    ticks = count()

    there, back = try_host_copy(PlainMemory(), 1 << 20, lambda: float(next(ticks)))

    assert (there, back) == (1 << 20, 1 << 20)


def test_a_copy_that_loses_a_bit_is_a_failure() -> None:
    """Speed does not matter when the data is wrong."""
    with pytest.raises(WrongMemory, match="a copy"):
        try_host_copy(PlainMemory(sick=stuck_bit(2, 1)), 1 << 20)
    with pytest.raises(WrongMemory, match="over and back"):
        try_peer_copy(PlainMemory(), PlainMemory(sick=stuck_bit(2, 1)), 1 << 20)


def test_a_good_peer_copy_has_two_rates() -> None:
    """There and back are different ways."""
    ticks = iter([0.0, 1.0, 3.0])

    there, back = try_peer_copy(PlainMemory(), PlainMemory(), 1 << 20, lambda: next(ticks))

    assert there == 2 * back
