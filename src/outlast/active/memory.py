"""Does memory give back what was written, and how fast do copies go?

Each pattern is written on the device and compared by the host, byte by byte. Constant words find data
lines that stick; a walking bit finds lines that touch each other; words that say where they are find address
lines, because memory that is reached under two addresses can only hold one of them.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import Any, Final

from outlast.active.device import Memory, NoRoom, Progress, WrongMemory

COPY_BYTES: Final = 32 << 20
"""Copies go in pieces of this size."""
PAGE_WORDS: Final = 512
"""Every this many 8-byte words the number of the piece is written in: once every 4 KiB."""
CONSTANTS: Final = (0x00000000, 0xFFFFFFFF, 0x55555555, 0xAAAAAAAA)
WALKING: Final = tuple(1 << bit for bit in range(32))
WALKING_BYTES_MAX: Final = 256 << 20
"""Data lines are the same for all addresses of a channel, so a part is enough for the 32 walking bits."""
FREE_SHARE: Final = 0.9
"""Of the free memory; the rest is for the driver."""
SMALLEST_BYTES: Final = 1 << 20
WORD: Final = 0x5AFEC0DE

Seconds = Callable[[], float]


def try_context(memory: Memory) -> None:
    """A little memory is there, takes a word and gives it back. Raises WrongMemory."""
    buffer = memory.allocate(4096)
    try:
        memory.fill(buffer, 0, 4096, WORD)
        _compare(memory.read(buffer, 0, 4096), WORD.to_bytes(4, "little") * 1024, 0, f"{WORD:#010x}")
    finally:
        memory.release(buffer)


def try_memory(memory: Memory, bytes_max: int, progress: Progress, chunk: int) -> int:
    """All patterns over as much memory as is free and allowed, in pieces of `chunk` bytes; how much it was.

    Raises WrongMemory at the first difference, NoRoom with less than a piece of free memory.
    """
    size = _room(memory, bytes_max, chunk)
    buffer = memory.allocate(size)
    try:
        steps = len(CONSTANTS) + 2
        for done, word in enumerate(CONSTANTS):
            _constant(memory, buffer, size, chunk, word)
            progress((done + 1) / steps)
        walked = min(size, max(chunk, WALKING_BYTES_MAX // chunk * chunk))
        for word in WALKING:
            _constant(memory, buffer, walked, chunk, word)
        progress((steps - 1) / steps)
        _addresses(memory, buffer, size, chunk)
        progress(1.0)
    finally:
        memory.release(buffer)
    return size


def try_host_copy(memory: Memory, size: int, seconds: Seconds = time.perf_counter) -> tuple[float, float]:
    """Bytes per second to the device and back. Raises WrongMemory when the content did not survive."""
    size = _room(memory, size, min(size, COPY_BYTES))
    piece = min(size, COPY_BYTES)
    data = _stamped(_template(piece), 7)
    buffer = memory.allocate(size)
    try:
        memory.write(buffer, 0, data)  # The first copy also pays for mapping.
        start = seconds()
        for offset in range(0, size, piece):
            memory.write(buffer, offset, data)
        there = seconds()
        for offset in range(0, size, piece):
            back = memory.read(buffer, offset, piece)
        end = seconds()
        _compare(back, data, size - piece, "a copy from the host")
    finally:
        memory.release(buffer)
    return size / max(there - start, 1e-9), size / max(end - there, 1e-9)


def try_peer_copy(
    one: Memory, other: Memory, size: int, seconds: Seconds = time.perf_counter
) -> tuple[float, float]:
    """Bytes per second from one device to the other and back. Raises WrongMemory."""
    piece = min(size, COPY_BYTES)
    size = min(_room(one, size, piece), _room(other, size, piece))
    here, there = one.allocate(size), other.allocate(size)
    try:
        data = _template(piece)
        for number, offset in enumerate(range(0, size, piece)):
            one.write(here, offset, _stamped(data, number))
        other.copy_from(one, there, here, size)  # The first copy also pays for opening the path.
        start = seconds()
        other.copy_from(one, there, here, size)
        middle = seconds()
        one.copy_from(other, here, there, size)
        end = seconds()
        for number, offset in enumerate(range(0, size, piece)):
            _compare(one.read(here, offset, piece), _stamped(data, number), offset, "a copy over and back")
    finally:
        one.release(here)
        other.release(there)
    return size / max(middle - start, 1e-9), size / max(end - middle, 1e-9)


def _room(memory: Memory, bytes_max: int, chunk: int) -> int:
    size = min(bytes_max, int(memory.free_bytes() * FREE_SHARE)) // chunk * chunk
    if size < min(chunk, SMALLEST_BYTES) or size == 0:
        raise NoRoom(f"less than {chunk} bytes of its memory are free")
    return size


def _constant(memory: Memory, buffer: Any, size: int, chunk: int, word: int) -> None:
    memory.fill(buffer, 0, size, word)
    wanted = word.to_bytes(4, "little") * (chunk // 4)
    for offset in range(0, size, chunk):
        _compare(memory.read(buffer, offset, chunk), wanted, offset, f"{word:#010x}")


def _addresses(memory: Memory, buffer: Any, size: int, chunk: int) -> None:
    """All is written before anything is read: a line that is stuck overwrites elsewhere."""
    template = _template(chunk)
    for number, offset in enumerate(range(0, size, chunk)):
        memory.write(buffer, offset, _stamped(template, number))
    for number, offset in enumerate(range(0, size, chunk)):
        _compare(memory.read(buffer, offset, chunk), _stamped(template, number), offset, "its own address")


def _template(chunk: int) -> array[int]:
    return array("Q", range(chunk // 8))


def _stamped(template: array[int], number: int) -> bytes:
    """Words that say where they are within the piece, and once a page which piece it is."""
    words = array("Q", template)
    pages = range(0, len(words), PAGE_WORDS)
    words[::PAGE_WORDS] = array("Q", (number << 32 | page for page in pages))
    return words.tobytes()


def _compare(got: bytes, wanted: bytes, offset: int, what: str) -> None:
    if got == wanted:
        return
    if len(got) != len(wanted):
        raise WrongMemory(f"{len(got)} bytes came back of {len(wanted)} at offset {offset:#x}")
    difference = int.from_bytes(got, "little") ^ int.from_bytes(wanted, "little")
    first = (difference & -difference).bit_length() - 1
    at = first // 32 * 4
    raise WrongMemory(
        f"{difference.bit_count()} wrong bits after writing {what}; the first at offset {offset + at:#x}: "
        f"wrote {int.from_bytes(wanted[at : at + 4], 'little'):#010x}, "
        f"read {int.from_bytes(got[at : at + 4], 'little'):#010x}"
    )
