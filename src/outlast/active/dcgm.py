"""DCGM's diagnostic as an active test: one result a GPU, from a diagnosis that was judged already. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from outlast.active.plan import Candidate
from outlast.health.dcgm_diagnosis import DiagFinding, Diagnosis, Outcome
from outlast.health.sources.dcgm_diag import DiagResult
from outlast.model.observation import active

SETTINGS: Final = "deployment"
"""The category of what looks at the machine's settings and exercises nothing."""
_OPEN: Final = (Outcome.UNKNOWN, Outcome.SUSPECT, Outcome.RESET_DUE)


def results_of(
    diagnosis: Diagnosis, result: DiagResult, gpus: Sequence[Candidate]
) -> tuple[active.ActiveResult, ...]:
    """What the run says of each GPU; a run that broke off or tested nothing says nothing good of any."""
    ended = result.problem is None and result.tested
    return tuple(_of(gpu, diagnosis, result, ended=ended) for gpu in gpus)


def _of(gpu: Candidate, diagnosis: Diagnosis, result: DiagResult, *, ended: bool) -> active.ActiveResult:
    mine = [finding for finding in diagnosis.findings if _is_about(finding, gpu)]
    faulty = next((f for f in mine if f.outcome is Outcome.FAULTY and f.gpu is not None), None)
    doubt = next((f for f in mine if f.outcome in (*_OPEN, Outcome.FAULTY)), None)
    outcome, why = active.Outcome.PASSED, f"{diagnosis.passed} results passed"
    if faulty is not None:
        outcome, why = active.Outcome.FAILED, _words(faulty)
    elif doubt is not None:
        outcome, why = active.Outcome.NOT_TESTED, _words(doubt)
    elif not ended:
        outcome, why = active.Outcome.NOT_TESTED, diagnosis.summary
    elif not _exercised(result, gpu):
        outcome, why = active.Outcome.NOT_TESTED, "DCGM skipped all that would have exercised it"
    not_tested = outcome is active.Outcome.NOT_TESTED
    return active.ActiveResult(
        test=active.ActiveTest.DCGM,
        gpus=(gpu.address,),
        outcome=outcome,
        why=why[:300],
        not_tested=active.NotTested.INCONCLUSIVE if not_tested else None,
        failure=active.Failure.DIAGNOSTIC if faulty is not None else None,
        cure=faulty.fault_class if faulty is not None else None,
        engine=f"DCGM {result.version}".strip(),
        model=gpu.model,
        duration_s=result.duration_s,
    )


def _exercised(result: DiagResult, gpu: Candidate) -> bool:
    """Whether a test ran on it; where a run only looks at settings, as level 1 does, that is all there is."""
    wanted = [test for test in result.tests if test.category.lower() != SETTINGS] or list(result.tests)
    return any(test.tested and (gpu.index in test.gpus or not (test.gpus or test.entity)) for test in wanted)


def _is_about(finding: DiagFinding, gpu: Candidate) -> bool:
    """This GPU, or the machine as a whole; serials win over numbers, which may differ from NVML's."""
    if finding.serial and gpu.serial:
        return finding.serial == gpu.serial
    if finding.gpu is not None:
        return finding.gpu == gpu.index
    return not finding.entity


def _words(finding: DiagFinding) -> str:
    code = f" (dcgm/{finding.code})" if finding.code is not None else ""
    return f"{finding.test}: {finding.text or finding.said}{code}"
