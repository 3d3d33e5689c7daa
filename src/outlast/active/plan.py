"""Which tests run on which GPUs, in which order: pure.

Tests of one GPU share one worker; tests of pairs come after them, in rounds of disjoint pairs, so that each
GPU meets every other once. What cannot be tested is in the plan too, with the reason: nothing is left out
silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from outlast.model.observation.active import ActiveResult, ActiveTest, NotTested, Outcome

GIB: Final = 1 << 30


class Level(StrEnum):
    """How much is tested."""

    QUICK = "quick"
    STANDARD = "standard"
    DEEP = "deep"


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how large the tests of a level are."""

    tests: tuple[ActiveTest, ...]
    pair_tests: tuple[ActiveTest, ...] = ()
    memory_bytes_max: int = 0
    memory_piece_bytes: int = 32 << 20
    """The host compares memory in pieces of this size."""
    copy_bytes: int = 0
    gemm_size: int = 0
    gemm_iterations: int = 0
    deadline_s: float
    """For all tests of one GPU together."""
    pair_deadline_s: float = 0.0
    dcgm_run: int = 0
    """Number of `dcgmi diag -r`, where the built-in tests cannot run."""
    dcgm_deadline_s: float = 0.0


DEPTHS: Final = {
    Level.QUICK: Depth(tests=(ActiveTest.CONTEXT,), deadline_s=30.0, dcgm_run=1, dcgm_deadline_s=60.0),
    Level.STANDARD: Depth(
        tests=(ActiveTest.CONTEXT, ActiveTest.HOST_COPY, ActiveTest.MEMORY, ActiveTest.GEMM),
        pair_tests=(ActiveTest.PEER_COPY,),
        memory_bytes_max=4 * GIB,
        copy_bytes=GIB,
        gemm_size=4096,
        gemm_iterations=200,
        deadline_s=180.0,
        pair_deadline_s=30.0,
        dcgm_run=2,
        dcgm_deadline_s=300.0,
    ),
    Level.DEEP: Depth(
        tests=(ActiveTest.CONTEXT, ActiveTest.HOST_COPY, ActiveTest.MEMORY, ActiveTest.GEMM),
        pair_tests=(ActiveTest.PEER_COPY, ActiveTest.ALL_REDUCE),
        memory_bytes_max=1 << 40,
        copy_bytes=4 * GIB,
        gemm_size=8192,
        gemm_iterations=2000,
        deadline_s=1500.0,
        pair_deadline_s=120.0,
        dcgm_run=3,
        dcgm_deadline_s=2400.0,
    ),
}

TORCH_TESTS: Final = frozenset({ActiveTest.GEMM, ActiveTest.ALL_REDUCE})
"""These need tensor libraries; the driver's own library does the others."""
LOOPBACK: Final = ActiveTest.ALL_REDUCE
"""Also run on each GPU alone, so that a broken library is not taken for a broken link."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine has to test with."""

    torch: str = ""
    """Version of a torch that sees CUDA; empty when there is none."""
    torch_missing: str = "torch with CUDA is not installed"
    dcgm: str = ""
    """Version of a DCGM whose host engine answers; empty when there is none."""
    dcgm_missing: str = "DCGM is not installed"


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that may be tested."""

    address: str
    uuid: str = ""
    serial: str = ""
    model: str = ""
    index: int | None = None
    unfit: NotTested | None = None
    """Why nothing may run on it."""
    why: str = ""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker does (for ALL_REDUCE: one worker a GPU)."""

    tests: tuple[ActiveTest, ...]
    gpus: tuple[Candidate, ...]
    deadline_s: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds one after another; the steps of a round touch no GPU twice and run at the same time."""

    level: Level
    depth: Depth
    rounds: tuple[tuple[Step, ...], ...]
    not_tested: tuple[ActiveResult, ...]
    deadline_s: float
    dcgm: tuple[Candidate, ...] = ()
    """GPUs that DCGM's diagnostic is to test instead."""

    @property
    def empty(self) -> bool:
        """Nothing will run."""
        return not self.rounds and not self.dcgm


def plan(level: Level, candidates: Sequence[Candidate], capabilities: Capabilities) -> Plan:
    """The tests of a level on these GPUs with what the machine has."""
    depth = DEPTHS[level]
    fit = [candidate for candidate in candidates if candidate.unfit is None]
    left_out = [
        _not_tested(test, (candidate,), candidate.unfit, candidate.why)
        for candidate in candidates
        if candidate.unfit is not None
        for test in depth.tests
    ]
    lacking = TORCH_TESTS if not capabilities.torch else frozenset[ActiveTest]()
    tests = tuple(test for test in depth.tests if test not in lacking)
    use_dcgm = bool(capabilities.dcgm) and bool(lacking & {*depth.tests, *depth.pair_tests})
    missing = lacking & {*depth.tests, *depth.pair_tests}
    if not use_dcgm:
        why = capabilities.torch_missing
        if missing:
            why += f", and {capabilities.dcgm_missing}"
        left_out += [
            _not_tested(test, (candidate,), NotTested.NO_ENGINE, why)
            for candidate in fit
            for test in sorted(missing)
        ]
    rounds = [tuple(Step(tests=tests, gpus=(gpu,), deadline_s=depth.deadline_s) for gpu in fit)]
    pair_tests = tuple(test for test in depth.pair_tests if test not in lacking)
    if LOOPBACK in pair_tests:
        rounds.append(
            tuple(Step(tests=(LOOPBACK,), gpus=(gpu,), deadline_s=depth.pair_deadline_s) for gpu in fit)
        )
    rounds += [
        tuple(Step(tests=(test,), gpus=(fit[a], fit[b]), deadline_s=depth.pair_deadline_s) for a, b in pairs)
        for test in pair_tests
        for pairs in tournament(len(fit))
    ]
    if len(fit) == 1:
        left_out += [
            _not_tested(test, (fit[0],), NotTested.NO_ROOM, "there is no second idle GPU to test it with")
            for test in pair_tests
            if test is not LOOPBACK
        ]
    rounds = [steps for steps in rounds if steps]
    dcgm = tuple(fit) if use_dcgm else ()
    return Plan(
        level=level,
        depth=depth,
        rounds=tuple(rounds),
        not_tested=tuple(left_out),
        deadline_s=sum(max(step.deadline_s for step in steps) for steps in rounds)
        + (depth.dcgm_deadline_s if dcgm else 0.0),
        dcgm=dcgm,
    )


def tournament(players: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Everybody meets everybody once, in as few rounds as possible; nobody plays twice in a round.

    >>> tournament(3)
    (((1, 2),), ((0, 2),), ((0, 1),))
    """
    seats: list[int | None] = [*range(players)]
    if players % 2:
        seats.append(None)
    half = len(seats) // 2
    rounds = []
    for _ in range(len(seats) - 1):
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append(tuple((min(a, b), max(a, b)) for a, b in met if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(pairs for pairs in rounds if pairs)


def foreign(process_ids: Iterable[int], own: Iterable[int], *, host_pids: bool) -> tuple[int, ...]:
    """Processes on a GPU that are not ours.

    In a pid namespace of our own NVML's numbers are not our numbers: then only more processes than we
    started are somebody else's.
    """
    seen, ours = sorted(set(process_ids)), set(own)
    strange = tuple(pid for pid in seen if pid not in ours)
    if host_pids:
        return strange
    return strange if len(seen) > len(ours) else ()


def _not_tested(
    test: ActiveTest, gpus: Sequence[Candidate], reason: NotTested | None, why: str
) -> ActiveResult:
    return ActiveResult(
        test=test,
        gpus=tuple(gpu.address for gpu in gpus),
        outcome=Outcome.NOT_TESTED,
        not_tested=reason,
        why=why,
        model=gpus[0].model if gpus else "",
    )
