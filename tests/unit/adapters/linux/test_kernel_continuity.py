"""Order and loss of kernel records, as a law: nothing is delivered twice and nothing is lost uncounted."""

from hypothesis import given
from hypothesis import strategies as st

from outlast.adapters.linux.kernel_continuity import Continuity
from outlast.model.observation import KernelLogCaughtUp, KernelLogGap, KernelRecord
from outlast.ports.node import KernelLogItem

Fate = st.sampled_from(["good", "garbage", "overwritten"])


def record(sequence: int) -> KernelRecord:
    return KernelRecord(sequence=sequence, timestamp_us=sequence, priority=4)


@given(st.lists(Fate, min_size=1, max_size=60), st.integers(0, 5), st.sets(st.integers(0, 60)))
def test_delivered_and_lost_add_up_to_what_there_was(
    fates: list[str], position: int, pauses: set[int]
) -> None:
    """Whatever happens to records behind the position, wherever bursts end: each is accounted for."""
    fates = [*fates, "good"]
    continuity, items = Continuity(position), list[KernelLogItem]()
    for sequence in range(position + 1):
        items += continuity.accept(record(sequence))
    assert items == []

    for number, fate in enumerate(fates, start=position + 1):
        if fate == "good":
            items += continuity.accept(record(number))
        elif fate == "garbage":
            continuity.spoiled("garbage")
        else:
            continuity.overrun()
        if number in pauses:
            items += continuity.flush()

    delivered = [item.sequence for item in items if isinstance(item, KernelRecord)]
    lost = sum(item.lost for item in items if isinstance(item, KernelLogGap))
    assert delivered == [n for n, fate in enumerate(fates, start=position + 1) if fate == "good"]
    assert len(delivered) + lost == len(fates)


@given(st.lists(st.integers(0, 2**63 - 1), max_size=30), st.none() | st.integers(0, 2**63 - 1))
def test_any_numbers_in_any_order_are_survived_and_bounded(
    sequences: list[int], position: int | None
) -> None:
    """Numbers that make no sense give at most one gap each, and no negative loss."""
    continuity = Continuity(position)
    items = [item for sequence in sequences for item in continuity.accept(record(sequence))]

    assert len(items) <= 2 * len(sequences)
    assert all(item.lost >= 0 for item in items if isinstance(item, KernelLogGap))


def test_a_sequence_that_goes_back_is_another_log_and_is_delivered() -> None:
    """A record is never dropped for its number once following has begun."""
    continuity = Continuity(None)
    continuity.accept(record(100))

    gap, delivered = continuity.accept(record(3))

    assert isinstance(gap, KernelLogGap)
    assert "went back from 100 to 3" in gap.reason
    assert delivered == record(3)


def test_caught_up_comes_once_and_counts_the_replay() -> None:
    """Skipped records are no replay."""
    continuity = Continuity(5)
    for sequence in (4, 5, 6, 7):
        continuity.accept(record(sequence))

    assert continuity.end_reached() == [KernelLogCaughtUp(replayed=2)]
    assert continuity.end_reached() == []
    assert not continuity.replaying
