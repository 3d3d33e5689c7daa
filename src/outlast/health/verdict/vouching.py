"""What is said of a subsystem when no fault stands: who vouches for it, and whether they looked lately.

A source that has fallen silent vouches for nothing, however good its last word was.
"""

from __future__ import annotations

from math import inf
from typing import Final

from outlast.health.catalogue import Catalogue
from outlast.health.checks.efa_presence import working
from outlast.health.checks.gpu_presence import counted
from outlast.health.checks.gpus import reconfiguring
from outlast.health.checks.nvlink import built_in
from outlast.health.reasons import Reason
from outlast.health.verdict.inventory import expected, initializing, wanted_gpus
from outlast.health.verdict.ports import active_ports
from outlast.health.verdict.state import (
    CADENCE_MIN_S,
    STALE_INTERVALS,
    STALE_S,
    JudgeState,
    Moment,
)
from outlast.model.health import GPUS_MAX, Gpu, GpuIdentity, Subsystem, Verdict
from outlast.model.observation import (
    GpuReading,
    PciSurvey,
    ProcessSurvey,
    RdmaSurvey,
    SurveyProblem,
)

Said = tuple[Verdict, Reason, str]

_PROBLEMS: Final = {
    SurveyProblem.LIBRARY_MISSING: Reason.LIBRARY_MISSING,
    SurveyProblem.DRIVER_NOT_LOADED: Reason.DRIVER_NOT_LOADED,
    SurveyProblem.DRIVER_MISMATCH: Reason.DRIVER_MISMATCH,
    SurveyProblem.NO_PERMISSION: Reason.NO_PERMISSION,
    SurveyProblem.CRASHED: Reason.DIAGNOSTICS_CRASHED,
    SurveyProblem.GARBAGE: Reason.DIAGNOSTICS_CRASHED,
    SurveyProblem.HUNG: Reason.DIAGNOSTICS_HUNG,
    SurveyProblem.TOO_MANY_LEAKED_WORKERS: Reason.DIAGNOSTICS_HUNG,
    SurveyProblem.RELEASED: Reason.MAINTENANCE,
}


UNREADABLE_SURVEYS: Final = 2
"""Surveys in a row without a full answer before nothing is known: one late answer is none to act on."""
MOVING_SHOWN_MAX: Final = 4
EXPECTED_UNKNOWN: Final = (
    "ExpectedUnknown: no table knows this machine type and --expected-gpus is not set, so a GPU "
    "that was never seen is not missed."
)
"""What is said where only experience tells how many GPUs there should be; it may have begun one short."""
FABRIC_COMPLETED: Final = 3

SOURCES: Final = {
    Subsystem.GPU: (PciSurvey.source,),
    Subsystem.FABRIC: (ProcessSurvey.source,),
    Subsystem.RDMA: (PciSurvey.source, RdmaSurvey.source),
    Subsystem.HOST: ("host",),
    Subsystem.MONITOR: (PciSurvey.source,),
}
"""Whose silence makes a subsystem unknown. NVML has a limit of its own: its survey must also be complete."""


def without_fault(state: JudgeState, subsystem: Subsystem, catalogue: Catalogue, now: Moment) -> Said:
    """The verdict on a subsystem in which no fault stands."""
    said = _WITHOUT_FAULT[subsystem](state, catalogue, now)
    if said[0] is not Verdict.HEALTHY:
        return said
    silent = [source for source in SOURCES[subsystem] if _silent(state, source, now)]
    if not silent:
        return said
    names = " and ".join(silent)
    return Verdict.UNKNOWN, Reason.NOT_OBSERVED, f"Nothing was heard of {names} for three of its intervals."


def next_change(state: JudgeState, now: Moment) -> float:
    """The next moment at which time alone changes what is said; infinity when it never does."""
    times = [
        limit + 0.001
        for source in state.cadence
        if (limit := _silent_from(state, source)) is not None and limit >= now.monotonic
    ]
    if state.surveyed is not None and now.monotonic - state.surveyed <= STALE_S:
        times.append(state.surveyed + STALE_S + 0.001)
    if now.monotonic < state.quiet_from:
        times.append(state.quiet_from)
    return min(times, default=inf)


def _silent(state: JudgeState, source: str, now: Moment) -> bool:
    limit = _silent_from(state, source)
    return limit is not None and now.monotonic > limit


def _silent_from(state: JudgeState, source: str) -> float | None:
    """When a source that has answered before counts as silent; None for one that never did."""
    last = state.surveyed_at.get(source)
    if last is None:
        return None
    return last + STALE_INTERVALS * state.cadence.get(source, CADENCE_MIN_S)


def inventory(state: JudgeState) -> tuple[Gpu, ...]:
    """Every GPU that is here or was; index and name come from NVML."""
    known_already = state.answer
    if known_already is not None:
        gpus_of, pci_of, survey_of = known_already.inventory_of
        if gpus_of is state.known_gpus and pci_of is state.pci and survey_of is state.gpu:
            return known_already.inventory
    known = {gpu.pci_address: gpu for gpu in state.known_gpus}
    listed = {gpu.address: gpu for gpu in state.pci.gpus} if state.pci else {}
    if state.pci is not None:
        ours = set(counted(state.pci))
        listed = {address: gpu for address, gpu in listed.items() if address in ours}
    errors = {gpu.pci_address for gpu in state.gpu.gpus if gpu.error} if state.gpu else set()
    gpus = []
    for address in sorted({*known, *listed})[:GPUS_MAX]:
        who = known.get(address)
        identity = (
            GpuIdentity(pci_address=address, uuid=who.uuid, serial=who.serial, index=who.index)
            if who
            else GpuIdentity(pci_address=address)
        )
        device = listed.get(address)
        present = device is not None and device.responds and address not in errors
        gpus.append(Gpu(identity=identity, model=who.name if who else "", present=present))
    return tuple(gpus)


def _not_observed(state: JudgeState, now: Moment) -> Said | None:
    if state.gpu is not None and state.gpu.problem is SurveyProblem.RELEASED:
        return Verdict.UNKNOWN, Reason.MAINTENANCE, f"{state.gpu.message}."
    if state.surveyed is None:
        message = "No check has completed in this boot."
        return Verdict.UNKNOWN, Reason.NOT_YET_CHECKED, message
    if now.monotonic - state.surveyed > STALE_S:
        return Verdict.UNKNOWN, Reason.NOT_OBSERVED, f"No check completed in the last {STALE_S:.0f} s."
    return None


def _gpu(state: JudgeState, catalogue: Catalogue, now: Moment) -> Said:
    wanted = wanted_gpus(state, catalogue)
    if state.pci is not None and state.pci.gpus and not counted(state.pci):
        message = f"All {len(state.pci.gpus)} GPUs are given to virtual machines."
        return Verdict.UNKNOWN, Reason.GPU_ASSIGNED_TO_VM, message
    if state.pci is not None and state.pci.readable and not counted(state.pci) and not wanted:
        return Verdict.UNKNOWN, Reason.NO_GPU_FOUND, "There is no NVIDIA GPU on the PCI bus."
    if missing := _not_observed(state, now):
        return missing
    if state.pci is not None and not state.pci.readable:
        return Verdict.UNKNOWN, Reason.NOT_OBSERVED, f"The PCI bus cannot be read: {state.pci.message}."
    if state.unexplained:
        codes = ", ".join(dict.fromkeys(entry.code for entry in state.unexplained))
        message = f"The driver printed {codes}, which no catalogue explains for this GPU."
        return Verdict.UNKNOWN, Reason.UNRECOGNISED_XID, message
    unreadable = [gpu for gpu in (state.gpu.gpus if state.gpu else ()) if gpu.error]
    if unreadable:
        if initializing(state, now) and not state.gpus_complete:
            return Verdict.UNKNOWN, Reason.INITIALIZING, f"{len(unreadable)} GPUs do not answer NVML yet."
        first = unreadable[0]
        message = f"{len(unreadable)} of {wanted} GPUs: NVML says {first.error} for {first.pci_address}."
        return Verdict.UNKNOWN, Reason.GPU_NOT_READABLE, message
    moving = [gpu.pci_address for gpu in (state.gpu.gpus if state.gpu else ()) if reconfiguring(gpu)]
    if moving:
        message = (
            f"The MIG layout of GPU {', '.join(moving[:MOVING_SHOWN_MAX])} changes, or waits for a reset."
        )
        return Verdict.UNKNOWN, Reason.RECONFIGURING, message
    answering = sum(1 for gpu in inventory(state) if gpu.present)
    message = f"{answering} of {wanted} GPUs answer, and no fault is open."
    if state.settings.expected_gpus is None and not _listed(state, catalogue):
        message = f"{message} {EXPECTED_UNKNOWN}"
    return Verdict.HEALTHY, Reason.GPUS_HEALTHY, message


def _listed(state: JudgeState, catalogue: Catalogue) -> bool:
    """Whether the table of machine types says how many GPUs there should be."""
    listed = catalogue.hardware.get(state.instance_type)
    return listed is not None and listed.gpus > 0


def _fabric(state: JudgeState, catalogue: Catalogue, now: Moment) -> Said:
    if state.pci is not None and state.pci.readable and not counted(state.pci):
        return Verdict.UNKNOWN, Reason.NOT_OBSERVED, "There is no GPU whose fabric could be checked."
    if missing := _not_observed(state, now):
        return missing
    gpus = state.gpu.gpus if state.gpu else ()
    if gpus and all(_unlinked(gpu) for gpu in gpus):
        return Verdict.HEALTHY, Reason.FABRIC_HEALTHY, "No GPU of this machine has NVLinks."
    if state.kernel_log_lost or all(gpu.recovery_action is None for gpu in gpus):
        message = "Nothing that tells of the fabric can be read: " + (
            state.kernel_log_lost or "the driver does not say what recovery it wants"
        )
        return Verdict.UNKNOWN, Reason.NOT_OBSERVED, f"{message}."
    linked = sum(1 for gpu in gpus if gpu.detail is not None and any(gpu.detail.nvlinks or ()))
    joined = sum(1 for gpu in gpus if gpu.fabric_state == FABRIC_COMPLETED)
    message = "No NVLink or NVSwitch error stands; " + (
        f"{linked} GPUs have NVLinks up, {joined} have joined a fabric."
        if linked or joined
        else "no GPU uses NVLink."
    )
    return Verdict.HEALTHY, Reason.FABRIC_HEALTHY, message


def _unlinked(gpu: GpuReading) -> bool:
    """It was asked, has no links and no fabric, and is no board that comes with them."""
    known = gpu.detail is not None and not gpu.detail.nvlinks and not gpu.fabric_state
    return known and not gpu.error and not built_in(gpu.name)


def _rdma(state: JudgeState, catalogue: Catalogue, now: Moment) -> Said:
    survey = state.surveys.get(RdmaSurvey.source)
    if isinstance(survey, RdmaSurvey) and survey.failures >= UNREADABLE_SURVEYS:
        message = f"The RDMA devices cannot be read: {survey.message}."
        return Verdict.UNKNOWN, Reason.RDMA_NOT_READABLE, message
    if state.pci is None:
        return Verdict.UNKNOWN, Reason.NOT_YET_CHECKED, "The PCI bus has not been read yet."
    if not state.pci.readable:
        return Verdict.UNKNOWN, Reason.NOT_OBSERVED, f"The PCI bus cannot be read: {state.pci.message}."
    wanted, found = expected(state, catalogue).efa, len(working(state.pci))
    ports = len(state.known_ports)
    if not wanted and not found and not ports:
        message = (
            "There is no EFA device and no InfiniBand or RoCE port was ever active, and none is expected."
        )
        return Verdict.UNKNOWN, Reason.NO_RDMA_FOUND, message
    if found < wanted:
        late = initializing(state, now) and not state.efa_complete
        reason = Reason.INITIALIZING if late else Reason.CONFIRMING
        return Verdict.UNKNOWN, reason, f"{found} of {wanted} EFA devices work so far."
    active = active_ports(state)
    if ports and active is None:
        message = "The InfiniBand and RoCE ports have not been read yet."
        return Verdict.UNKNOWN, Reason.NOT_YET_CHECKED, message
    if active is not None and active < ports and initializing(state, now) and not state.ports_complete:
        message = f"{active} of {ports} InfiniBand and RoCE ports are active so far."
        return Verdict.UNKNOWN, Reason.INITIALIZING, message
    parts = [f"{found} of {wanted} EFA devices work"] if wanted or found else []
    parts += [f"{active} of {ports} InfiniBand and RoCE ports are active"] if ports else []
    return Verdict.HEALTHY, Reason.RDMA_HEALTHY, f"{', '.join(parts)}."


def _monitor(state: JudgeState, catalogue: Catalogue, now: Moment) -> Said:
    note = f" {state.settings.note}" if state.settings.note else ""
    survey = state.gpu
    if state.pci is not None and state.pci.readable and not counted(state.pci):
        return Verdict.UNKNOWN, Reason.NO_GPU_FOUND, f"There is no GPU to watch.{note}"
    if survey is not None and survey.problem is not None:
        reason = _PROBLEMS.get(survey.problem, Reason.DIAGNOSTICS_FAILED)
        if reason is Reason.DRIVER_NOT_LOADED and state.pci is not None and state.pci.driver_loaded is False:
            reason = Reason.DRIVER_CHANGING
        return Verdict.UNKNOWN, reason, f"NVML: {survey.message or survey.problem}.{note}"
    if state.pci is not None and not state.pci.readable:
        return Verdict.UNKNOWN, Reason.NOT_OBSERVED, f"The PCI bus cannot be read: {state.pci.message}.{note}"
    if state.kernel_log_lost:
        return Verdict.UNKNOWN, Reason.KERNEL_LOG_BLIND, f"{state.kernel_log_lost}{note}"
    if missing := _not_observed(state, now):
        return missing
    if not state.kernel_log_read:
        message = f"NVML answers; the kernel log has not been read yet.{note}"
        return Verdict.UNKNOWN, Reason.NOT_YET_CHECKED, message
    way = f" ({state.kernel_log_source})" if state.kernel_log_source else ""
    return Verdict.HEALTHY, Reason.MONITOR_HEALTHY, f"NVML and the kernel log{way} answer.{note}"


def _host(state: JudgeState, catalogue: Catalogue, now: Moment) -> Said:
    if state.kernel_log_lost:
        return (
            Verdict.UNKNOWN,
            Reason.NOT_OBSERVED,
            f"The kernel log cannot be read: {state.kernel_log_lost}.",
        )
    if not state.kernel_log_read:
        return Verdict.UNKNOWN, Reason.NOT_YET_CHECKED, "The kernel log has not been read yet."
    return Verdict.HEALTHY, Reason.HOST_HEALTHY, "No fault of disks, memory or the kernel stands."


_WITHOUT_FAULT: Final = {
    Subsystem.GPU: _gpu,
    Subsystem.FABRIC: _fabric,
    Subsystem.RDMA: _rdma,
    Subsystem.MONITOR: _monitor,
    Subsystem.HOST: _host,
}
