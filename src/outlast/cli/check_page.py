"""What `outlast check` says, as data: pure, from one look to rows, one headline and one thing to do.

The verdicts are the judge's. A GPU is only called healthy when NVML read it and nothing is open on it;
a person gets the worst thing first, a script gets an exit code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from outlast.agent.look import Found
from outlast.cli import EXIT_FAULT, EXIT_OK, EXIT_UNKNOWN
from outlast.cli.check_rows import (
    UNTESTED,
    FaultRow,
    GpuRow,
    SlowRow,
    SourceRow,
    SubsystemRow,
    TestRow,
    advice_of,
    fault_rows,
    gpu_rows,
    slow_rows,
    source_row,
    subsystem_row,
    test_rows,
)
from outlast.health.checks.gpu_presence import VM_DRIVER
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, FaultState, Verdict
from outlast.model.observation.active import NotTested, Outcome

API_VERSION: Final = "outlast.dev/cli/v1"
KIND: Final = "Check"

_WEIGHT: Final = {Verdict.FAULTY: 0, Verdict.UNKNOWN: 1, Verdict.HEALTHY: 2}


class CheckPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All of it; the JSON of `outlast check --json` is this."""

    api_version: str = API_VERSION
    kind: str = KIND
    level: str
    host: str
    checked_at: datetime
    duration_seconds: float
    verdict: Verdict
    exit_code: int
    headline: str
    advice: str
    gpus: tuple[GpuRow, ...]
    subsystems: tuple[SubsystemRow, ...]
    faults: tuple[FaultRow, ...]
    faults_dropped: int
    sources: tuple[SourceRow, ...]
    tests: tuple[TestRow, ...]
    """Active tests, those that could not run too."""
    slow: tuple[SlowRow, ...]
    """Warnings, which change no verdict."""
    looked_at: tuple[str, ...]
    """Where GPUs were looked for, when none was found."""
    driver_version: str
    instance_type: str
    boot_id: str


class NoSuchGpu(Exception):
    """The GPU that was asked for is not here; `str()` is one sentence."""


def page(
    found: Found,
    *,
    level: str,
    host: str,
    at: datetime,
    duration_s: float,
    wanted: Sequence[str] = (),
    fail_on_unknown: bool = True,
    looked_at: Sequence[str] = (),
) -> CheckPage:
    """The page of a look. `wanted` names GPUs by index, PCI address or UUID; none means all of them."""
    everything = gpu_rows(found)
    gpus = tuple(_chosen(everything, wanted)) if wanted else everything
    status = found.judgement.status
    subsystems = tuple(subsystem_row(entry) for entry in status.verdicts)
    addresses = {gpu.pci_address for gpu in gpus}
    faults = tuple(
        row
        for row in fault_rows(found)
        if not wanted or row.fault.gpu is None or row.fault.gpu.pci_address in addresses
    )
    tests = tuple(row for row in test_rows(found) if not wanted or addresses.issuperset(row.gpus))
    untested = _untested(tests) if level != "quick" else {}
    verdict = _verdict(gpus, subsystems, faults, only_some=bool(wanted))
    if untested and verdict is Verdict.HEALTHY:
        verdict = Verdict.UNKNOWN
    nothing_here = not gpus and verdict is not Verdict.FAULTY
    if nothing_here:
        verdict = Verdict.UNKNOWN
    return CheckPage(
        level=level,
        host=host,
        checked_at=at,
        duration_seconds=round(duration_s, 3),
        verdict=verdict,
        exit_code=_exit_code(verdict, fail_on_unknown=fail_on_unknown),
        headline=_headline(verdict, gpus, subsystems, faults, untested, found),
        advice=_advice(verdict, gpus, subsystems, faults, untested, found),
        gpus=gpus,
        subsystems=subsystems,
        faults=faults,
        faults_dropped=status.faults_dropped,
        sources=tuple(source_row(report) for report in found.sources),
        tests=tests,
        slow=slow_rows(found),
        looked_at=tuple(looked_at) if nothing_here else (),
        driver_version=found.gpu.driver_version if found.gpu else "",
        instance_type=found.facts.instance_type,
        boot_id=found.facts.boot_id,
    )


# --- the whole


def _verdict(
    gpus: Sequence[GpuRow], subsystems: Sequence[SubsystemRow], faults: Sequence[FaultRow], *, only_some: bool
) -> Verdict:
    """Over all that was asked for. With some GPUs only, another GPU's fault is not theirs."""
    if any(row.fault.state is FaultState.OPEN for row in faults):
        return Verdict.FAULTY
    counted = [row.verdict for row in subsystems if row.counts]
    if only_some:
        counted = [verdict for verdict in counted if verdict is Verdict.UNKNOWN]
    counted += [row.verdict for row in gpus if row.verdict is not None]
    if not any(row.verdict is not None for row in gpus):
        counted.append(Verdict.UNKNOWN)
    return min(counted, key=_WEIGHT.__getitem__, default=Verdict.UNKNOWN)


def _untested(tests: Sequence[TestRow]) -> dict[str, str]:
    """Tests of the level that did not run on some GPU, with the first reason."""
    consequence = NotTested.EARLIER_TEST
    missing = [row for row in tests if row.outcome is Outcome.NOT_TESTED and row.not_tested != consequence]
    return {row.test: row.why for row in reversed(missing)}


def _exit_code(verdict: Verdict, *, fail_on_unknown: bool) -> int:
    if verdict is Verdict.FAULTY:
        return EXIT_FAULT
    return EXIT_UNKNOWN if verdict is Verdict.UNKNOWN and fail_on_unknown else EXIT_OK


def _headline(
    verdict: Verdict,
    gpus: Sequence[GpuRow],
    subsystems: Sequence[SubsystemRow],
    faults: Sequence[FaultRow],
    untested: Mapping[str, str],
    found: Found,
) -> str:
    if verdict is Verdict.FAULTY:
        opened = [row for row in faults if row.fault.state is FaultState.OPEN]
        more = f" And {len(opened) - 1} more." if len(opened) > 1 else ""
        first = opened[0].fault.summary if opened else _worst(subsystems, Verdict.FAULTY).message
        return f"{first}{more}"
    if not gpus:
        if found.pci is not None and not found.pci.readable:
            return f"The PCI bus could not be read, so GPUs could not be counted: {found.pci.message}."
        return "No NVIDIA device found."
    if all(row.verdict is None for row in gpus):
        return (
            f"All {len(gpus)} NVIDIA GPUs are assigned to virtual machines ({VM_DRIVER}); none was checked."
        )
    if verdict is Verdict.UNKNOWN:
        doubtful = [row for row in gpus if row.verdict is Verdict.UNKNOWN]
        if doubtful:
            first = f"GPU {_name(doubtful[0])}: {doubtful[0].what}"
            more = f", and {len(doubtful) - 1} more GPUs" if len(doubtful) > 1 else ""
            return f"No fault was found, but not all could be told. {first}{more}."
        row = _worst(subsystems, Verdict.UNKNOWN)
        if row.verdict is not Verdict.UNKNOWN and untested:
            words = "; ".join(f"{test} ({why})" for test, why in untested.items())
            return f"No fault was found, but not all was tested: {words}."
        return f"No fault was found, but not all could be looked at. {row.subsystem}: {row.message}"
    healthy = sum(1 for row in gpus if row.verdict is Verdict.HEALTHY)
    return f"{healthy} of {len(gpus)} GPUs are healthy; no fault is open."


def _advice(
    verdict: Verdict,
    gpus: Sequence[GpuRow],
    subsystems: Sequence[SubsystemRow],
    faults: Sequence[FaultRow],
    untested: Mapping[str, str],
    found: Found,
) -> str:
    if verdict is Verdict.HEALTHY:
        return "Nothing to do."
    if verdict is Verdict.FAULTY:
        opened = [row for row in faults if row.fault.state is FaultState.OPEN]
        if opened and opened[0].fault.fault_class is FaultClass.TRANSIENT:
            return f"Place no new work here and check again. {opened[0].advice}"
        return opened[0].advice if opened else advice_of(_worst(subsystems, Verdict.FAULTY).reason)
    if not gpus:
        if found.pci is not None and not found.pci.readable:
            return "Look at the sources below; `--host-root` says where this machine's /sys is mounted."
        return advice_of(Reason.NO_GPU_FOUND)
    reasons = [row.reason for row in gpus if row.verdict is Verdict.UNKNOWN]
    if any(row.what.startswith(UNTESTED) for row in gpus):
        return "Place no new work on it; repeat the test, and look at the driver if it goes astray again."
    unknown = [row.reason for row in subsystems if row.verdict is Verdict.UNKNOWN and row.counts]
    # A cause (the log, the library, the driver) says more than "not observed", which is its consequence.
    vague = (Reason.NOT_OBSERVED, Reason.NOT_YET_CHECKED)
    best = next((reason for reason in (*reasons, *unknown) if reason not in vague), None)
    if best is None and not reasons and not unknown and untested:
        return "Provide what is missing, or let it pass with `--fail-on fault`."
    return advice_of(best or next(iter((*reasons, *unknown)), Reason.NOT_OBSERVED))


def _worst(subsystems: Sequence[SubsystemRow], verdict: Verdict) -> SubsystemRow:
    vague = (Reason.NOT_OBSERVED, Reason.NOT_YET_CHECKED)
    rows = [row for row in subsystems if row.verdict is verdict and row.counts]
    return next((row for row in rows if row.reason not in vague), rows[0] if rows else subsystems[0])


# --- choosing and naming


def _chosen(rows: Sequence[GpuRow], wanted: Sequence[str]) -> list[GpuRow]:
    chosen: list[GpuRow] = []
    for name in wanted:
        found = [row for row in rows if _is_named(row, name)]
        if not found:
            here = ", ".join(_name(row) for row in rows) or "none"
            raise NoSuchGpu(f"there is no GPU {name[:64]!r} here; the GPUs are: {here}.")
        chosen += [row for row in found if row not in chosen]
    return chosen


def _is_named(row: GpuRow, name: str) -> bool:
    if name.isdigit():
        return row.index == int(name)
    name = name.lower()
    if name.startswith("gpu-"):
        return row.uuid.lower().startswith(name)
    # As nvidia-smi writes it: an eight-digit domain; or without a domain or function.
    return row.pci_address == name or row.pci_address in (
        name[4:] if name.startswith("0000") else name,
        f"0000:{name}",
        f"{name}.0",
        f"0000:{name}.0",
    )


def _name(row: GpuRow) -> str:
    return f"{row.index} ({row.pci_address})" if row.index is not None else row.pci_address
