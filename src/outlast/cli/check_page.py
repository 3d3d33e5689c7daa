"""What `outlast check` says, as data: pure, from one look to rows, one headline and one thing to do.

The verdicts are the judge's. A GPU is only called healthy when NVML read it and nothing is open on it;
a person gets the worst thing first, a script gets an exit code.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from outlast.agent.look import Found, Seen, SourceReport
from outlast.cli import EXIT_FAULT, EXIT_OK, EXIT_UNKNOWN
from outlast.health.checks.gpu_presence import VM_DRIVER
from outlast.health.reasons import REASON_TEXTS, Reason
from outlast.health.verdict.report import NOT_COUNTED
from outlast.health.verdict.state import OpenFault
from outlast.model.health import Fault, FaultClass, FaultState, Gpu, SubsystemVerdict, Verdict
from outlast.model.observation import GpuReading

API_VERSION: Final = "outlast.dev/cli/v1"
KIND: Final = "Check"

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

_WEIGHT: Final = {Verdict.FAULTY: 0, Verdict.UNKNOWN: 1, Verdict.HEALTHY: 2}


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
    everything = _gpu_rows(found)
    gpus = tuple(_chosen(everything, wanted)) if wanted else everything
    status = found.judgement.status
    subsystems = tuple(_subsystem(entry) for entry in status.verdicts)
    addresses = {gpu.pci_address for gpu in gpus}
    faults = tuple(
        row
        for row in _fault_rows(found)
        if not wanted or row.fault.gpu is None or row.fault.gpu.pci_address in addresses
    )
    verdict = _verdict(gpus, subsystems, faults, only_some=bool(wanted))
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
        headline=_headline(verdict, gpus, subsystems, faults, found),
        advice=_advice(verdict, gpus, subsystems, faults),
        gpus=gpus,
        subsystems=subsystems,
        faults=faults,
        faults_dropped=status.faults_dropped,
        sources=tuple(_source(report) for report in found.sources),
        looked_at=tuple(looked_at) if nothing_here else (),
        driver_version=found.gpu.driver_version if found.gpu else "",
        instance_type=found.facts.instance_type,
        boot_id=found.facts.boot_id,
    )


# --- rows


def _gpu_rows(found: Found) -> tuple[GpuRow, ...]:
    drivers = {device.address: device.driver for device in found.pci.gpus} if found.pci else {}
    known = {gpu.identity.pci_address: gpu for gpu in found.judgement.status.gpus}
    addresses = sorted({*known, *drivers})
    rows = [_gpu_row(address, known.get(address), drivers.get(address, ""), found) for address in addresses]
    return tuple(sorted(rows, key=lambda row: (row.index is None, row.index or 0, row.pci_address)))


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
            return Verdict.FAULTY, fault.root.reason, _without_name(fault.root.summary, address)
    if mine:
        fault = min(mine, key=lambda fault: fault.root.rank)
        age = _age_s(fault, found)
        when = f"{_span(age)} ago" if age is not None else "before"
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
    if any(entry.level.gpu == address for entry in state.levels):
        return Verdict.UNKNOWN, Reason.CONFIRMING, "one poll found something; others have to agree"
    return Verdict.HEALTHY, Reason.GPUS_HEALTHY, _well(reading)


def _well(reading: GpuReading) -> str:
    words = []
    if reading.temperature_c is not None:
        words.append(f"{reading.temperature_c} C")
    if reading.process_ids is not None:
        words.append(f"{len(reading.process_ids)} processes" if reading.process_ids else "idle")
    if reading.mig_enabled:
        words.append("MIG")
    if reading.persistence_enabled is False:
        words.append("persistence off")
    return ", ".join(words)


def _fault_rows(found: Found) -> tuple[FaultRow, ...]:
    by_id = {fault.id: fault for fault in found.judgement.state.faults}
    rows = []
    for fault in found.judgement.status.faults:
        kept = by_id.get(fault.id)
        reason = kept.root.reason if kept else Reason.NOT_OBSERVED
        waits = fault.state is FaultState.AWAITING_PROOF
        advice = _advice_of(Reason.AWAITING_PROOF if waits else reason)
        if reason is Reason.DIAGNOSTICS_HUNG and fault.second_witness and not waits:
            advice = "Drain this machine and reboot it: another witness says that the driver is wedged."
        age_s = _age_s(kept, found) if kept else None
        rows.append(FaultRow(fault=fault, reason=reason, advice=advice, age_seconds=age_s))
    return tuple(rows)


def _subsystem(entry: SubsystemVerdict) -> SubsystemRow:
    return SubsystemRow(
        subsystem=entry.subsystem,
        condition=entry.subsystem.condition_type,
        verdict=entry.verdict,
        reason=entry.reason,
        message=entry.message,
        counts=entry.reason not in NOT_COUNTED,
    )


def _source(report: SourceReport) -> SourceRow:
    return SourceRow(
        name=report.name,
        seen=report.seen,
        message=report.message,
        duration_seconds=round(report.duration_s, 3),
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


def _exit_code(verdict: Verdict, *, fail_on_unknown: bool) -> int:
    if verdict is Verdict.FAULTY:
        return EXIT_FAULT
    return EXIT_UNKNOWN if verdict is Verdict.UNKNOWN and fail_on_unknown else EXIT_OK


def _headline(
    verdict: Verdict,
    gpus: Sequence[GpuRow],
    subsystems: Sequence[SubsystemRow],
    faults: Sequence[FaultRow],
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
        return f"No fault was found, but not all could be looked at. {row.subsystem}: {row.message}"
    healthy = sum(1 for row in gpus if row.verdict is Verdict.HEALTHY)
    return f"{healthy} of {len(gpus)} GPUs are healthy; no fault is open."


def _advice(
    verdict: Verdict, gpus: Sequence[GpuRow], subsystems: Sequence[SubsystemRow], faults: Sequence[FaultRow]
) -> str:
    if verdict is Verdict.HEALTHY:
        return "Nothing to do."
    if verdict is Verdict.FAULTY:
        opened = [row for row in faults if row.fault.state is FaultState.OPEN]
        if opened and opened[0].fault.fault_class is FaultClass.TRANSIENT:
            return f"Place no new work here and check again. {opened[0].advice}"
        return opened[0].advice if opened else _advice_of(_worst(subsystems, Verdict.FAULTY).reason)
    if not gpus:
        return _ADVICE[Reason.NO_GPU_FOUND]
    reasons = [row.reason for row in gpus if row.verdict is Verdict.UNKNOWN]
    unknown = [row.reason for row in subsystems if row.verdict is Verdict.UNKNOWN and row.counts]
    # A cause (the log, the library, the driver) says more than "not observed", which is its consequence.
    vague = (Reason.NOT_OBSERVED, Reason.NOT_YET_CHECKED)
    best = next((reason for reason in (*reasons, *unknown) if reason not in vague), None)
    return _advice_of(best or next(iter((*reasons, *unknown)), Reason.NOT_OBSERVED))


def _advice_of(reason: str) -> str:
    own = _ADVICE.get(Reason(reason))
    return own or REASON_TEXTS[Reason(reason)].advice


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


def _span(seconds: float) -> str:
    from outlast.web.wording import span

    return span(seconds)
