"""What a DCGM diagnostic means: each result by the catalogue's word on its error codes, not by "Fail".

A pending row remap is a reset at the next occasion, a missing setting is nobody's fault, and a test that
could not be made proves nothing. Only codes whose cure is known condemn a GPU; unknown ones ask a human.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.catalogue.rows import DcgmEntry, Urgency
from outlast.health.sources.dcgm_diag import DiagError, DiagResult, DiagStatus, TestResult
from outlast.health.sources.dcgm_retry import depends_on_order
from outlast.model.health import FaultClass, Subsystem, Verdict
from outlast.model.policy import Rung

FINDINGS_MAX: Final = 64
"""Findings of one run that are kept, worst first."""

_SETTINGS: Final = frozenset({"deployment"})
"""Categories that look at the machine's settings and exercise no GPU."""
_NAMED = re.compile(r"\bGPU:? ?(\d{1,3})\b")


class Outcome(StrEnum):
    """What one result comes to, worst first."""

    FAULTY = "Faulty"
    UNKNOWN = "Unknown"
    """Failed for a reason that nobody can tell, or that may not be one: a human has to look."""
    SUSPECT = "Suspect"
    """Keep new work away until somebody knows more."""
    RESET_DUE = "ResetDue"
    """Works, and wants a reset at the next occasion."""
    NOT_TESTED = "NotTested"
    NOTICE = "Notice"
    """Settings and passing conditions; nothing happens to the node."""
    PASSED = "Passed"


_ORDER: Final = {outcome: place for place, outcome in enumerate(Outcome)}


class DiagFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One result, or one error in it."""

    outcome: Outcome
    test: str
    gpu: int | None = None
    """DCGM's id; None for the machine, another entity, or where nobody knows."""
    serial: str = ""
    entity: str = ""
    code: int | None = None
    fault_class: FaultClass | None = None
    """What cures it, where it is faulty or a reset is due."""
    text: str = ""
    """The catalogue's sentence, or what is wrong with the result."""
    said: str = ""
    """DCGM's own words."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one run. Unknown never drains; only Faulty condemns."""

    verdict: Verdict
    summary: str
    findings: tuple[DiagFinding, ...] = ()
    """All but what passed."""
    passed: int = 0
    not_tested: tuple[str, ...] = ()
    """Names of tests that said nothing about any entity."""

    def worst(self, gpu: int) -> Outcome:
        """The worst that was found of one GPU."""
        found = (f.outcome for f in self.findings if f.gpu == gpu)
        return min(found, key=_ORDER.__getitem__, default=Outcome.PASSED)


def diagnose(result: DiagResult, catalogue: Catalogue) -> Diagnosis:
    """Judge one run."""
    judged = [finding for test in result.tests for finding in _judged(test, result, catalogue)]
    bad = sorted((f for f in judged if f.outcome is not Outcome.PASSED), key=lambda f: _ORDER[f.outcome])
    silent = _silent(result)
    verdict, summary = _verdict(result, bad, silent)
    return Diagnosis(
        verdict=verdict,
        summary=summary,
        findings=tuple(bad[:FINDINGS_MAX]),
        passed=len(judged) - len(bad),
        not_tested=silent,
    )


def _verdict(result: DiagResult, bad: list[DiagFinding], silent: tuple[str, ...]) -> tuple[Verdict, str]:
    count = {outcome: sum(1 for f in bad if f.outcome is outcome) for outcome in Outcome}
    if count[Outcome.FAULTY]:
        return Verdict.FAULTY, f"{bad[0].text or bad[0].said} ({_where(bad[0])})"
    if result.problem is not None:
        return Verdict.UNKNOWN, f"the diagnostic did not come to an end: {result.message or result.problem}"
    exercised = [test for test in result.tests if test.category.lower() not in _SETTINGS]
    if not result.tested or (exercised and not any(test.tested for test in exercised)):
        return Verdict.UNKNOWN, f"nothing was tested: all of {', '.join(silent) or 'it'} was skipped"
    for outcome in (Outcome.UNKNOWN, Outcome.SUSPECT, Outcome.RESET_DUE):
        if count[outcome]:
            first = next(f for f in bad if f.outcome is outcome)
            return Verdict.UNKNOWN, f"{first.text or first.said} ({_where(first)})"
    left_out = f"; not tested: {', '.join(silent)}" if silent else ""
    return Verdict.HEALTHY, f"all tests passed{left_out}"


def _judged(test: TestResult, result: DiagResult, catalogue: Catalogue) -> Iterator[DiagFinding]:
    real = [error for error in test.errors if error.error_id != 0]
    coded = [error for error in real if error.error_id is not None]
    if coded:
        for error in coded:
            yield _by_code(test, error, result, catalogue)
        return
    said = real[0].text if real else test.info
    match test.status:
        case DiagStatus.PASS:
            yield _finding(test, result, Outcome.PASSED)
        case DiagStatus.SKIP | DiagStatus.NOT_RUN:
            yield _finding(test, result, Outcome.NOT_TESTED, "it was skipped", said)
        case DiagStatus.WARN:
            yield _finding(test, result, Outcome.NOTICE, "DCGM warns without an error code", said)
        case DiagStatus.FAIL:
            yield _finding(test, result, Outcome.UNKNOWN, "it failed without an error code", said)
        case DiagStatus.UNKNOWN:
            yield _finding(test, result, Outcome.UNKNOWN, "its status is none that is known", said)


def _by_code(test: TestResult, error: DiagError, result: DiagResult, catalogue: Catalogue) -> DiagFinding:
    code = error.error_id or 0
    entry = catalogue.dcgm(code)
    if entry is None:
        outcome, text = Outcome.UNKNOWN, f"dcgm/{code} is in no edition of the catalogue; ask the vendor"
        return _finding(test, result, outcome, text, error.text, code)
    outcome = _outcome(entry, test)
    text = entry.text
    if outcome is Outcome.SUSPECT and depends_on_order(test):
        outcome, text = Outcome.UNKNOWN, f"{entry.text} Seen once only, right after other tests."
    cure = entry.fault_class if outcome in (Outcome.FAULTY, Outcome.RESET_DUE) else None
    return _finding(test, result, outcome, text, error.text, code, cure)


def _outcome(entry: DcgmEntry, test: TestResult) -> Outcome:
    """By the step that cures it: DCGM's own severity condemns for settings and spares failed remaps."""
    if entry.rung is Rung.WATCH:
        if entry.subsystem is not Subsystem.MONITOR:
            return Outcome.NOTICE
        skipped = test.status in (DiagStatus.SKIP, DiagStatus.NOT_RUN) or entry.urgency is Urgency.NEVER
        # A test that broke down is not one that was left out: what it should have told is unknown.
        return Outcome.NOT_TESTED if skipped else Outcome.UNKNOWN
    if entry.rung.height < Rung.RESET_GPU.height:
        return Outcome.SUSPECT
    waits = entry.urgency is Urgency.AT_DRAIN and entry.fault_class is FaultClass.RESET_CURES
    return Outcome.RESET_DUE if waits else Outcome.FAULTY


def _finding(
    test: TestResult,
    result: DiagResult,
    outcome: Outcome,
    text: str = "",
    said: str = "",
    code: int | None = None,
    cure: FaultClass | None = None,
) -> DiagFinding:
    gpu = test.gpu if test.gpu is not None else _named(said, test)
    return DiagFinding(
        outcome=outcome,
        test=test.name,
        gpu=gpu,
        serial=result.serial(gpu) if gpu is not None else "",
        entity=test.entity,
        code=code,
        fault_class=cure,
        text=text,
        said=said,
    )


def _named(said: str, test: TestResult) -> int | None:
    """The only GPU that the words name: older versions tell it nowhere else."""
    if test.entity:
        return None
    numbers = {int(number) for number in _NAMED.findall(said)}
    if len(numbers) != 1:
        return None
    [number] = numbers
    return number if not test.gpus or number in test.gpus else None


def _silent(result: DiagResult) -> tuple[str, ...]:
    names = dict.fromkeys(test.name for test in result.tests)
    return tuple(n for n in names if not any(test.tested for test in result.tests if test.name == n))


def _where(finding: DiagFinding) -> str:
    who = f"GPU {finding.gpu}" if finding.gpu is not None else finding.entity or "the machine"
    code = f", dcgm/{finding.code}" if finding.code is not None else ""
    return f"{finding.test} on {who}{code}"
