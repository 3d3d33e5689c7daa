"""Active checks: what the tests on idle GPUs prove.

Only a test that failed makes a fault; one that did not run to its end says nothing. Bit errors are compared
within one GPU, with arithmetic, and with peers of the same model and library. A slow copy is a warning for
people, never a fault: many things make copies slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.finding import RANK_LAST, Assessment, Level, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation.active import ActiveResult, ActiveSurvey, ActiveTest, Failure, Outcome

PEERS_MIN: Final = 3
"""Results that a median of the node's own needs."""
SLOW_SHARE: Final = 0.8
"""Below this share of the median a copy is called slow."""
RANK_CORRUPTION: Final = 3
RANK_MEMORY: Final = 5
RANK_ERROR: Final = 8


class Warning(msgspec.Struct, frozen=True, kw_only=True):  # noqa: A001 (what it is)
    """Something for people to look at; it changes no verdict."""

    test: ActiveTest
    gpus: tuple[str, ...]
    text: str


class _Meaning(msgspec.Struct, frozen=True):
    reason: Reason
    fault_class: FaultClass
    subsystem: Subsystem
    rank: int
    text: str


_MEANINGS: Final = {
    Failure.WRONG_RESULT: _Meaning(
        Reason.SUSPECTED_DATA_CORRUPTION,
        FaultClass.TRANSIENT,  # Blocks at once; whether the board goes is for people, after a deep check.
        Subsystem.GPU,
        RANK_CORRUPTION,
        "calculates wrongly",
    ),
    Failure.WRONG_MEMORY: _Meaning(
        Reason.MEMORY_TEST_FAILED,
        FaultClass.RESET_CURES,
        Subsystem.GPU,
        RANK_MEMORY,
        "gives back other data than was written",
    ),
    Failure.ERROR: _Meaning(
        Reason.GPU_REFUSES_WORK,
        FaultClass.RESET_CURES,
        Subsystem.GPU,
        RANK_ERROR,
        "refuses or breaks off work",
    ),
    Failure.DIAGNOSTIC: _Meaning(
        Reason.GPU_DIAGNOSTIC_FAILED,
        FaultClass.RESET_CURES,
        Subsystem.GPU,
        RANK_ERROR,
        "fails DCGM's diagnostic",
    ),
    Failure.FABRIC_NOT_READY: _Meaning(
        Reason.FABRIC_NOT_READY,
        FaultClass.TRANSIENT,
        Subsystem.FABRIC,
        RANK_LAST,
        "is not initialised by the fabric manager",
    ),
}

_PAIR: Final = frozenset({ActiveTest.PEER_COPY, ActiveTest.ALL_REDUCE})


def judge_results(results: Sequence[ActiveResult], test: ActiveTest) -> tuple[Level, ...]:
    """What the results of one test prove: at most one level a GPU."""
    mine = [result for result in results if result.test is test]
    levels: dict[str, Level] = {}
    for result in mine:
        if result.outcome is Outcome.FAILED and len(result.gpus) == 1 and result.failure is not None:
            levels.setdefault(result.gpus[0], _level(result, result.gpus[0], result.why))
    for address, result, text in _odd_ones(mine):
        levels.setdefault(address, _level(result, address, text))
    for address, result, text in _blamed(mine):
        levels.setdefault(address, _level(result, address, text))
    return tuple(levels.values())


def covered(results: Iterable[ActiveResult], test: ActiveTest) -> frozenset[str]:
    """GPUs that the test could judge: it ran to its end on them."""
    return frozenset(
        gpu
        for result in results
        if result.test is test and result.outcome is not Outcome.NOT_TESTED
        for gpu in result.gpus
    )


def warnings(
    results: Sequence[ActiveResult], medians: Mapping[tuple[str, ActiveTest], float] | None = None
) -> tuple[Warning, ...]:
    """Copies that are slow, by the fleet's median of the model where it is given, else by the node's own."""
    found = []
    rated = [result for result in results if result.bytes_per_s is not None and result.model]
    for result in rated:
        rate = result.bytes_per_s or 0.0
        peers = [
            other.bytes_per_s
            for other in rated
            if (other.test, other.model, other.engine) == (result.test, result.model, result.engine)
            and other.bytes_per_s is not None
        ]
        usual = (medians or {}).get((result.model, result.test))
        whose = "the fleet"
        if usual is None:
            if len(peers) < PEERS_MIN:
                continue
            usual, whose = _median(peers), "this machine"
        if rate < SLOW_SHARE * usual:
            text = f"{rate / 1e9:.1f} GB/s; the median of {whose} is {usual / 1e9:.1f} GB/s"
            found.append(Warning(test=result.test, gpus=result.gpus, text=text))
    return tuple(found)


def _median(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _odd_ones(results: Sequence[ActiveResult]) -> list[tuple[str, ActiveResult, str]]:
    """GPUs whose checksum differs from that of equal peers; without a majority each of them is suspect."""
    found = []
    groups: dict[tuple[str, str], list[ActiveResult]] = {}
    for result in results:
        if result.outcome is Outcome.PASSED and result.checksum and result.model:
            groups.setdefault((result.model, result.engine), []).append(result)
    for (model, _), group in groups.items():
        counts = Counter(result.checksum for result in group)
        usual, most = counts.most_common(1)[0]
        majority = most > len(group) / 2
        for result in group if len(counts) > 1 else ():
            if majority and result.checksum == usual:
                continue
            said = f"{most} of {len(group)} {model} have {usual}" if majority else "no majority agrees"
            failed = msgspec.structs.replace(result, failure=Failure.WRONG_RESULT)
            found.append((result.gpus[0], failed, f"checksum {result.checksum}, but {said}"))
    return found


def _blamed(results: Sequence[ActiveResult]) -> list[tuple[str, ActiveResult, str]]:
    """GPUs of pairs that failed: the one that all failed pairs share, else both of each."""
    failed = [
        r for r in results if len(r.gpus) == 2 and r.outcome is Outcome.FAILED and r.failure is not None
    ]
    if not failed:
        return []
    times = Counter(gpu for result in failed for gpu in result.gpus)
    shared = [gpu for gpu, count in times.items() if count == len(failed)]
    guilty = shared if len(failed) > 1 and len(shared) == 1 else list(times)
    found = []
    for gpu in guilty:
        first = next(result for result in failed if gpu in result.gpus)
        with_whom = ", ".join(
            other for result in failed if gpu in result.gpus for other in result.gpus if other != gpu
        )
        found.append((gpu, first, f"with {with_whom}: {first.why}"))
    return found


def _level(result: ActiveResult, address: str, text: str) -> Level:
    assert result.failure is not None
    meaning = _MEANINGS[result.failure]
    return Level(
        code=f"active/{result.test}",
        reason=meaning.reason,
        fault_class=result.cure or meaning.fault_class,
        subsystem=meaning.subsystem,
        scope=Scope.GPU,
        rank=meaning.rank,
        proof=Proof.LEVEL_GOOD,
        clean_polls=1,
        clean_span_s=0.0,
        gpu=address,
        source=ActiveSurvey.source,
        text=text,
        summary=f"GPU {address} {meaning.text} ({result.test}): {text}.",
    )


def _check(test: ActiveTest) -> LevelCheck:
    name = f"active_{test.value.replace('-', '_')}"

    def run(view: View) -> Assessment | None:
        survey = view.newest(ActiveSurvey)
        if survey is None:
            return None
        covers = covered(survey.results, test)
        if not covers:
            return None
        return Assessment(check=name, bad=judge_results(survey.results, test), covers=covers)

    run_it: Callable[[View], Assessment | None] = run
    return LevelCheck(name, f"the active test {test.value}", frozenset({ActiveSurvey}), run_it)


CHECKS: Final = tuple(_check(test) for test in ActiveTest)
"""One a test: what one test found only the same test can clear."""
