"""The part of the judge's memory that outlives the process, and what a new boot makes of it.

Half-done proofs are not kept: after a restart a proof starts again, which costs a minute and can never
clear a fault too early. What an older version wrote is read; of a damaged file every readable fault is kept.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.health.counters import rebaselined
from outlast.health.sources.kernel_text import LineMemory
from outlast.health.verdict.codes import most_telling
from outlast.health.verdict.hearing import HEARD_MAX, possible
from outlast.health.verdict.inventory import resized
from outlast.health.verdict.state import (
    FAULTS_KEPT_MAX,
    HELD_MAX,
    HOLD_BACK_S,
    INITIALIZING_S,
    PAST_MAX,
    RECENT_MAX,
    REPEATS_MAX,
    STATE_VERSION,
    STATE_VERSIONS_READ,
    SUSPICIONS_MAX,
    TALLIES_MAX,
    UNEXPLAINED_MAX,
    Held,
    JudgeState,
    Moment,
    OpenFault,
    Settings,
)
from outlast.model.health import FaultState

STATE_BYTES_MAX: Final = 60 * 1024
"""Above this, evidence is thinned out before saving; the file's own limit is 64 KiB."""
SALVAGE_MAX: Final = 1024
"""Entries of a damaged file that are looked at."""
HOUR_S: Final = 3600.0
SUSPEND_MIN_S: Final = 2.0
"""A machine that stood still for less has missed nothing."""


def start(boot_id: str, instance_type: str, settings: Settings, now: Moment) -> JudgeState:
    """State of an agent that remembers nothing."""
    return JudgeState(
        version=STATE_VERSION,
        boot_id=boot_id,
        instance_type=instance_type,
        settings=settings,
        quiet_from=now.monotonic + INITIALIZING_S,
    )


def restore(
    content: bytes | None, boot_id: str, instance_type: str, settings: Settings, now: Moment
) -> tuple[JudgeState, str]:
    """State from a saved content, and why it could not be used (empty when it was, or there was none).

    In a new boot, faults wait for proof, levels are probed anew, and Healthy needs a new check.
    """
    fresh = start(boot_id, instance_type, settings, now)
    if content is None:
        return fresh, ""
    saved, problem = _decoded(content)
    if saved is None:
        return fresh, problem
    kept = msgspec.structs.replace(
        resized(saved, instance_type or saved.instance_type),
        settings=settings,
        quiet_from=now.monotonic + INITIALIZING_S,
        first_start=False,
        version=STATE_VERSION,
        answer=None,
        faults=tuple(
            _proof_anew(fault, now.monotonic) for fault in saved.faults[:FAULTS_KEPT_MAX] if fault.codes
        ),
        recent=saved.recent[:RECENT_MAX],
        repeats=saved.repeats[:REPEATS_MAX],
        suspicions=saved.suspicions[:SUSPICIONS_MAX],
        past=saved.past[:PAST_MAX],
        tallies=saved.tallies[:TALLIES_MAX],
        unexplained=saved.unexplained[:UNEXPLAINED_MAX],
        heard_us=saved.heard_us if possible(saved.heard_us, now) else 0,
        heard=saved.heard[-HEARD_MAX:],
        held=tuple(Held(held.event, now.monotonic + HOLD_BACK_S) for held in saved.held[:HELD_MAX]),
        surveyed=now.monotonic if saved.checked_at is not None else None,
        witness=None,
    )
    return rebooted(kept, boot_id, now), problem


def _decoded(content: bytes) -> tuple[JudgeState | None, str]:
    """The saved state, or what can be saved of it, and what is wrong with it."""
    try:
        saved = msgspec.json.decode(content, type=JudgeState)
    except (msgspec.DecodeError, RecursionError) as error:
        problem = f"the saved state is unreadable: {str(error)[:200]}"
    else:
        if saved.version in STATE_VERSIONS_READ:
            return saved, ""
        problem = _of_version(saved.version)
    parts = _parts(content)
    if parts is not None and parts.version > STATE_VERSION:
        problem = _of_version(parts.version)
    return _salvaged(parts), problem


def _of_version(version: int) -> str:
    return f"the saved state has version {version}, this is {STATE_VERSION}"


class _Parts(msgspec.Struct):
    version: int = 0
    boot_id: str = ""
    faults: list[msgspec.Raw] = []


def _parts(content: bytes) -> _Parts | None:
    try:
        return msgspec.json.decode(content, type=_Parts)
    except (msgspec.DecodeError, RecursionError):
        return None


def _salvaged(parts: _Parts | None) -> JudgeState | None:
    """The faults of a state that cannot be read as a whole."""
    if parts is None:
        return None
    faults = []
    for raw in parts.faults[:SALVAGE_MAX]:
        try:
            fault = msgspec.json.decode(raw, type=OpenFault)
        except (msgspec.DecodeError, RecursionError):
            continue
        if fault.codes:
            faults.append(fault)
    if not faults:
        return None
    return JudgeState(version=STATE_VERSION, boot_id=parts.boot_id, faults=tuple(faults))


def _proof_anew(fault: OpenFault, monotonic: float) -> OpenFault:
    return msgspec.structs.replace(
        fault,
        codes=most_telling(fault.codes),
        evidence_monotonic=monotonic,
        seen_monotonic=monotonic,
        quiet_since=monotonic,
        watched_since=None,
        watched_at=0.0,
        clean_since=None,
        clean_polls=0,
    )


def resumed(state: JudgeState, suspended_s: float, now: Moment) -> JudgeState:
    """The state after a look at how long the machine stood still (suspend, live migration) in this boot.

    What counters did meanwhile is no growth, proofs start again, and devices may come back late.
    """
    before = state.suspended_s
    if before is not None and abs(suspended_s - before) < SUSPEND_MIN_S:
        return state
    state = msgspec.structs.replace(state, suspended_s=suspended_s)
    if before is None:
        return state
    return msgspec.structs.replace(
        state,
        counters=rebaselined(),
        levels=tuple(entry for entry in state.levels if entry.stands),
        faults=tuple(
            msgspec.structs.replace(
                f, quiet_since=now.monotonic, watched_since=None, clean_since=None, clean_polls=0
            )
            for f in state.faults
        ),
        quiet_from=now.monotonic + INITIALIZING_S,
        gpus_complete=False,
        efa_complete=False,
        ports_complete=False,
        probes=state.probes + 1,
    )


def rebooted(state: JudgeState, boot_id: str, now: Moment) -> JudgeState:
    """The state in the boot `boot_id`; unchanged when it is still the same boot."""
    if boot_id == state.boot_id or not boot_id:
        return state
    waiting = tuple(
        msgspec.structs.replace(_proof_anew(fault, now.monotonic), state=FaultState.AWAITING_PROOF)
        for fault in state.faults
    )
    return msgspec.structs.replace(
        state,
        boot_id=boot_id,
        running_base_s=_base_s(state, now),
        uptime_s=now.monotonic,
        faults=waiting,
        held=(),
        levels=(),
        unexplained=(),
        checked_at=None,
        first_start=True,
        heard_us=0,
        heard=(),
        off_bus=LineMemory(),
        pci=None,
        gpu=None,
        surveys={},
        surveyed_at={},
        cadence={},
        judged={},
        notes={},
        tallies=(),
        owners={},
        removals=(),
        stuck=(),
        suspended_s=None,
        answer=None,
        counters=rebaselined(),
        surveyed=None,
        asked=False,
        quiet_from=now.monotonic + INITIALIZING_S,
        gpus_complete=False,
        efa_complete=False,
        ports_complete=False,
        kernel_log_read=False,
        kernel_log_source="",
        witness=None,
    )


def _base_s(state: JudgeState, now: Moment) -> float:
    """Seconds the machine ran in all boots before this one, at least up to the newest thing remembered."""
    if now.monotonic >= state.uptime_s:
        earlier_s = state.running_base_s  # this clock does not begin anew with each boot
    else:
        earlier_s = state.running_base_s + state.uptime_s
    remembered = [entry.at_s for entry in state.repeats]
    remembered += [entry.at_s for entry in state.suspicions]
    remembered += [entry.at_s for entry in state.past]
    newest_s = max(remembered, default=0.0)
    return max(earlier_s, newest_s - now.monotonic)


def to_bytes(state: JudgeState) -> bytes:
    """The part that outlives the process, at most `STATE_BYTES_MAX` long."""
    durable = msgspec.structs.replace(
        state,
        settings=Settings(),
        levels=(),
        off_bus=LineMemory(),
        pci=None,
        gpu=None,
        surveys={},
        surveyed_at={},
        cadence={},
        judged={},
        notes={},
        owners={},
        removals=(),
        stuck=(),
        suspended_s=None,
        probes=0,
        answer=None,
        counters=rebaselined(),
        surveyed=None,
        asked=False,
        first_start=True,
        quiet_from=0.0,
        gpus_complete=False,
        efa_complete=False,
        ports_complete=False,
        kernel_log_lost="",
        kernel_log_read=False,
        kernel_log_source="",
        witness=None,
        gaps=0,
        untrusted=0,
        # The hour is enough: the time itself would make every poll a write to the disk.
        checked_at=state.checked_at and state.checked_at.replace(minute=0, second=0, microsecond=0),
        uptime_s=state.uptime_s // HOUR_S * HOUR_S,
        faults=tuple(_proof_anew(fault, 0.0) for fault in state.faults),
        unexplained=tuple(
            msgspec.structs.replace(entry, clean_since=None, clean_polls=0) for entry in state.unexplained
        ),
        held=tuple(Held(held.event, 0.0) for held in state.held),
    )
    content = msgspec.json.encode(durable)
    for thinning in _THINNINGS:
        if len(content) <= STATE_BYTES_MAX:
            break
        durable = msgspec.structs.replace(
            durable,
            recent=(),
            repeats=durable.repeats[-REPEATS_MAX // 2 :],
            tallies=(),
            held=durable.held[-16:],
            faults=tuple(_thin(fault, thinning) for fault in durable.faults),
        )
        content = msgspec.json.encode(durable)
    return content


class _Thinning(msgspec.Struct, frozen=True):
    """What is left of each fault when not everything fits."""

    evidence: int
    codes: int
    text: int


_THINNINGS: Final = (_Thinning(2, 8, 1024), _Thinning(1, 4, 256), _Thinning(1, 2, 96))


def _thin(fault: OpenFault, to: _Thinning) -> OpenFault:
    codes = tuple(
        msgspec.structs.replace(code, summary=code.summary[: to.text])
        for code in most_telling(fault.codes, to.codes)
    )
    evidence = tuple(
        msgspec.structs.replace(entry, text=entry.text[: to.text]) for entry in fault.evidence[: to.evidence]
    )
    return msgspec.structs.replace(
        fault, codes=codes, evidence=evidence, evidence_codes=fault.evidence_codes[: to.evidence]
    )
