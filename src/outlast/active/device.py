"""What the tests need of a GPU; there is one on CUDA's driver library, one on torch, one in plain Python.

Standard library only: these files also run in a worker under another interpreter, the one that has torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Progress = Callable[[float], None]
"""Told the share that is done, 0 to 1."""


class WrongMemory(Exception):
    """Memory gave back something else than was written; `str()` says where and how."""


class WrongResult(Exception):
    """A computation went wrong in its bits; `str()` says how."""


class NoRoom(Exception):
    """There is not enough free memory for the test."""


class DeviceError(Exception):
    """The device, its driver or its library refused; `code` is the library's own number, where it has one."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Memory(Protocol):
    """Plain memory of a device. Every method may raise DeviceError."""

    def free_bytes(self) -> int:
        """Memory that could be allocated now."""
        ...

    def allocate(self, size: int) -> Any:
        """A buffer; raises NoRoom."""
        ...

    def release(self, buffer: Any) -> None:
        """Give the buffer back."""
        ...

    def fill(self, buffer: Any, offset: int, size: int, word: int) -> None:
        """Write one 32-bit word all over, on the device."""
        ...

    def write(self, buffer: Any, offset: int, data: bytes) -> None:
        """Copy from the host."""
        ...

    def read(self, buffer: Any, offset: int, size: int) -> bytes:
        """Copy to the host."""
        ...

    def copy_from(self, other: Any, target: Any, source: Any, size: int) -> None:
        """Copy from a buffer of another device of this kind; complete when it returns."""
        ...


class Multiplier(Protocol):
    """Matrices of a device, in the format that its tensor units multiply."""

    engine: str
    """Library and versions: results are compared bit by bit among equals only."""

    def load(self, values: Sequence[int], size: int) -> Any:
        """A square matrix of these small integers, row by row."""
        ...

    def multiply(self, left: Any, right: Any) -> Any:
        """The product, with 32-bit results."""
        ...

    def same_bits(self, one: Any, other: Any) -> bool:
        """Whether two matrices agree in every bit."""
        ...

    def row_sums(self, matrix: Any) -> list[int]:
        """The exact sum of each row; for matrices of whole numbers."""
        ...

    def content(self, matrix: Any) -> bytes:
        """All bits of a matrix, in row order."""
        ...


class Group(Protocol):
    """Some devices that reduce together; this process is one of them."""

    engine: str
    rank: int
    size: int

    def all_reduce(self, value: int, count: int) -> tuple[int, int, int, float]:
        """Sum of vectors of `count` times `value`: its smallest and largest element, its length, seconds."""
        ...
