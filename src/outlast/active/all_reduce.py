"""Do devices that add up together get the right sum, and how fast?

Each contributes its own number, so a contribution that is lost or counted twice shows in the sum. Alone it
tests the library; in pairs it tests the way between two devices.
"""

from __future__ import annotations

from typing import Final

from outlast.active.device import Group, WrongResult

FLOAT_BYTES: Final = 4


def try_all_reduce(group: Group, size: int, iterations: int) -> float:
    """Bytes per second of the vector that was reduced. Raises WrongResult."""
    count = size // FLOAT_BYTES
    wanted = sum(_own(rank) for rank in range(group.size))
    group.all_reduce(_own(group.rank), count)  # The first one also connects.
    spent = 0.0
    for iteration in range(iterations):
        least, most, length, took_s = group.all_reduce(_own(group.rank), count)
        spent += took_s
        if (least, most, length) != (wanted, wanted, count):
            raise WrongResult(
                f"round {iteration + 1}: {length} elements from {least} to {most} "
                f"instead of {count} times {wanted}"
            )
    return iterations * size / max(spent, 1e-9)


def _own(rank: int) -> int:
    """Different for each, and no two sets of them add up to the same."""
    return int(3**rank)
