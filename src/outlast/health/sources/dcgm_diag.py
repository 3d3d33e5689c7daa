"""`dcgmi diag -j` of DCGM 3 and 4, and of its worker alone: what was tested, on what, with which errors.

Names of tests change between versions and status words lie in both directions, so a result is matched
by the DCGM error codes in it. A shape that yields no result at all is a problem, never a pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, Final

import msgspec

from outlast.health.sources.dcgm_output import document, plain, printable, signed_exit, told_problem
from outlast.model.observation.dcgm import DcgmProblem

RESULTS_MAX: Final = 2048
"""Results of one run that are kept: some 20 tests of 16 GPUs, and the same again for switches and CPUs."""
ERRORS_MAX: Final = 16
"""Errors of one result that are kept."""
ENTITIES_MAX: Final = 256
CODE_MAX: Final = 99_999
DEVICE_ID_MAX: Final = 4096

_ROOTS: Final = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_GPU: Final = "GPU"
_NOT_GIVEN: Final = re.compile(r"^<<<.*>>>$")

_FAILED_TEST: Final = frozenset({0, -30, -43, -51})
"""Exits that say no more than the results themselves."""


class DiagStatus(StrEnum):
    """The word of a result. Not yet a verdict."""

    PASS = "Pass"  # noqa: S105 (a word of DCGM)
    SKIP = "Skip"
    WARN = "Warn"
    FAIL = "Fail"
    NOT_RUN = "NotRun"
    UNKNOWN = "Unknown"
    """A word nobody knows: never a pass."""


_STATUS: Final = {
    "pass": DiagStatus.PASS,
    "passed": DiagStatus.PASS,
    "skip": DiagStatus.SKIP,
    "skipped": DiagStatus.SKIP,
    "warn": DiagStatus.WARN,
    "warning": DiagStatus.WARN,
    "fail": DiagStatus.FAIL,
    "failed": DiagStatus.FAIL,
    "not run": DiagStatus.NOT_RUN,
    "notrun": DiagStatus.NOT_RUN,
}


class DiagError(msgspec.Struct, frozen=True, kw_only=True):
    """One error inside a result."""

    error_id: int | None = None
    """DCGM_FR code; None where the version gives none. 0 says "no error"."""
    text: str = ""
    severity: int | None = None
    """As DCGM grades it: 1 monitor, 2 isolate, 3 unknown, 4 triage, 5 configuration, 6 reset."""


class TestResult(msgspec.Struct, frozen=True, kw_only=True):
    """One test on one entity, or on the machine."""

    __test__ = False

    name: str
    category: str = ""
    status: DiagStatus
    gpus: tuple[int, ...] = ()
    """DCGM's GPU ids; empty for the machine as a whole or for an entity that is no GPU."""
    entity: str = ""
    """Another entity, such as `Switch 3`."""
    errors: tuple[DiagError, ...] = ()
    info: str = ""
    retried: bool = False
    """Run again alone after a pause, and this is what came out."""

    @property
    def gpu(self) -> int | None:
        """The GPU where it is about exactly one."""
        return self.gpus[0] if len(self.gpus) == 1 else None

    @property
    def error_ids(self) -> tuple[int, ...]:
        """Codes that are errors."""
        return tuple(error.error_id for error in self.errors if error.error_id)

    @property
    def tested(self) -> bool:
        """Whether it says anything about its entity."""
        return self.status in (DiagStatus.PASS, DiagStatus.WARN, DiagStatus.FAIL) or bool(self.error_ids)


class DiagEntity(msgspec.Struct, frozen=True, kw_only=True):
    """An entity of the run."""

    group: str
    entity_id: int
    serial: str = ""
    device_id: str = ""


class DiagResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run. With a `problem` the results, if any, are only what was finished before it."""

    tests: tuple[TestResult, ...] = ()
    entities: tuple[DiagEntity, ...] = ()
    version: str = ""
    driver_version: str = ""
    exit_code: int | None = None
    """DCGM's own, signed."""
    problem: DcgmProblem | None = None
    message: str = ""
    dropped: int = 0
    """Results beyond the limit."""
    duration_s: float = 0.0

    @property
    def tested(self) -> bool:
        """Whether any test said anything. All skipped is nothing tested."""
        return any(test.tested for test in self.tests)

    def serial(self, gpu: int) -> str:
        """Board serial of a GPU id, where the run told it."""
        return next((e.serial for e in self.entities if e.group == _GPU and e.entity_id == gpu), "")


def diag_report(output: bytes, exit_code: int | None) -> DiagResult:
    """What a run said. Takes any bytes; never a pass for what cannot be read."""
    code = signed_exit(exit_code)
    found = document(output, *_ROOTS, "iterations")
    if found is None:
        silence, words = told_problem(output, exit_code)
        return DiagResult(problem=silence, message=words, exit_code=code)
    runs = _dicts(found.get("iterations"))
    parts = [_one_run(run) for run in (runs if "iterations" in found else [found])]
    tests = [test for part in parts for test in part.tests]
    last = parts[-1] if parts else DiagResult()
    problem, message = _stopped(found, parts, tests, exit_code)
    if problem is DcgmProblem.GARBAGE:
        message = f"no test result in: {plain(output)}"
    return DiagResult(
        tests=tuple(tests[:RESULTS_MAX]),
        entities=last.entities,
        version=last.version,
        driver_version=last.driver_version,
        exit_code=code,
        problem=problem,
        message=message,
        dropped=max(0, len(tests) - RESULTS_MAX),
    )


def _stopped(
    found: dict[str, Any], parts: list[DiagResult], tests: list[TestResult], exit_code: int | None
) -> tuple[DcgmProblem | None, str]:
    """What keeps the results from being the whole truth."""
    for part in parts:
        if part.problem is not None:
            return part.problem, part.message
    code, bad = signed_exit(exit_code), _any_bad(tests)
    if _text(found.get("Overall Result")).lower() == "fail" and not bad:
        return DcgmProblem.FAILED, _joined(found.get("warning")) or "the iterations failed"
    if not tests:
        return DcgmProblem.GARBAGE, ""
    if code is not None and code not in _FAILED_TEST:
        return told_problem(b"", exit_code)
    if code in (-30, -51) and not bad:
        return DcgmProblem.FAILED, f"dcgmi ended with {code} but no result says why"
    return None, ""


def _one_run(found: dict[str, Any]) -> DiagResult:
    root = next((entry for key in _ROOTS if (entry := _dict(found.get(key)))), {})
    places = (_dict(found.get("metadata")), root, found)
    problem: DcgmProblem | None = None
    message = _text(root.get("runtime_error")).strip()
    if message:
        problem, message = told_problem(message.encode(), _exit_in(message))
        if problem is DcgmProblem.GARBAGE:
            problem = DcgmProblem.FAILED
    return DiagResult(
        tests=tuple(_tests(root)),
        entities=tuple(_entities(found, root))[:ENTITIES_MAX],
        version=_first_text(places, "version"),
        driver_version=_first_text(places, "Driver Version Detected"),
        problem=problem,
        message=message,
    )


def _exit_in(message: str) -> int | None:
    """The return code that DCGM puts into its sentence: `Return: (-39) : ...`."""
    found = re.search(r"\((-\d{1,3})\)", message)
    return int(found.group(1)) % 256 if found else 253


def _tests(root: dict[str, Any]) -> Iterator[TestResult]:
    for category in _dicts(root.get("test_categories")):
        for test in _dicts(category.get("tests")):
            results = [_result(entry) for entry in _dicts(test.get("results"))]
            summary = test.get("test_summary")
            if isinstance(summary, dict):
                results += _summary(_result(summary), results)
            for result in results:
                yield msgspec.structs.replace(
                    result,
                    name=printable(_text(test.get("name")), 64) or "unnamed",
                    category=printable(_text(category.get("category")), 64),
                )


def _summary(summary: TestResult, results: list[TestResult]) -> list[TestResult]:
    """What the summary of a test knows beyond its results: it repeats their errors, and may have more."""
    told = {(error.error_id, error.text) for result in results for error in result.errors}
    more = tuple(error for error in summary.errors if (error.error_id, error.text) not in told)
    worse = summary.status is not DiagStatus.PASS and all(r.status is not summary.status for r in results)
    if not more and not worse:
        return []
    return [msgspec.structs.replace(summary, errors=more)]


def _result(entry: dict[str, Any]) -> TestResult:
    gpus, entity = _about(entry)
    word = " ".join(_text(entry.get("status")).split()).lower()
    return TestResult(
        name="",
        status=_STATUS.get(word, DiagStatus.UNKNOWN),
        gpus=gpus,
        entity=entity,
        errors=tuple(_errors(entry))[:ERRORS_MAX],
        info=_joined(entry.get("info")),
    )


def _about(entry: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    group = _text(entry.get("entity_group"))
    number = _number(entry.get("entity_id"))
    if group and number is not None:
        return ((number,), "") if group == _GPU else ((), f"{printable(group, 32)} {number}")
    listed = entry.get("gpu_id", entry.get("gpu_ids"))
    if isinstance(listed, str):
        ids = [_number(part) for part in listed[:1024].split(",")]
    elif isinstance(listed, list):
        ids = [_number(part) for part in listed[:64]]
    else:
        ids = [_number(listed)]
    return tuple(dict.fromkeys(i for i in ids if i is not None)), ""


def _errors(entry: dict[str, Any]) -> Iterator[DiagError]:
    """4.x has one object an error; 3.x one string, with one code beside it."""
    warnings = entry.get("warnings")
    if isinstance(warnings, (str, dict)):
        warnings = [warnings]
    if not isinstance(warnings, list):
        warnings = []
    beside = _code(entry.get("error_id"))
    for index, warning in enumerate(warnings[:ERRORS_MAX]):
        if isinstance(warning, dict):
            yield DiagError(
                error_id=_code(warning.get("error_id")),
                text=_joined(warning.get("warning")),
                severity=_number(warning.get("error_severity")),
            )
        elif isinstance(warning, str) and warning.strip():
            yield DiagError(error_id=beside if index == 0 else None, text=_joined(warning))
    if beside and not warnings:
        yield DiagError(error_id=beside, severity=_number(entry.get("error_severity")))


def _entities(found: dict[str, Any], root: dict[str, Any]) -> Iterator[DiagEntity]:
    for group in _dicts(found.get("entity_groups")):
        for entity in _dicts(group.get("entities")):
            number = _number(entity.get("entity_id"))
            if number is not None:
                yield DiagEntity(
                    group=printable(_text(group.get("entity_group")), 32),
                    entity_id=number,
                    serial=_given(entity.get("serial_num")),
                    device_id=_given(entity.get("device_id")),
                )
    serials = root.get("GPU Device Serials", found.get("GPU Device Serials"))
    if isinstance(serials, dict):  # 3.3: by GPU id
        for name, serial in serials.items():
            if (number := _number(name)) is not None:
                yield DiagEntity(group=_GPU, entity_id=number, serial=_given(serial))


def _any_bad(tests: Iterable[TestResult]) -> bool:
    good = (DiagStatus.PASS, DiagStatus.SKIP, DiagStatus.NOT_RUN)
    return any(test.status not in good or test.error_ids for test in tests)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; older versions leave null where a test did not run."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _first_text(places: Iterable[dict[str, Any]], key: str) -> str:
    return next((text for place in places if (text := printable(_text(place.get(key)), 64))), "")


def _joined(value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    return printable(" ".join(part for part in parts[:ERRORS_MAX] if isinstance(part, str)))


def _given(value: Any) -> str:
    text = printable(_text(value), 64)
    return "" if _NOT_GIVEN.match(text) else text


def _code(value: Any) -> int | None:
    if isinstance(value, dict):  # {"code": 42, "field_id": 150}
        value = value.get("code")
    number = _number(value)
    return number if number is None or number <= CODE_MAX else CODE_MAX


def _number(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 12:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < 2**31 else None
