"""What has to be true in a poll for each kind of fault to be over.

A reboot alone proves nothing, relief that the driver reports before a reset is false, and a value that
nobody can read is no good value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.finding import Proof
from outlast.health.verdict.inventory import vouches, wanted_gpus
from outlast.health.verdict.state import FaultCode, JudgeState, Moment, OpenFault
from outlast.model.health import FaultClass, Subsystem
from outlast.model.observation import GpuReading, PciDevice

FABRIC_GOOD_STATES: Final = frozenset({None, 0, 3})
"""Not readable, not supported, completed."""
FABRIC_GOOD_SUMMARIES: Final = frozenset({None, 0, 1})
FABRIC_COMPLETED: Final = 3
UNTIL_JOB_LEFT: Final = frozenset({"xid/109"})
"""Their expiry counts for a program that is gone only."""


class Case(msgspec.Struct, frozen=True):
    """One poll, seen for one code of one fault."""

    state: JudgeState
    fault: OpenFault
    code: FaultCode
    catalogue: Catalogue
    now: Moment


def proves(case: Case) -> bool:
    """Whether this poll says that the code is over."""
    return _PROOFS[case.code.proof](case)


def gpus_good(state: JudgeState, address: str, catalogue: Catalogue) -> bool:
    """This GPU, or without an address every expected one, is on the bus, answers and asks for nothing."""
    if not vouches(state.gpu) or state.pci is None or not state.pci.readable:
        return False
    if address:
        return _good(state, address)
    gpus = _all(state)
    return len(gpus) >= wanted_gpus(state, catalogue) and all(_good(state, g.pci_address) for g in gpus)


def action_known(state: JudgeState, address: str) -> bool:
    """The driver can say what it wants, so that "none" means something."""
    readings = _readings(state, address)
    return bool(readings) and all(gpu.recovery_action is not None for gpu in readings)


def address_of(fault: OpenFault) -> str:
    """Where the fault's GPU is; empty when it is about no single GPU."""
    return fault.gpu.pci_address if fault.gpu else ""


def repaired(state: JudgeState, fault: OpenFault) -> bool:
    """Something happened that cures: a new boot, or a recovery the driver asked for and asks for no more."""
    return new_boot(state, fault) or (fault.action_seen and action_known(state, address_of(fault)))


def new_boot(state: JudgeState, fault: OpenFault) -> bool:
    """The machine has started again since the newest evidence."""
    return bool(state.boot_id) and bool(fault.boot_id) and state.boot_id != fault.boot_id


def _level_good(case: Case) -> bool:
    return case.code.subsystem is not Subsystem.MONITOR or vouches(case.state.gpu)


def _readable(case: Case) -> bool:
    return gpus_good(case.state, address_of(case.fault), case.catalogue)


def _new_boot_and_present(case: Case) -> bool:
    return new_boot(case.state, case.fault) and _readable(case)


def _recovery_none(case: Case) -> bool:
    return _readable(case) and (repaired(case.state, case.fault) or _watched(case))


def _memory_clean(case: Case) -> bool:
    if not _readable(case):
        return False
    gpus = _readings(case.state, address_of(case.fault))
    if any(gpu.remap_pending or gpu.remap_failed for gpu in gpus):
        return False
    if new_boot(case.state, case.fault):
        return True
    known = bool(gpus) and all(g.remap_pending is not None and g.recovery_action is not None for g in gpus)
    return known and (case.code.expiry_s == 0 or _expired(case) or _job_left(case))


def _sram_clean(case: Case) -> bool:
    if not _readable(case):
        return False
    flags = [gpu.sram_threshold_exceeded for gpu in _readings(case.state, address_of(case.fault))]
    if any(flags):
        return False
    return repaired(case.state, case.fault) or (bool(flags) and None not in flags and _watched(case))


def _repair_done(case: Case) -> bool:
    if not _readable(case):
        return False
    gpus = _readings(case.state, address_of(case.fault))
    waiting = [_repair_waits(gpu) for gpu in gpus]
    if any(waiting):
        return False
    return repaired(case.state, case.fault) or (bool(waiting) and None not in waiting)


def _repair_waits(gpu: GpuReading) -> bool | None:
    if gpu.detail is None:
        return None
    flags = (gpu.detail.channel_repair_pending, gpu.detail.tpc_repair_pending, gpu.detail.bank_remap_pending)
    known = [flag for flag in flags if flag is not None]
    return any(known) if known else None


def _fabric_good(case: Case) -> bool:
    gpus = _readings(case.state, address_of(case.fault))
    if not _readable(case) or not all(_fabric_is_good(case.state, gpu) for gpu in gpus):
        return False
    links_up = bool(gpus) and all(gpu.detail is not None and bool(gpu.detail.nvlinks) for gpu in gpus)
    if case.code.fault_class is FaultClass.TRANSIENT and links_up:
        return True
    return repaired(case.state, case.fault) or _watched(case)


def _fabric_is_good(state: JudgeState, gpu: GpuReading) -> bool:
    links = gpu.detail.nvlinks if gpu.detail is not None else None
    known = next((one for one in state.known_gpus if one.pci_address == gpu.pci_address), None)
    # Some boards leave links of the chip unused, and in MIG mode all are.
    wanted = known.nvlinks_up if known is not None and not gpu.mig_enabled else 0
    return (
        gpu.fabric_state in FABRIC_GOOD_STATES
        and gpu.fabric_summary in FABRIC_GOOD_SUMMARIES
        and (links is None or sum(links) >= wanted)
    )


def _fabric_recovered(case: Case) -> bool:
    gpus = _readings(case.state, address_of(case.fault))
    if not _readable(case) or not all(_fabric_is_good(case.state, gpu) for gpu in gpus):
        return False
    # Without persistence mode the driver forgets this wish when its last client leaves.
    kept = bool(gpus) and all(gpu.persistence_enabled for gpu in gpus)
    return new_boot(case.state, case.fault) or (kept and action_known(case.state, address_of(case.fault)))


def _never(case: Case) -> bool:
    return False


def _expiry(case: Case) -> bool:
    return _expired(case)


def _quiet(case: Case) -> bool:
    return _readable(case) and _expired(case)


_PROOFS: Final[dict[Proof, Callable[[Case], bool]]] = {
    Proof.LEVEL_GOOD: _level_good,
    Proof.READABLE: _readable,
    Proof.NEW_BOOT_AND_PRESENT: _new_boot_and_present,
    Proof.RECOVERY_NONE: _recovery_none,
    Proof.MEMORY_CLEAN: _memory_clean,
    Proof.SRAM_CLEAN: _sram_clean,
    Proof.REPAIR_DONE: _repair_done,
    Proof.FABRIC_GOOD: _fabric_good,
    Proof.FABRIC_RECOVERED: _fabric_recovered,
    Proof.HARDWARE_LEFT: _never,
    Proof.JOB_END: _expiry,
    Proof.EXPIRY: _expiry,
    Proof.QUIET: _quiet,
}


def _expired(case: Case) -> bool:
    """Nothing came for long enough, from a log that could have told."""
    since = max(case.fault.evidence_monotonic, case.fault.quiet_since)
    return (
        case.code.expiry_s > 0
        and not case.state.kernel_log_lost
        and case.now.monotonic - since >= case.code.expiry_s
    )


def _watched(case: Case) -> bool:
    """The same, and every poll meanwhile has read the GPU and that it asks for nothing."""
    since = case.fault.watched_since
    if since is None or not _expired(case) or case.now.monotonic - since < case.code.expiry_s:
        return False
    return case.code.code not in UNTIL_JOB_LEFT or not case.fault.pids or _job_left(case)


def _job_left(case: Case) -> bool:
    """The programs that its lines name no longer run on the GPU."""
    gpus = _readings(case.state, address_of(case.fault))
    if not case.fault.pids or not gpus or any(gpu.process_ids is None for gpu in gpus):
        return False
    running = {pid for gpu in gpus for pid in gpu.process_ids or ()}
    return running.isdisjoint(case.fault.pids)


def _good(state: JudgeState, address: str) -> bool:
    gpu, device = _reading(state, address), _device(state, address)
    return (
        gpu is not None
        and device is not None
        and device.responds
        and not gpu.error
        and gpu.recovery_action in (0, None)
    )


def _all(state: JudgeState) -> tuple[GpuReading, ...]:
    return state.gpu.gpus if state.gpu else ()


def _readings(state: JudgeState, address: str) -> tuple[GpuReading, ...]:
    gpus = _all(state)
    return tuple(gpu for gpu in gpus if gpu.pci_address == address) if address else gpus


def _reading(state: JudgeState, address: str) -> GpuReading | None:
    return next((gpu for gpu in _all(state) if gpu.pci_address == address), None)


def _device(state: JudgeState, address: str) -> PciDevice | None:
    return next((gpu for gpu in state.pci.gpus if gpu.address == address), None) if state.pci else None
