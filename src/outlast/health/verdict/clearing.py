"""Faults end by proof, never by silence: the right thing seen twice, after the last evidence.

A reboot alone proves nothing, and a relief that the driver reports before a reset is false.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from math import inf
from typing import Final

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.finding import Proof
from outlast.health.verdict.levels import expected, vouches
from outlast.health.verdict.state import FaultCode, JudgeState, Moment, OpenFault, Unexplained
from outlast.model.health import Subsystem
from outlast.model.observation import GpuReading, GpuSurvey, PciDevice

CLEAN_POLLS: Final = 2
CLEAN_SPAN_S: Final = 60.0


class Ending(StrEnum):
    """How a fault ended."""

    CLEARED = "cleared"
    HARDWARE_LEFT = "hardware left"


class Ended(msgspec.Struct, frozen=True):
    """A fault that is over."""

    fault: OpenFault
    ending: Ending


def after_poll(
    state: JudgeState, source: str, catalogue: Catalogue, now: Moment
) -> tuple[JudgeState, tuple[Ended, ...]]:
    """Count one poll of a source towards the proofs of its faults; those proven are over."""
    if not state.faults and not state.unexplained:
        return state, ()
    faults, ended = [], []
    for fault in state.faults:
        if fault.root.polled_by != source:
            faults.append(fault)
            continue
        if _left(state, fault, catalogue):
            ended.append(Ended(fault, Ending.HARDWARE_LEFT))
            continue
        polled = _polled(fault, _holds(state, fault, catalogue, now), now)
        if _proven(polled, now):
            ended.append(Ended(polled, Ending.CLEARED))
        else:
            faults.append(polled)
    unexplained = state.unexplained
    if source == GpuSurvey.source:
        unexplained = tuple(e for e in (_explained(state, e, catalogue, now) for e in unexplained) if e)
    return msgspec.structs.replace(state, faults=tuple(faults), unexplained=unexplained), tuple(ended)


def after_gap(state: JudgeState) -> JudgeState:
    """Records were lost: what they said is unknown, so every proof starts again."""
    return msgspec.structs.replace(
        state,
        gaps=state.gaps + 1,
        faults=tuple(msgspec.structs.replace(f, clean_since=None, clean_polls=0) for f in state.faults),
    )


def _polled(fault: OpenFault, clean: bool, now: Moment) -> OpenFault:
    if not clean:
        if fault.clean_since is None:
            return fault
        return msgspec.structs.replace(fault, clean_since=None, clean_polls=0)
    since = fault.clean_since if fault.clean_since is not None else now.monotonic
    return msgspec.structs.replace(fault, clean_since=since, clean_polls=fault.clean_polls + 1)


def _proven(fault: OpenFault, now: Moment) -> bool:
    if fault.clean_since is None:
        return False
    polls = max(code.clean_polls for code in fault.codes)
    span_s = max(code.clean_span_s for code in fault.codes)
    return fault.clean_polls >= polls and now.monotonic - fault.clean_since >= span_s


def _holds(state: JudgeState, fault: OpenFault, catalogue: Catalogue, now: Moment) -> bool:
    """Whether everything that has to be true for this fault to be over is true in this poll."""
    keys = {fault.key, fault.key.partition("/")[0]}
    if any(entry.level.key in keys for entry in state.levels):
        return False
    if any(not _looked_again(state, fault, code) for code in fault.codes):
        return False
    return all(_PROOFS[code.proof](state, fault, code, catalogue, now) for code in fault.codes)


def _looked_again(state: JudgeState, fault: OpenFault, code: FaultCode) -> bool:
    """A check that found the fault must have judged since: a source that is silent proves nothing."""
    return not code.check or state.judged.get(code.check, -inf) > fault.evidence_monotonic


def _left(state: JudgeState, fault: OpenFault, catalogue: Catalogue) -> bool:
    """The board is no longer in a machine whose every slot is read."""
    serial = fault.gpu.serial if fault.gpu else ""
    gpus = state.gpu.gpus if state.gpu and vouches(state.gpu) else ()
    if not serial or len(gpus) < expected(state, catalogue).gpus or any(not gpu.serial for gpu in gpus):
        return False
    return all(gpu.serial != serial for gpu in gpus)


def _explained(
    state: JudgeState, entry: Unexplained, catalogue: Catalogue, now: Moment
) -> Unexplained | None:
    """None once its GPU checked clean often enough."""
    if not _gpus_good(state, entry.gpu, catalogue) or any(e.level.key == entry.gpu for e in state.levels):
        return msgspec.structs.replace(entry, clean_since=None, clean_polls=0)
    since = entry.clean_since if entry.clean_since is not None else now.monotonic
    if entry.clean_polls + 1 >= CLEAN_POLLS and now.monotonic - since >= CLEAN_SPAN_S:
        return None
    return msgspec.structs.replace(entry, clean_since=since, clean_polls=entry.clean_polls + 1)


# --- what each proof asks for; all are about this poll


def _level_good(
    state: JudgeState, fault: OpenFault, code: FaultCode, catalogue: Catalogue, now: Moment
) -> bool:
    return code.subsystem is not Subsystem.MONITOR or vouches(state.gpu)


def _readable(
    state: JudgeState, fault: OpenFault, code: FaultCode, catalogue: Catalogue, now: Moment
) -> bool:
    return _gpus_good(state, _address(fault), catalogue)


def _new_boot_and_present(
    state: JudgeState, fault: OpenFault, code: FaultCode, catalogue: Catalogue, now: Moment
) -> bool:
    return _new_boot(state, fault) and _gpus_good(state, _address(fault), catalogue)


def _recovery_none(
    state: JudgeState, fault: OpenFault, code: FaultCode, catalogue: Catalogue, now: Moment
) -> bool:
    if not _gpus_good(state, _address(fault), catalogue):
        return False
    repaired = _new_boot(state, fault) or (fault.action_seen and _action_known(state, fault))
    return repaired or (_action_known(state, fault) and _expired(fault, code, now))


def _memory_clean(
    state: JudgeState, fault: OpenFault, code: FaultCode, catalogue: Catalogue, now: Moment
) -> bool:
    if not _gpus_good(state, _address(fault), catalogue):
        return False
    gpu = _reading(state, _address(fault))
    if gpu is not None and (gpu.remap_pending or gpu.remap_failed):
        return False
    counters = gpu is not None and gpu.remap_pending is not None and gpu.recovery_action is not None
    return _new_boot(state, fault) or (counters and (code.expiry_s == 0 or _expired(fault, code, now)))


def _never(state: JudgeState, fault: OpenFault, code: FaultCode, catalogue: Catalogue, now: Moment) -> bool:
    return False


def _expiry(state: JudgeState, fault: OpenFault, code: FaultCode, catalogue: Catalogue, now: Moment) -> bool:
    return _expired(fault, code, now)


_PROOFS: Final[dict[Proof, Callable[[JudgeState, OpenFault, FaultCode, Catalogue, Moment], bool]]] = {
    Proof.LEVEL_GOOD: _level_good,
    Proof.READABLE: _readable,
    Proof.NEW_BOOT_AND_PRESENT: _new_boot_and_present,
    Proof.RECOVERY_NONE: _recovery_none,
    Proof.MEMORY_CLEAN: _memory_clean,
    Proof.HARDWARE_LEFT: _never,
    Proof.JOB_END: _expiry,
    Proof.EXPIRY: _expiry,
}


def _new_boot(state: JudgeState, fault: OpenFault) -> bool:
    return bool(state.boot_id) and bool(fault.boot_id) and state.boot_id != fault.boot_id


def _expired(fault: OpenFault, code: FaultCode, now: Moment) -> bool:
    return code.expiry_s > 0 and now.monotonic - fault.evidence_monotonic >= code.expiry_s


def _address(fault: OpenFault) -> str:
    return fault.gpu.pci_address if fault.gpu else ""


def _action_known(state: JudgeState, fault: OpenFault) -> bool:
    """The driver can say what it wants, so that "none" means something."""
    addresses = [_address(fault)] if _address(fault) else [gpu.pci_address for gpu in _all(state)]
    readings = [_reading(state, address) for address in addresses]
    return bool(readings) and all(gpu is not None and gpu.recovery_action is not None for gpu in readings)


def _gpus_good(state: JudgeState, address: str, catalogue: Catalogue) -> bool:
    """This GPU, or without an address every expected one, is on the bus, answers and asks for nothing."""
    if not vouches(state.gpu) or state.pci is None or not state.pci.readable:
        return False
    if address:
        return _good(state, address)
    gpus = _all(state)
    return len(gpus) >= expected(state, catalogue).gpus and all(_good(state, g.pci_address) for g in gpus)


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


def _reading(state: JudgeState, address: str) -> GpuReading | None:
    return next((gpu for gpu in _all(state) if gpu.pci_address == address), None)


def _device(state: JudgeState, address: str) -> PciDevice | None:
    return next((gpu for gpu in state.pci.gpus if gpu.address == address), None) if state.pci else None
