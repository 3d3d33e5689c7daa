"""What is planned at each level, and that nothing is left out silently."""

from itertools import combinations

import pytest

from outlast.active.plan import Candidate, Capabilities, Level, Plan, foreign, plan, tournament
from outlast.model.observation.active import ActiveTest, NotTested

TORCH = Capabilities(torch="2.9.0")


def gpus(number: int) -> list[Candidate]:
    return [
        Candidate(address=f"0000:{n:02x}:00.0", uuid=f"GPU-{n}", model="H100", index=n) for n in range(number)
    ]


def left_out(planned: Plan) -> set[tuple[ActiveTest, NotTested | None]]:
    return {(result.test, result.not_tested) for result in planned.not_tested}


@pytest.mark.parametrize("players", range(17))
def test_everybody_meets_everybody_once_and_nobody_twice_at_a_time(players: int) -> None:
    """Pairs of a round are disjoint; n players need at most n rounds."""
    rounds = tournament(players)

    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(players), 2))
    assert all(len({gpu for pair in pairs for gpu in pair}) == 2 * len(pairs) for pairs in rounds)
    assert len(rounds) <= players


def test_quick_creates_a_context_on_each_gpu() -> None:
    """One step a GPU, all at the same time, done within half a minute."""
    planned = plan(Level.QUICK, gpus(8), Capabilities())

    assert [step.tests for step in planned.rounds[0]] == [(ActiveTest.CONTEXT,)] * 8
    assert (len(planned.rounds), planned.not_tested, planned.deadline_s) == (1, (), 30.0)


def test_deep_tests_each_gpu_then_each_alone_then_every_pair() -> None:
    """8 GPUs: one round of their own tests, one loopback, 7 rounds of copies and 7 of sums."""
    planned = plan(Level.DEEP, gpus(8), TORCH)

    assert [len(steps) for steps in planned.rounds] == [8, 8] + [4] * 14
    assert ActiveTest.GEMM in planned.rounds[0][0].tests
    assert planned.rounds[1][0].tests == (ActiveTest.ALL_REDUCE,)
    assert not planned.not_tested
    for steps in planned.rounds:
        used = [gpu.address for step in steps for gpu in step.gpus]
        assert len(used) == len(set(used))


def test_without_torch_what_needs_it_is_named() -> None:
    """The rest runs."""
    planned = plan(Level.DEEP, gpus(2), Capabilities())

    assert left_out(planned) == {
        (ActiveTest.GEMM, NotTested.NO_ENGINE),
        (ActiveTest.ALL_REDUCE, NotTested.NO_ENGINE),
    }
    assert {"torch with CUDA is not installed, and DCGM is not installed"} == {
        result.why for result in planned.not_tested
    }
    assert planned.rounds[0][0].tests == (ActiveTest.CONTEXT, ActiveTest.HOST_COPY, ActiveTest.MEMORY)


def test_dcgm_stands_in_for_torch() -> None:
    """Its diagnostic is planned for the same GPUs, with a deadline."""
    with_dcgm = plan(Level.STANDARD, gpus(2), Capabilities(dcgm="4.2.0"))

    assert [gpu.index for gpu in with_dcgm.dcgm] == [0, 1]
    assert not with_dcgm.not_tested
    assert with_dcgm.deadline_s > plan(Level.STANDARD, gpus(2), Capabilities()).deadline_s
    assert not plan(Level.QUICK, gpus(2), Capabilities(dcgm="4.2.0")).dcgm


def test_a_gpu_that_is_not_fit_is_left_alone_with_its_reason() -> None:
    """Busy, sick or sliced: named, never touched."""
    busy = Candidate(address="0000:ff:00.0", unfit=NotTested.GPU_BUSY_FOREIGN, why="process 7 uses it")

    planned = plan(Level.STANDARD, [*gpus(2), busy], TORCH)

    assert all(busy not in step.gpus for steps in planned.rounds for step in steps)
    assert {result.why for result in planned.not_tested} == {"process 7 uses it"}
    assert plan(Level.DEEP, [busy], TORCH).empty


def test_a_single_gpu_says_that_it_has_no_peer() -> None:
    """Loopback runs, pairs cannot."""
    planned = plan(Level.DEEP, gpus(1), TORCH)

    assert (ActiveTest.PEER_COPY, NotTested.NO_ROOM) in left_out(planned)
    assert [steps[0].tests for steps in planned.rounds][1:] == [(ActiveTest.ALL_REDUCE,)]


@pytest.mark.parametrize(
    ("seen", "own", "host_pids", "strange"),
    [
        ((), (), True, ()),
        ((7,), (7,), True, ()),
        ((7, 8), (7,), True, (8,)),
        ((8,), (7,), True, (8,)),
        ((4711,), (7,), False, ()),
        ((4711, 4712), (7,), False, (4711, 4712)),
        ((4711,), (), False, (4711,)),
    ],
)
def test_processes_that_are_not_ours(
    seen: tuple[int, ...], own: tuple[int, ...], host_pids: bool, strange: tuple[int, ...]
) -> None:
    """By number where numbers can be compared, else by how many there are."""
    assert foreign(seen, own, host_pids=host_pids) == strange
