"""Lines collected in the wild: each gets the verdict that it deserves, live and from a file.

The source that published them decided the verdict, before they were run: a volume that is detached or a
display card without a driver must cost nobody a job, and a GPU that is gone must be found in any words.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.acceptance.incidents import DISRUPTIVE_FROM, STRENGTH
from tests.acceptance.wild import Block, Verdict, blocks, day_of, lived_through, replayed

BLOCKS = blocks()
BENIGN = [block for block in BLOCKS if block.cure == "none"]
DAYS = 6
TIMES_A_DAY = 5


@pytest.mark.parametrize("run", [lived_through, replayed], ids=["live", "replay"])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.id)
def test_a_published_log_gets_the_verdict_it_deserves(
    block: Block, run: Callable[[Block], tuple[Verdict, dict[str, str]]]
) -> None:
    """The strongest class, about the right GPU; at most that where the block says so."""
    verdict, addresses = run(block)
    assert verdict.fits(block, addresses), f"wanted {block.cure} on {block.where}, got {verdict}"


@pytest.mark.parametrize("run", [lived_through, replayed], ids=["live", "replay"])
@pytest.mark.parametrize("seed", range(DAYS))
def test_a_day_of_everything_harmless_ends_no_job(
    seed: int, run: Callable[[Block], tuple[Verdict, dict[str, str]]]
) -> None:
    """What is harmless stays so when it comes again and again, with everything else in between."""
    verdict, _ = run(day_of(BENIGN, Random(seed), TIMES_A_DAY))
    assert STRENGTH[verdict.cure] < DISRUPTIVE_FROM, verdict


def test_the_collection_has_enough_of_both() -> None:
    """Ids are unique, and neither the harmless nor the sick are few."""
    assert len({block.id for block in BLOCKS}) == len(BLOCKS)
    assert len(BENIGN) >= 60
    assert len([block for block in BLOCKS if STRENGTH[block.cure.rstrip("?")] >= DISRUPTIVE_FROM]) >= 50
