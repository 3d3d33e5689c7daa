"""Devices in plain Python that can be broken in one way each; torch on the processor, where it is there."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from outlast.active.device import Multiplier, NoRoom

Flip = Callable[[int, bytearray], None]


class PlainMemory:
    """Memory in a byte array. `sick` changes what a read at an offset gives back."""

    def __init__(self, size: int = 1 << 22, *, sick: Flip | None = None, wraps_at: int = 0) -> None:
        self.size = size
        self.used = 0
        self.reads = 0
        self._sick = sick
        self._wraps_at = wraps_at

    def free_bytes(self) -> int:
        return self.size - self.used

    def allocate(self, size: int) -> bytearray:
        if size > self.free_bytes():
            raise NoRoom("no room")
        self.used += size
        return bytearray(size)

    def release(self, buffer: bytearray) -> None:
        self.used -= len(buffer)

    def fill(self, buffer: bytearray, offset: int, size: int, word: int) -> None:
        self.write(buffer, offset, struct.pack("<I", word) * (size // 4))

    def write(self, buffer: bytearray, offset: int, data: bytes) -> None:
        offset = self._where(offset)
        buffer[offset : offset + len(data)] = data

    def read(self, buffer: bytearray, offset: int, size: int) -> bytes:
        self.reads += 1
        where = self._where(offset)
        data = bytearray(buffer[where : where + size])
        if self._sick is not None:
            self._sick(offset, data)
        return bytes(data)

    def copy_from(self, other: PlainMemory, target: bytearray, source: bytearray, size: int) -> None:
        self.write(target, 0, other.read(source, 0, size))

    def _where(self, offset: int) -> int:
        """An address line that is stuck at zero: two addresses, one memory."""
        return offset & ~self._wraps_at if self._wraps_at else offset


def stuck_bit(at: int, bit: int) -> Flip:
    """A bit that always reads as one."""

    def flip(offset: int, data: bytearray) -> None:
        if offset <= at < offset + len(data):
            data[at - offset] |= 1 << bit

    return flip


class PlainMultiplier:
    """Matrices as lists of floats. `wrong_product` is the number of the product that has one wrong bit."""

    engine = "plain"

    def __init__(self, *, wrong_product: int = 0, always_wrong: bool = False) -> None:
        self._wrong = wrong_product
        self._always = always_wrong
        self.products = 0

    def load(self, values: Sequence[int], size: int) -> list[list[float]]:
        return [[float(value) for value in values[row * size : (row + 1) * size]] for row in range(size)]

    def multiply(self, left: list[list[float]], right: list[list[float]]) -> list[list[float]]:
        self.products += 1
        columns = list(zip(*right, strict=True))
        product = [
            [sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left
        ]
        if self._always or self.products == self._wrong:
            product[1][2] = _flipped(product[1][2])
        return product

    def same_bits(self, one: list[list[float]], other: list[list[float]]) -> bool:
        return self.content(one) == self.content(other)

    def row_sums(self, matrix: list[list[float]]) -> list[int]:
        return [int(sum(row)) for row in matrix]

    def content(self, matrix: list[list[float]]) -> bytes:
        return b"".join(struct.pack(f"<{len(row)}f", *row) for row in matrix)


def _flipped(value: float) -> float:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return float(struct.unpack("<f", struct.pack("<I", bits ^ 1 << 22))[0])


def torch_multiplier() -> Multiplier:
    """torch on the processor."""
    from outlast.adapters.active.torch_device import TorchMultiplier, load_torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns at its import where numpy is missing.
        torch = load_torch()
    return TorchMultiplier(torch, "cpu")


def multipliers() -> list[Callable[[], Multiplier]]:
    """Everything here that can multiply."""
    return [PlainMultiplier, *([torch_multiplier] if has_torch() else [])]


def has_torch() -> bool:
    """torch is no dependency of ours: where it is installed, its device is tested too."""
    return find_spec("torch") is not None
