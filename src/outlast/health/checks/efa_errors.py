"""What EFA counts: drops, failed transfers, retransmissions, and commands that got no answer.

Only a device that answers none of its driver's commands is at fault. Events that blame the remote end are
counted on every node that talks to it, so one dead peer makes 31 others complain: said, never acted on.
A counter that a device lacks is an older device.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.wording import some
from outlast.health.finding import SLOW_SPACING_S, Assessment, Level, Note, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import RdmaDevice, RdmaSurvey
from outlast.model.observation.rdma import EFA_LOCAL_COUNTERS, EFA_REMOTE_COUNTERS

NAME: Final = "efa_errors"
WINDOW_S: Final = 600.0
EVENTS_PER_S: Final = 1.0
"""Sustained over the window; shorter bursts are everyday traffic. Amazon's node agent has the same rate."""
PACKETS_PER_S: Final = 1_000.0
BYTES_PER_S: Final = 1_000_000.0
LEAST_PER_S: Final = {"retrans_pkts": PACKETS_PER_S, "retrans_bytes": BYTES_PER_S}

UNANSWERED_MIN: Final = 3
SILENT_POLLS: Final = 4
RANK: Final = 5


def run(view: View) -> Assessment | None:
    """A finding for each device that answers no command; notes for the rest."""
    survey = view.newest(RdmaSurvey)
    if survey is None or not survey.readable:
        return None
    devices = [device for device in survey.devices if device.is_efa]
    local, remote = _growing(view, devices, EFA_LOCAL_COUNTERS), _growing(view, devices, EFA_REMOTE_COUNTERS)
    notes = []
    if local:
        notes.append(_note(f"{_named(local)} grow on {some(_devices(local))}"))
    if remote:
        notes.append(_note(f"{_named(remote)} grow on {some(_devices(remote))}: they accuse the other end"))
    answered = [device for device in devices if device.answered]
    silent = [device for device in answered if _answers_nothing(view, device)]
    return Assessment(
        check=NAME,
        bad=tuple(_silent(device, weak=len(silent) == len(devices) > 1) for device in silent),
        notes=tuple(notes),
        covers=frozenset(_key(device) for device in answered),
    )


CHECK: Final = LevelCheck(NAME, "counters of EFA devices", frozenset({RdmaSurvey}), run)


def _growing(view: View, devices: list[RdmaDevice], names: tuple[str, ...]) -> list[tuple[str, str]]:
    """(device, counter) of those that grew too much within the window."""
    return [
        (device.name, name)
        for device in devices
        for port in device.ports
        for name in names
        if (view.grown(device.port_key(port.number), name, WINDOW_S) or 0)
        >= LEAST_PER_S.get(name, EVENTS_PER_S) * WINDOW_S
    ]


def _devices(growing: list[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(device for device, _ in growing))


def _named(growing: list[tuple[str, str]]) -> str:
    return ", ".join(sorted({name for _, name in growing}))


def _answers_nothing(view: View, device: RdmaDevice) -> bool:
    """Commands go out (our own reading makes some), time out, and not one is answered."""
    lost = view.grown(device.key, "no_completion_cmds", WINDOW_S) or 0
    return lost >= UNANSWERED_MIN and view.grown(device.key, "completed_cmds", WINDOW_S) == 0


def _key(device: RdmaDevice) -> str:
    return f"{device.driver} {device.key}"


def _note(text: str) -> Note:
    return Note(subsystem=Subsystem.RDMA, text=text)


def _silent(device: RdmaDevice, *, weak: bool) -> Level:
    text = f"EFA device {device.name} ({device.key}) answers no command of its driver"
    return Level(
        code="efa/not-responding",
        reason=Reason.EFA_NOT_RESPONDING,
        # All at once is what they share: the host below, or the driver.
        fault_class=FaultClass.TRANSIENT if weak else FaultClass.REBOOT_CURES,
        subsystem=Subsystem.RDMA,
        scope=Scope.NODE,
        rank=RANK,
        proof=Proof.LEVEL_GOOD,
        polls=SILENT_POLLS,
        spacing_s=SLOW_SPACING_S,
        device=_key(device),
        source=RdmaSurvey.source,
        text=text,
        summary=f"{text}.",
    )
