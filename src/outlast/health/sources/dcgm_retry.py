"""Which tests of a diagnostic must be seen twice: what they measure depends on what ran just before.

nvbandwidth fails on an idle machine because the burn test a moment ago left traffic; alone it passes. So
a result about speed, and a test that asks for it, counts only when it comes out the same alone.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.health.sources.dcgm_diag import DiagResult, DiagStatus, TestResult

SPEED_CODES: Final = frozenset({30, 31, 36, 38, 39, 50, 62, 63, 110})
"""Bandwidth, latency, thresholds, stress level, power target, GFLOPS: measured, not counted."""
RETEST_CODE: Final = 130
"""DCGM itself asks for another run."""

_NAMES: Final = {
    "pcie": "pcie",
    "gpu_memory": "memory",
    "memory": "memory",
    "diagnostic": "diagnostic",
    "nvbandwidth": "nvbandwidth",
    "targeted_stress": "targeted_stress",
    "targeted_power": "targeted_power",
    "memory_bandwidth": "memory_bandwidth",
    "memtest": "memtest",
    "sm_stress": "sm_stress",
    "pulse_test": "pulse_test",
}
"""Names of results of both generations, and what `dcgmi diag -r` calls the test. Others are not retried."""


def run_name(name: str) -> str:
    """What `dcgmi diag -r` calls the test of a result; empty when it cannot be run alone."""
    return _NAMES.get("_".join(name.lower().split()), "")


def depends_on_order(test: TestResult) -> bool:
    """Whether a bad result may come from what ran before it."""
    if test.retried or test.status is DiagStatus.SKIP:
        return False
    ids = set(test.error_ids)
    if RETEST_CODE in ids or ids & SPEED_CODES:
        return ids <= SPEED_CODES | {RETEST_CODE}
    busy = any("utilization" in error.text.lower() for error in test.errors)
    return run_name(test.name) == "nvbandwidth" and busy


def to_retry(result: DiagResult) -> tuple[str, ...]:
    """Tests to run again alone, as `dcgmi diag -r` calls them."""
    names = (run_name(test.name) for test in result.tests if depends_on_order(test))
    return tuple(dict.fromkeys(name for name in names if name))


def merged(result: DiagResult, name: str, again: DiagResult) -> DiagResult:
    """The run with the results of one test replaced by those it had alone.

    A second run that could not be made leaves the first result in place, still unproven.
    """
    fresh = tuple(
        msgspec.structs.replace(test, retried=True) for test in again.tests if run_name(test.name) == name
    )
    if again.problem is not None or not any(test.tested for test in fresh):
        return result
    kept = tuple(test for test in result.tests if run_name(test.name) != name)
    return msgspec.structs.replace(
        result, tests=(*kept, *fresh), duration_s=result.duration_s + again.duration_s
    )
