"""Does the GPU calculate the same every time, the same as its peers, and right?

Two products, many times each. *Exact*: small whole numbers, whose sums no order of adding can round, so the
row sums are known beforehand by arithmetic alone. *Dense*: numbers that use more bits of the units; these
must agree with themselves and with peers of the same model and library. One wrong bit is a failure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import mul
from random import Random
from typing import Final

from outlast.active.device import Multiplier, Progress, WrongResult

SEED: Final = 20_261_130
"""The same on every machine, so that checksums can be compared."""
EXACT_MAX: Final = 2
"""Entries of the exact matrices: their sums stay far below 2^24, up to where 32-bit floats are exact."""
DENSE_MAX: Final = 127


def try_gemm(device: Multiplier, size: int, iterations: int, progress: Progress) -> str:
    """The checksum over both products. Raises WrongResult at the first product that is not as it must be."""
    if size * EXACT_MAX * EXACT_MAX >= 1 << 24:
        raise ValueError(f"matrices of size {size} are not exact in 32-bit floats")
    random = Random(SEED)  # noqa: S311 (test data)
    left, right = (_matrix(random, size, EXACT_MAX) for _ in range(2))
    exact = _repeat(device, left, right, size, iterations, lambda share: progress(share / 2))
    sums = device.row_sums(exact)
    wanted = _row_sums(left, right, size)
    wrong = [row for row in range(size) if sums[row] != wanted[row]]
    if wrong:
        row = wrong[0]
        raise WrongResult(
            f"{len(wrong)} of {size} rows of a product of whole numbers are wrong; "
            f"row {row} adds up to {sums[row]} instead of {wanted[row]}"
        )
    left, right = (_matrix(random, size, DENSE_MAX) for _ in range(2))
    dense = _repeat(device, left, right, size, iterations, lambda share: progress((1 + share) / 2))
    digest = hashlib.sha256(device.content(exact))
    digest.update(device.content(dense))
    return digest.hexdigest()[:32]


def _repeat(
    device: Multiplier,
    left: Sequence[int],
    right: Sequence[int],
    size: int,
    iterations: int,
    progress: Progress,
) -> object:
    one, other = device.load(left, size), device.load(right, size)
    first = device.multiply(one, other)
    for iteration in range(1, iterations):
        again = device.multiply(one, other)
        if not device.same_bits(first, again):
            raise WrongResult(
                f"product {iteration + 1} of the same two matrices differs from the first in its bits"
            )
        progress(iteration / iterations)
    return first


def _matrix(random: Random, size: int, limit: int) -> Sequence[int]:
    """Whole numbers from -limit to limit, as signed bytes."""
    span = 2 * limit + 1
    table = bytes((value % span - limit) & 0xFF for value in range(256))
    return memoryview(random.randbytes(size * size).translate(table)).cast("b")


def _row_sums(left: Sequence[int], right: Sequence[int], size: int) -> list[int]:
    """Row sums of the product without the product: left times the row sums of right."""
    sums = [sum(right[row * size : (row + 1) * size]) for row in range(size)]
    return [sum(map(mul, left[row * size : (row + 1) * size], sums)) for row in range(size)]
