"""Rows of `outlast check`: GPUs, subsystems, faults, sources and tests, as data. Pure.

A GPU is only called healthy when NVML read it, nothing is open on it, and no test on it went astray.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.agent.look import Found, Seen, SourceReport
from outlast.health.checks.active import warnings
from outlast.health.checks.gpu_presence import VM_DRIVER
from outlast.health.reason_texts import REASON_TEXTS
from outlast.health.reasons import Reason
from outlast.health.verdict.report import NOT_COUNTED
from outlast.health.verdict.state import OpenFault
from outlast.model.health import Fault, FaultState, Gpu, SubsystemVerdict, Verdict
from outlast.model.observation import GpuReading
from outlast.model.observation.active import ActiveResult, ActiveSurvey, NotTested, Outcome
from outlast.web.wording import span

ASTRAY: Final = frozenset({NotTested.DEADLINE, NotTested.CRASHED, NotTested.INCONCLUSIVE})
"""The test began and did not come to an end, so its GPU is not vouched for, at any level."""
UNTESTED: Final = "active test"
"""What the word about such a GPU begins with."""

_ADVICE: Final = {
    Reason.KERNEL_LOG_BLIND: "Run it as root: the kernel log could not be read, and faults show there first.",
    Reason.LIBRARY_MISSING: "Install the driver's user-space library (libnvidia-ml.so.1), or mount it here.",
    Reason.DRIVER_NOT_LOADED: "Load the NVIDIA driver (`modprobe nvidia`), or finish its installation.",
    Reason.DRIVER_MISMATCH: "Reboot, or reload the driver: kernel module and library differ in version.",
    Reason.NO_PERMISSION: "Run it as a user who may open /dev/nvidia*.",
    Reason.AWAITING_PROOF: "Reboot or reset what it names and check again, or let `--settle 90` wait for the "
    "proof that it is over.",
    Reason.CONFIRMING: "Check again in a minute: one poll found something that others did not confirm.",
    Reason.INITIALIZING: "Check again in five minutes: the driver or the machine came up a moment ago.",
    Reason.DIAGNOSTICS_HUNG: "Place no new work here and check again in a minute; if it still hangs, reboot.",
    Reason.NOT_YET_CHECKED: "Look at the sources below: no full check completed.",
    Reason.NOT_OBSERVED: "Look at the sources below: some could not be read.",
    Reason.NO_GPU_FOUND: "If this machine should have GPUs, say so with `--expected-gpus N`.",
}
"""For the owner of one box; the other reasons' advice in docs/reasons.md fits as it is."""


class GpuRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One GPU."""

    index: int | None
    pci_address: str
    model: str
    uuid: str
    serial: str
    verdict: Verdict | None
    """None: it belongs to a virtual machine and was not looked at."""
    reason: str
    what: str


class SubsystemRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One subsystem, as the node condition of this name would say it."""

    subsystem: str
    condition: str
    verdict: Verdict
    reason: str
    message: str
    counts: bool
    """False: Unknown because there is nothing of the kind here; leaves the whole verdict alone."""


class FaultRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One fault with its evidence."""

    fault: Fault
    reason: str
    advice: str
    age_seconds: float | None
    """Since the first kernel line of it, where there is one; approximate."""


class SourceRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One source, and whether it could be read."""

    name: str
    seen: Seen
    message: str
    duration_seconds: float


class TestRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One active test on one GPU or pair."""

    __test__ = False

    test: str
    gpus: tuple[str, ...]
    outcome: Outcome
    not_tested: str
    failure: str
    why: str
    engine: str
    checksum: str
    bytes_per_second: float | None
    duration_seconds: float


class SlowRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A copy that is slower than it should be."""

    test: str
    gpus: tuple[str, ...]
    text: str


# --- rows


def gpu_rows(found: Found) -> tuple[GpuRow, ...]:
    """Every GPU that is on the bus, or was known; by PCI address, which is the order of NVML."""
    drivers = {device.address: device.driver for device in found.pci.gpus} if found.pci else {}
    known = {gpu.identity.pci_address: gpu for gpu in found.judgement.status.gpus}
    addresses = sorted({*known, *drivers})
    rows = [_gpu_row(address, known.get(address), drivers.get(address, ""), found) for address in addresses]
    return tuple(rows)


def _gpu_row(address: str, gpu: Gpu | None, driver: str, found: Found) -> GpuRow:
    reading = _reading(found, address)
    verdict: Verdict | None
    if driver == VM_DRIVER:
        verdict, reason, what = None, "", "assigned to a virtual machine; not looked at"
    else:
        verdict, reason, what = _gpu_verdict(address, reading, found)
    identity = gpu.identity if gpu else None
    return GpuRow(
        index=identity.index if identity else None,
        pci_address=address,
        model=gpu.model if gpu else "",
        uuid=identity.uuid if identity else "",
        serial=identity.serial if identity else "",
        verdict=verdict,
        reason=reason,
        what=what,
    )


def _gpu_verdict(address: str, reading: GpuReading | None, found: Found) -> tuple[Verdict, str, str]:
    state = found.judgement.state
    mine = [fault for fault in state.faults if fault.gpu and fault.gpu.pci_address == address]
    for fault in sorted(mine, key=lambda fault: fault.root.rank):
        if fault.state is FaultState.OPEN:
            first = _without_name(fault.root.summary, address).partition(". ")[0].rstrip(".")
            return Verdict.FAULTY, fault.root.reason, f"{fault.root.reason}: {first}"
    if mine:
        fault = min(mine, key=lambda fault: fault.root.rank)
        age = _age_s(fault, found)
        when = f"{span(age)} ago" if age is not None else "before"
        what = f"{fault.root.code} {when}; not yet proven to be over"
        return Verdict.UNKNOWN, Reason.AWAITING_PROOF, what
    for entry in state.unexplained:
        if entry.gpu == address:
            what = f"the driver printed {entry.code}, which no catalogue explains"
            return Verdict.UNKNOWN, Reason.UNRECOGNISED_XID, what
    if reading is None:
        return Verdict.UNKNOWN, Reason.NOT_OBSERVED, "not looked at: NVML gave no answer for it"
    if reading.error:
        return Verdict.UNKNOWN, Reason.GPU_NOT_READABLE, f"NVML says {reading.error}"
    for result in _results(found):
        if address in result.gpus and result.not_tested in ASTRAY:
            return Verdict.UNKNOWN, Reason.NOT_OBSERVED, f"{UNTESTED} {result.test}: {result.why}"
    if any(entry.level.gpu == address for entry in state.levels):
        return Verdict.UNKNOWN, Reason.CONFIRMING, "one poll found something; others have to agree"
    return Verdict.HEALTHY, Reason.GPUS_HEALTHY, _well(reading)


def _well(reading: GpuReading) -> str:
    words = []
    if reading.temperature_c is not None:
        words.append(f"{reading.temperature_c} C")
    if reading.process_ids is not None:
        number = len(reading.process_ids)
        words.append(f"{number} process{'' if number == 1 else 'es'}" if number else "idle")
    if reading.mig_enabled:
        words.append("MIG")
    if reading.persistence_enabled is False:
        words.append("persistence off")
    return ", ".join(words)


def fault_rows(found: Found) -> tuple[FaultRow, ...]:
    """Every fault that is published, worst first."""
    by_id = {fault.id: fault for fault in found.judgement.state.faults}
    rows = []
    for fault in found.judgement.status.faults:
        kept = by_id.get(fault.id)
        reason = kept.root.reason if kept else Reason.NOT_OBSERVED
        waits = fault.state is FaultState.AWAITING_PROOF
        advice = advice_of(Reason.AWAITING_PROOF if waits else reason)
        if reason is Reason.DIAGNOSTICS_HUNG and fault.second_witness and not waits:
            advice = "Drain this machine and reboot it: another witness says that the driver is wedged."
        age_s = _age_s(kept, found) if kept else None
        rows.append(FaultRow(fault=fault, reason=reason, advice=advice, age_seconds=age_s))
    return tuple(rows)


def subsystem_row(entry: SubsystemVerdict) -> SubsystemRow:
    """One verdict of the judge."""
    return SubsystemRow(
        subsystem=entry.subsystem,
        condition=entry.subsystem.condition_type,
        verdict=entry.verdict,
        reason=entry.reason,
        message=entry.message,
        counts=entry.reason not in NOT_COUNTED,
    )


def source_row(report: SourceReport) -> SourceRow:
    """One source."""
    return SourceRow(
        name=report.name,
        seen=report.seen,
        message=report.message,
        duration_seconds=round(report.duration_s, 3),
    )


def test_rows(found: Found) -> tuple[TestRow, ...]:
    """Every result of active tests."""
    return tuple(
        TestRow(
            test=result.test,
            gpus=result.gpus,
            outcome=result.outcome,
            not_tested=result.not_tested or "",
            failure=result.failure or "",
            why=result.why,
            engine=result.engine,
            checksum=result.checksum,
            bytes_per_second=result.bytes_per_s,
            duration_seconds=round(result.duration_s, 3),
        )
        for result in _results(found)
    )


def slow_rows(found: Found) -> tuple[SlowRow, ...]:
    """Copies below their peers."""
    return tuple(
        SlowRow(test=warning.test, gpus=warning.gpus, text=warning.text)
        for warning in warnings(_results(found))
    )


def _results(found: Found) -> tuple[ActiveResult, ...]:
    survey = found.judgement.state.surveys.get(ActiveSurvey.source)
    return survey.results if isinstance(survey, ActiveSurvey) else ()


def _without_name(summary: str, address: str) -> str:
    """The row names the GPU already."""
    for start in (f"GPU {address} ", f"GPU {address}: "):
        if summary.startswith(start):
            return summary[len(start) :]
    return summary


def _reading(found: Found, address: str) -> GpuReading | None:
    gpus = found.gpu.gpus if found.gpu else ()
    return next((gpu for gpu in gpus if gpu.pci_address == address), None)


def _age_s(fault: OpenFault, found: Found) -> float | None:
    """Approximate: the kernel log's clock is not quite the one that is read here, and stops in suspend."""
    if fault.first_us is None or fault.boot_id != found.facts.boot_id:
        return None
    age_s = found.at_s - fault.first_us / 1_000_000
    return age_s if age_s >= 0 else None


def advice_of(reason: str) -> str:
    """What to do about a reason, for the owner of one machine."""
    own = _ADVICE.get(Reason(reason))
    return own or REASON_TEXTS[Reason(reason)].advice
