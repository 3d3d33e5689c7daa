"""What results of active tests prove, and what they do not."""

from datetime import UTC, datetime

import msgspec
import pytest

from outlast.health.catalogue import builtin
from outlast.health.checks.active import CHECKS, covered, judge_results, warnings
from outlast.health.reasons import Reason
from outlast.health.verdict import Moment, Settings, judge, start
from outlast.model.health import FaultClass, Subsystem, Verdict
from outlast.model.observation.active import (
    ActiveResult,
    ActiveSurvey,
    ActiveTest,
    Failure,
    NotTested,
    Outcome,
)

A, B, C, D = (f"0000:{n:02x}:00.0" for n in (16, 32, 48, 64))


def gemm(gpu: str, checksum: str = "aa", **changes: object) -> ActiveResult:
    values = {
        "test": ActiveTest.GEMM, "gpus": (gpu,), "outcome": Outcome.PASSED, "checksum": checksum,
        "engine": "torch 2.9", "model": "H100", **changes,
    }  # fmt: skip
    return ActiveResult(**values)  # type: ignore[arg-type]


def failed(test: ActiveTest, *gpus: str, failure: Failure = Failure.WRONG_RESULT) -> ActiveResult:
    return ActiveResult(test=test, gpus=gpus, outcome=Outcome.FAILED, failure=failure, why="as scripted")


def suspects(results: list[ActiveResult], test: ActiveTest = ActiveTest.GEMM) -> list[str]:
    return [level.gpu for level in judge_results(results, test)]


def test_one_wrong_product_blocks_its_gpu_and_drains_nobody() -> None:
    """A suspicion of silent corruption: no new work at once; replacing is for people."""
    (level,) = judge_results([failed(ActiveTest.GEMM, A), gemm(B)], ActiveTest.GEMM)

    assert (level.gpu, level.reason) == (A, Reason.SUSPECTED_DATA_CORRUPTION)
    assert level.fault_class is FaultClass.TRANSIENT
    assert level.polls == 1
    assert "as scripted" in level.text


def test_the_one_that_differs_from_its_equals_is_suspect() -> None:
    """Each is true to itself; the majority decides."""
    assert suspects([gemm(A), gemm(B), gemm(C, "bb"), gemm(D)]) == [C]
    assert suspects([gemm(A), gemm(B), gemm(C), gemm(D)]) == []


def test_two_that_differ_are_both_suspect() -> None:
    """Nobody can tell which of them is right."""
    assert suspects([gemm(A), gemm(B, "bb")]) == [A, B]


def test_other_models_and_libraries_are_no_peers() -> None:
    """Another library may add in another order."""
    others = [gemm(B, "bb", engine="torch 2.8"), gemm(C, "cc", model="H200"), gemm(D, "dd", model="")]
    assert suspects([gemm(A), *others]) == []


@pytest.mark.parametrize("reason", list(NotTested))
def test_what_did_not_run_proves_nothing(reason: NotTested) -> None:
    """Neither a fault nor a proof that one is over."""
    result = ActiveResult(test=ActiveTest.GEMM, gpus=(A,), outcome=Outcome.NOT_TESTED, not_tested=reason)
    assert suspects([result]) == []
    assert covered([result], ActiveTest.GEMM) == frozenset()


def test_the_gpu_that_all_failed_pairs_share_is_to_blame() -> None:
    """Its partners work with others."""
    pairs = [failed(ActiveTest.PEER_COPY, A, B), failed(ActiveTest.PEER_COPY, B, C)]
    assert suspects(pairs, ActiveTest.PEER_COPY) == [B]


def test_a_single_failed_pair_blames_both() -> None:
    """It may be either end, or the way between."""
    assert suspects([failed(ActiveTest.ALL_REDUCE, A, B)], ActiveTest.ALL_REDUCE) == [A, B]


def rated(gpu: str, rate: float, model: str = "H100") -> ActiveResult:
    return ActiveResult(
        test=ActiveTest.HOST_COPY, gpus=(gpu,), outcome=Outcome.PASSED, model=model, bytes_per_s=rate
    )


def test_a_slow_copy_is_a_warning_and_never_a_fault() -> None:
    """Below 0.8 of the median of at least three peers."""
    results = [rated(A, 50e9), rated(B, 51e9), rated(C, 39e9), rated(D, 52e9)]

    (warning,) = warnings(results)

    assert warning.gpus == (C,)
    assert "39.0 GB/s" in warning.text
    assert judge_results(results, ActiveTest.HOST_COPY) == ()


def test_two_peers_have_no_median_and_the_fleet_has() -> None:
    """What the fleet gets from this model counts even for a single GPU."""
    results = [rated(A, 50e9), rated(B, 20e9)]
    assert warnings(results) == ()
    (warning,) = warnings(results, {("H100", ActiveTest.HOST_COPY): 50e9})
    assert warning.gpus == (B,)
    assert "fleet" in warning.text


def test_each_test_has_a_check_and_only_the_same_test_clears() -> None:
    """A good context does not prove that sums are right again."""
    assert len({check.name for check in CHECKS}) == len(ActiveTest)
    survey = ActiveSurvey(level="deep", results=(failed(ActiveTest.GEMM, A),))
    context = ActiveResult(test=ActiveTest.CONTEXT, gpus=(A,), outcome=Outcome.PASSED)
    state = start("boot", "", Settings(), Moment(datetime(2026, 1, 1, tzinfo=UTC), 1000.0))
    bad = judge(state, [survey], Moment(datetime(2026, 1, 1, tzinfo=UTC), 1000.0), builtin())
    other = judge(
        bad.state,
        [msgspec.structs.replace(survey, results=(context,))],
        Moment(datetime(2026, 1, 2, tzinfo=UTC), 90_000.0),
        builtin(),
    )

    assert [fault.root.reason for fault in bad.opened] == [Reason.SUSPECTED_DATA_CORRUPTION]
    assert bad.status.verdict(Subsystem.GPU).verdict is Verdict.FAULTY
    assert not other.ended
    again = judge(
        other.state,
        [msgspec.structs.replace(survey, results=(gemm(A),))],
        Moment(datetime(2026, 1, 2, tzinfo=UTC), 90_001.0),
        builtin(),
    )
    assert [over.fault.id for over in again.ended] == [bad.opened[0].id]
