"""The verdict on a diagnostic: severity a code, never "any failure is an eviction"."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.health.catalogue import builtin
from outlast.health.dcgm_diagnosis import Diagnosis, Outcome, diagnose
from outlast.health.sources.dcgm_diag import DiagError, DiagResult, DiagStatus, TestResult, diag_report
from outlast.model.health import FaultClass, Verdict
from outlast.model.observation.dcgm import DcgmProblem
from tests.dcgm import recorded


def of(name: str, exit_code: int = 0) -> Diagnosis:
    return diagnose(diag_report(recorded(name), exit_code), builtin())


def one(code: int | None, *, status: DiagStatus = DiagStatus.FAIL, retried: bool = True) -> Diagnosis:
    errors = () if code is None else (DiagError(error_id=code, text="words"),)
    test = TestResult(
        name="memory", category="Hardware", status=status, gpus=(3,), errors=errors, retried=retried
    )
    good = TestResult(name="pcie", category="Integration", status=DiagStatus.PASS, gpus=(3,))
    return diagnose(DiagResult(tests=(test, good)), builtin())


def test_a_failed_remap_condemns_the_board_and_an_unknown_code_asks_a_human() -> None:
    """UP-050 and UP-049 in one run: each GPU by its own code, with its serial."""
    diagnosis = of("diag-4.6.0-level1-remap-failed.json", 205)

    assert diagnosis.verdict is Verdict.FAULTY
    assert (diagnosis.worst(6), diagnosis.worst(1), diagnosis.worst(0)) == (
        Outcome.FAULTY,
        Outcome.UNKNOWN,
        Outcome.PASSED,
    )
    remap = next(finding for finding in diagnosis.findings if finding.gpu == 6)
    assert (remap.code, remap.fault_class, remap.serial) == (80, FaultClass.HARDWARE_GONE, "1650923000006")
    assert "4711" in next(finding.text for finding in diagnosis.findings if finding.gpu == 1)


def test_a_pending_remap_is_a_reset_at_the_next_occasion() -> None:
    """UP-044: named as page retirement and row remap, labelled for eviction by others."""
    result = diag_report(recorded("diag-3-level2-memory-fail.json"), 226)

    diagnosis = diagnose(result, builtin())

    pending = next(finding for finding in diagnosis.findings if finding.code == 85)
    assert (pending.outcome, pending.fault_class) == (Outcome.RESET_DUE, FaultClass.RESET_CURES)
    assert pending.gpu == 5  # only the words name it
    assert diagnosis.worst(7) is Outcome.FAULTY  # the memory mismatch beside it is another matter


@pytest.mark.parametrize("name", ["diag-4.2.3-level1-persistence-off.json"])
def test_a_setting_is_nobody_s_fault(name: str) -> None:
    """As recorded: every test "Fail" because persistence mode is off."""
    diagnosis = of(name, 226)

    assert diagnosis.verdict is Verdict.HEALTHY
    assert {finding.outcome for finding in diagnosis.findings} == {Outcome.NOTICE}


@pytest.mark.parametrize("name", ["diag-3-level3-all-skip.json", "diag-4.5.2-level2-skips.json"])
def test_all_skipped_is_unknown(name: str) -> None:
    """As recorded twice: settings were looked at, no GPU was exercised."""
    diagnosis = of(name, 0)

    assert diagnosis.verdict is Verdict.UNKNOWN
    assert "nothing was tested" in diagnosis.summary


def test_a_pass_with_an_error_inside_is_unknown() -> None:
    """Issue 284: without memory the memory test proves nothing, and says Pass."""
    diagnosis = of("diag-4.5.0-pass-with-error.json")

    assert diagnosis.worst(2) is Outcome.UNKNOWN
    assert diagnosis.worst(3) is Outcome.PASSED
    assert diagnosis.verdict is Verdict.UNKNOWN


def test_a_busy_bandwidth_test_is_no_fault() -> None:
    """UP-046, where it could not be run again."""
    diagnosis = of("diag-4.5.0-level3-nvbandwidth-busy.json", 226)

    assert diagnosis.worst(3) is Outcome.UNKNOWN
    assert diagnosis.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("name", "exit_code"),
    [("diag-4-already-running.json", 217), ("diag-3-mig.json", 226), ("engine-down.txt", 235)],
)
def test_a_run_that_did_not_happen_is_unknown(name: str, exit_code: int) -> None:
    """UP-047 among them: a MIG GPU is skipped, neither failed nor passed."""
    assert of(name, exit_code).verdict is Verdict.UNKNOWN


def test_a_clean_run_is_healthy() -> None:
    """Every GPU passed every test."""
    diagnosis = of("diag-3-worker-level1.txt")

    assert (diagnosis.verdict, diagnosis.findings) == (Verdict.HEALTHY, ())


@pytest.mark.parametrize(
    ("code", "outcome", "verdict"),
    [
        (58, Outcome.FAULTY, Verdict.FAULTY),  # memory mismatch
        (80, Outcome.FAULTY, Verdict.FAULTY),  # remap failed; DCGM itself grades it "reset"
        (120, Outcome.FAULTY, Verdict.FAULTY),
        (126, Outcome.FAULTY, Verdict.FAULTY),
        (85, Outcome.RESET_DUE, Verdict.UNKNOWN),
        (6, Outcome.RESET_DUE, Verdict.UNKNOWN),
        (30, Outcome.SUSPECT, Verdict.UNKNOWN),
        (98, Outcome.SUSPECT, Verdict.UNKNOWN),
        (29, Outcome.NOTICE, Verdict.HEALTHY),
        (10, Outcome.NOTICE, Verdict.HEALTHY),
        (101, Outcome.NOTICE, Verdict.HEALTHY),  # an Xid during a test is for the kernel log to judge
        (24, Outcome.UNKNOWN, Verdict.UNKNOWN),  # DCGM grades a bad library "isolate"
        (44, Outcome.UNKNOWN, Verdict.UNKNOWN),
        (117, Outcome.NOT_TESTED, Verdict.HEALTHY),
        (9999, Outcome.UNKNOWN, Verdict.UNKNOWN),
        (None, Outcome.UNKNOWN, Verdict.UNKNOWN),
    ],
)
def test_the_code_decides(code: int | None, outcome: Outcome, verdict: Verdict) -> None:
    """By the step that cures it, whatever the word and the grade of DCGM."""
    diagnosis = one(code)

    assert (diagnosis.worst(3), diagnosis.verdict) == (outcome, verdict)


def test_a_speed_seen_once_is_unproven() -> None:
    """Only a result that came out the same alone makes a GPU suspect."""
    assert one(30, retried=False).worst(3) is Outcome.UNKNOWN


@pytest.mark.parametrize("code", range(133))
def test_no_code_that_only_asks_to_watch_condemns(code: int) -> None:
    """All 133 codes have an outcome, and those without a cure never drain."""
    diagnosis = one(code) if code else one(code, status=DiagStatus.PASS)

    entry = builtin().dcgm(code)
    assert entry is not None
    condemned = diagnosis.verdict is Verdict.FAULTY
    assert condemned is (entry.rung.height >= 5 and code not in (6, 83, 84, 85))


def test_a_switch_is_no_gpu() -> None:
    """An error of another entity is not given to the GPU of its number."""
    results = [{"entity_group": "Switch", "entity_id": 5, "status": "Fail",
                "warnings": [{"warning": "GPU 5 link", "error_id": 88}]}]  # fmt: skip
    tests: list[dict[str, Any]] = [{"name": "x", "results": results}]
    document = {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}}

    diagnosis = diagnose(diag_report(json.dumps(document).encode(), 226), builtin())

    assert [(f.gpu, f.entity) for f in diagnosis.findings] == [(None, "Switch 5")]


def test_what_was_finished_before_a_kill_may_condemn_and_never_acquits() -> None:
    """A found fault stands; a pass does not."""
    good = TestResult(name="pcie", category="Integration", status=DiagStatus.PASS, gpus=(3,))
    killed = DiagResult(tests=(good,), problem=DcgmProblem.KILLED, message="killed")

    assert diagnose(killed, builtin()).verdict is Verdict.UNKNOWN


@given(
    st.lists(
        st.builds(
            TestResult,
            name=st.sampled_from(["memory", "pcie", ""]),
            category=st.sampled_from(["Deployment", "Hardware"]),
            status=st.sampled_from(list(DiagStatus)),
            gpus=st.lists(st.integers(0, 7), max_size=2).map(tuple),
            errors=st.lists(
                st.builds(DiagError, error_id=st.integers(0, 200) | st.none(), text=st.text(max_size=9)),
                max_size=2,
            ).map(tuple),
        ),
        max_size=6,
    )
)
def test_healthy_needs_a_test_that_said_something(tests: list[TestResult]) -> None:
    """Of whatever results."""
    diagnosis = diagnose(DiagResult(tests=tuple(tests)), builtin())

    if diagnosis.verdict is Verdict.HEALTHY:
        assert any(test.tested for test in tests)
        assert not any(test.status is DiagStatus.UNKNOWN and not test.errors for test in tests)
