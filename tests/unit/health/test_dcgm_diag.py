"""Diagnostics of both generations: matched by error code, and never a pass for what cannot be read."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.health.sources.dcgm_diag import (
    RESULTS_MAX,
    DiagError,
    DiagResult,
    DiagStatus,
    TestResult,
    diag_report,
)
from outlast.health.sources.dcgm_retry import merged, run_name, to_retry
from outlast.model.observation.dcgm import DcgmProblem
from tests.dcgm import recorded


def bad(result: DiagResult) -> list[tuple[str, int | None, tuple[int, ...]]]:
    return [(t.name, t.gpu, t.error_ids) for t in result.tests if t.error_ids]


def test_generation_4_gives_a_result_for_each_gpu_with_its_errors() -> None:
    """Codes, serials and versions of the run come along."""
    result = diag_report(recorded("diag-4.6.0-level1-remap-failed.json"), 205)

    assert bad(result) == [("software", 1, (4711,)), ("software", 6, (80,))]
    assert len(result.tests) == 8
    assert result.problem is None
    assert (result.version, result.driver_version, result.exit_code) == ("4.6.0", "580.95.05", -51)
    assert (result.serial(6), result.serial(99)) == ("1650923000006", "")


def test_generation_3_has_one_text_and_one_code_beside_it() -> None:
    """Tests of the machine have no GPU; holes where a GPU did not run a test are stepped over."""
    result = diag_report(recorded("diag-3-level2-memory-fail.json"), 226)

    assert bad(result) == [("Page Retirement/Row Remap", None, (85,)), ("GPU Memory", 7, (58,))]
    assert sum(1 for test in result.tests if test.name == "PCIe") == 7
    assert (result.version, result.driver_version) == ("3.2.6", "535.129.03")


def test_the_worker_lists_gpus_in_a_string_behind_a_warning() -> None:
    """As recorded: text before the document, null between tests, upper case words."""
    result = diag_report(recorded("diag-3-worker-level1.txt"), 0)

    assert result.problem is None
    assert {test.status for test in result.tests} == {DiagStatus.PASS}
    assert result.tests[0].gpus == tuple(range(8))
    assert [test.gpu for test in result.tests if test.name == "software"] == list(range(8))
    assert result.version == "3.1.0"


def test_all_skipped_is_nothing_tested_on_the_gpus() -> None:
    """As recorded on a card that no test supports: only the machine's own settings were looked at."""
    result = diag_report(recorded("diag-3-level3-all-skip.json"), 0)

    assert {test.status for test in result.tests if test.gpu == 0} == {DiagStatus.SKIP}
    assert not any(test.tested for test in result.tests if test.gpu == 0)


def test_an_error_inside_a_pass_is_an_error() -> None:
    """A memory test that could not get memory says Pass (issue 284)."""
    result = diag_report(recorded("diag-4.5.0-pass-with-error.json"), 0)

    found = [test for test in result.tests if test.error_ids]
    assert [(t.gpu, t.status, t.error_ids) for t in found] == [(2, DiagStatus.PASS, (56,))]


def test_a_summary_repeats_errors_only_once() -> None:
    """4.5 writes each error into the summary too, 4.2 does not: both give one result."""
    for name in ("diag-4.2.3-level1-persistence-off.json", "diag-4.5.2-level2-skips.json"):
        result = diag_report(recorded(name), 226)
        assert bad(result) == [("software", 0, (29,))]
        assert result.serial(0) == ""


def test_an_error_that_only_the_summary_has_is_kept() -> None:
    """An error of no entity stands in the summary alone."""
    report: dict[str, Any] = json.loads(recorded("diag-4.5.0-nvbandwidth-alone.json"))
    test = report["DCGM Diagnostic"]["test_categories"][0]["tests"][0]
    test["test_summary"] = {"status": "Fail", "warnings": [{"warning": "no library", "error_id": 22}]}

    assert bad(diag_report(json.dumps(report).encode(), 226)) == [("nvbandwidth", None, (22,))]


@pytest.mark.parametrize(
    ("name", "exit_code", "problem"),
    [
        ("diag-4-already-running.json", 217, DcgmProblem.ALREADY_RUNNING),
        ("diag-3-mig.json", 226, DcgmProblem.REFUSED),
        ("engine-down.txt", 235, DcgmProblem.ENGINE_DOWN),
    ],
)
def test_a_run_that_did_not_happen_is_a_problem(name: str, exit_code: int, problem: DcgmProblem) -> None:
    """With the words of the tool, and without any result."""
    result = diag_report(recorded(name), exit_code)

    assert (result.problem, result.tests) == (problem, ())
    assert result.message


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"DCGM Diagnostic": {}},
        {"DCGM Diagnostic": {"version": "4.2.3"}},
        {"DCGM GPU Diagnostic": {"test_categories": []}},
        {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": []}]}},
        {"DCGM Diagnostic": {"test_categories": {"Deployment": "Pass"}}},
        {"Some Later Diagnostic": {"test_categories": [{"tests": [{"results": [{"status": "Pass"}]}]}]}},
        {"iterations": []},
    ],
)
def test_zero_results_are_never_a_pass(document: dict[str, Any]) -> None:
    """A shape that is not understood is a problem, also with exit code 0."""
    result = diag_report(json.dumps(document).encode(), 0)

    assert result.problem is not None
    assert not result.tested


def test_an_end_that_no_result_explains_is_a_problem() -> None:
    """All pass and yet "a test failed": somebody's shape is not the one we know."""
    result = diag_report(recorded("diag-4.5.0-nvbandwidth-alone.json"), 226)

    assert result.problem is DcgmProblem.FAILED


def test_a_run_that_was_killed_does_not_count_what_it_finished() -> None:
    """The results are kept, and the problem says that they are not all."""
    result = diag_report(recorded("diag-4.5.0-nvbandwidth-alone.json"), 203)

    assert result.problem is DcgmProblem.KILLED
    assert result.tests


def test_iterations_are_all_looked_at() -> None:
    """One bad run of several is bad."""
    result = diag_report(recorded("diag-4-iterations.json"), 226)

    assert (6, (80,)) in [(test.gpu, test.error_ids) for test in result.tests]
    assert result.problem is None


@pytest.mark.parametrize(
    ("word", "status"),
    [("PASS", "Pass"), ("pass", "Pass"), ("Skipped", "Skip"), ("WARN", "Warn"), ("Fail", "Fail"),
     ("Not Run", "NotRun"), ("Excellent", "Unknown"), ("", "Unknown"), (None, "Unknown"), (0, "Unknown")],
)  # fmt: skip
def test_words_are_compared_without_case_and_unknown_ones_are_no_pass(word: object, status: str) -> None:
    """A later version may say anything."""
    document = {"DCGM Diagnostic": {"test_categories": [{"tests": [{"results": [{"status": word}]}]}]}}

    assert [t.status for t in diag_report(json.dumps(document).encode(), 0).tests] == [DiagStatus(status)]


def test_other_entities_are_named() -> None:
    """A switch or a CPU is no GPU, whatever its number."""
    results = [{"entity_group": "Switch", "entity_group_id": 3, "entity_id": 5, "status": "Fail"}]
    document = {"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "x", "results": results}]}]}}

    (test,) = diag_report(json.dumps(document).encode(), 226).tests

    assert (test.gpus, test.entity) == ((), "Switch 5")


def test_a_run_of_anything_is_bounded() -> None:
    """What is beyond the limit is counted."""
    results = [{"gpu_id": str(i % 8), "status": "Pass"} for i in range(RESULTS_MAX + 7)]
    document = {"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "x", "results": results}]}]}}

    result = diag_report(json.dumps(document).encode(), 0)

    assert (len(result.tests), result.dropped) == (RESULTS_MAX, 7)


def test_nvbandwidth_on_a_busy_moment_is_to_be_run_alone() -> None:
    """It fails for the traffic that the burn test left (issue 272); nothing else is run again."""
    result = diag_report(recorded("diag-4.5.0-level3-nvbandwidth-busy.json"), 226)

    assert to_retry(result) == ("nvbandwidth",)


def test_what_came_out_alone_counts() -> None:
    """The first results of that test are replaced, all others stay."""
    first = diag_report(recorded("diag-4.5.0-level3-nvbandwidth-busy.json"), 226)
    again = diag_report(recorded("diag-4.5.0-nvbandwidth-alone.json"), 0)

    result = merged(first, "nvbandwidth", again)

    assert bad(result) == []
    assert len(result.tests) == len(first.tests)
    assert {t.retried for t in result.tests if t.name == "nvbandwidth"} == {True}
    assert to_retry(result) == ()


def test_a_second_run_that_says_nothing_changes_nothing() -> None:
    """A refused or skipped second run is no acquittal."""
    first = diag_report(recorded("diag-4.5.0-level3-nvbandwidth-busy.json"), 226)

    assert merged(first, "nvbandwidth", diag_report(recorded("diag-4-already-running.json"), 217)) is first


@pytest.mark.parametrize(
    ("name", "code", "again"),
    [("pcie", 30, True), ("targeted_stress", 50, True), ("Targeted Power", 63, True), ("pcie", 130, True),
     ("memory", 58, False), ("software", 29, False), ("eud", 130, False), ("diagnostic", 110, True)],
)  # fmt: skip
def test_what_is_measured_is_run_again_and_what_is_counted_is_not(name: str, code: int, again: bool) -> None:
    """A memory mismatch is one, whatever ran before; tests that cannot be run alone are not tried."""
    test = TestResult(name=name, status=DiagStatus.FAIL, gpus=(0,), errors=(DiagError(error_id=code),))

    assert to_retry(DiagResult(tests=(test,))) == ((run_name(name),) if again else ())


def test_a_hardware_error_beside_a_slow_one_is_not_run_again() -> None:
    """There is nothing left to find out."""
    errors = (DiagError(error_id=30), DiagError(error_id=98))
    test = TestResult(name="pcie", status=DiagStatus.FAIL, gpus=(0,), errors=errors)

    assert to_retry(DiagResult(tests=(test,))) == ()


@given(st.binary(max_size=400), st.integers(-64, 255) | st.none())
def test_any_bytes_give_an_answer(output: bytes, exit_code: int | None) -> None:
    """No output raises, and none without results is a pass."""
    result = diag_report(output, exit_code)

    assert result.tests or result.problem is not None


_KEYS = [
    *("DCGM Diagnostic", "DCGM GPU Diagnostic", "test_categories", "tests", "results", "status", "gpu_ids"),
    *("warnings", "error_id", "test_summary", "name", "iterations", "runtime_error", "entity_groups"),
]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["Pass", "Fail", "0,1", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=40,
)


@given(st.dictionaries(st.sampled_from(_KEYS), _JSON, max_size=4))
def test_any_json_gives_an_answer(value: dict[str, Any]) -> None:
    """And what it gives can be written down again."""
    result = diag_report(json.dumps(value).encode(), 0)

    assert result.tests or result.problem is not None
    assert msgspec.json.encode(result)
