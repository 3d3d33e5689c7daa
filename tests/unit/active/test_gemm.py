"""The GEMM checksum: one wrong bit anywhere is found, and equal devices agree."""

from collections.abc import Callable

import pytest

from outlast.active.all_reduce import try_all_reduce
from outlast.active.device import Multiplier, WrongResult
from outlast.active.gemm import try_gemm
from tests.unit.active.devices import PlainMultiplier, multipliers

SIZE = 16


def ignore(share: float) -> None:
    pass


@pytest.mark.parametrize("make", multipliers())
def test_equal_devices_get_equal_checksums(make: Callable[[], Multiplier]) -> None:
    """The matrices are the same on every machine."""
    assert try_gemm(make(), SIZE, 3, ignore) == try_gemm(make(), SIZE, 3, ignore)


@pytest.mark.parametrize("make", multipliers())
def test_the_exact_product_is_what_arithmetic_says(make: Callable[[], Multiplier]) -> None:
    """Row sums are known without the product, so a device is checked without peers."""
    assert len(try_gemm(make(), 64, 2, ignore)) == 32


@pytest.mark.parametrize("product", [2, 3, 4])
def test_one_wrong_bit_in_one_product_is_found(product: int) -> None:
    """Whatever iteration of the first kind of matrices it is in."""
    with pytest.raises(WrongResult, match=f"product {product} .*differs"):
        try_gemm(PlainMultiplier(wrong_product=product), SIZE, 4, ignore)


def test_a_wrong_bit_of_the_dense_products_is_found_too() -> None:
    """The second kind of matrices comes after all of the first."""
    with pytest.raises(WrongResult, match="product 2 "):
        try_gemm(PlainMultiplier(wrong_product=4 + 2), SIZE, 4, ignore)


def test_a_device_that_is_always_wrong_in_the_same_way_is_found() -> None:
    """It agrees with itself; arithmetic does not agree with it."""
    with pytest.raises(WrongResult, match=r"1 of 16 rows.*row 1 adds up to"):
        try_gemm(PlainMultiplier(always_wrong=True), SIZE, 3, ignore)


def test_matrices_too_large_to_be_exact_are_refused() -> None:
    """Beyond 2^24 a 32-bit float rounds, and the known answer would be wrong."""
    with pytest.raises(ValueError, match="not exact"):
        try_gemm(PlainMultiplier(), 1 << 22, 1, ignore)


class FixedGroup:
    """A group whose sum is as scripted."""

    engine = "fixed"
    rank, size = 1, 2

    def __init__(self, least: int, most: int) -> None:
        self._answer = least, most

    def all_reduce(self, value: int, count: int) -> tuple[int, int, int, float]:
        return *self._answer, count, 0.5


def test_a_right_sum_has_a_rate() -> None:
    """Contributions are 1 and 3."""
    assert try_all_reduce(FixedGroup(4, 4), 1 << 20, 4) == 2 << 20


@pytest.mark.parametrize(("least", "most"), [(1, 4), (4, 7), (6, 6)])
def test_a_sum_that_misses_or_doubles_somebody_is_a_failure(least: int, most: int) -> None:
    """In one element or in all of them."""
    with pytest.raises(WrongResult, match="instead of"):
        try_all_reduce(FixedGroup(least, most), 1 << 20, 1)
