"""What is remembered of InfiniBand and RoCE ports: those that were active, and how fast they were.

A port that was never up is a socket without a cable; one that was up is missed when it is not.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.health.checks.declaration import KnownPort
from outlast.health.verdict.state import JudgeState
from outlast.model.observation import RdmaSurvey
from outlast.model.observation.rdma import ACTIVE

PORTS_MAX: Final = 64
"""Ports that are remembered; a machine has 1 to 20."""

BOND: Final = "bond"
"""In the name of the one device that several functions of a slot became: mlx5_bond_0."""


def learn_ports(state: JudgeState, survey: RdmaSurvey) -> JudgeState:
    """Remember the ports that are active now; `ports_complete` once all remembered ones were seen so."""
    known = {port.place: port for port in _still_here(state.known_ports, survey)}
    active = set()
    for device in survey.devices:
        if device.is_efa or not device.pci_address:
            continue
        for port in device.ports:
            key = device.port_key(port.number)
            if port.state != ACTIVE or (key not in known and len(known) >= PORTS_MAX):
                continue
            active.add(key)
            known[key] = KnownPort(
                device=device.key,
                number=port.number,
                name=device.name,
                driver=device.driver,
                link_layer=port.link_layer,
                rate_gbps=max(port.rate_gbps or 0.0, known[key].rate_gbps if key in known else 0.0),
            )
    ports = tuple(known[key] for key in sorted(known))
    complete = state.ports_complete or (survey.readable and active == set(known))
    if ports == state.known_ports and complete == state.ports_complete:
        return state
    return msgspec.structs.replace(state, known_ports=ports, ports_complete=complete)


def _still_here(known: tuple[KnownPort, ...], survey: RdmaSurvey) -> tuple[KnownPort, ...]:
    """Without those that are the same device under another address: moved as a whole, or part of a bond.

    A virtual machine that starts on another host may find all its functions elsewhere on the bus. As long as
    one is where it was, those that are not are missing.
    """
    here = {device.pci_address: device for device in survey.devices if device.pci_address}
    bonded = {_slot(address) for address, device in here.items() if BOND in device.name}
    kept = tuple(port for port in known if port.device in here or _slot(port.device) not in bonded)
    wanted = {port.device for port in kept}
    others = sum(1 for device in here.values() if not device.is_efa)
    moved = bool(wanted) and wanted.isdisjoint(here) and others >= len(wanted)
    return () if moved else kept


def _slot(address: str) -> str:
    """A PCI address without its function: functions of one slot are one board."""
    return address.rpartition(".")[0]


def active_ports(state: JudgeState) -> int | None:
    """How many of the remembered ports are active; None before the first look."""
    survey = state.surveys.get(RdmaSurvey.source)
    if not isinstance(survey, RdmaSurvey) or not survey.readable:
        return None
    known = {port.place for port in state.known_ports}
    return sum(
        1
        for device in survey.devices
        for port in device.ports
        if port.state == ACTIVE and device.port_key(port.number) in known
    )


def devices(state: JudgeState) -> tuple[int, int]:
    """How many of the devices with remembered ports are there, and how many there should be."""
    survey = state.surveys.get(RdmaSurvey.source)
    known = {port.device for port in state.known_ports}
    here = {device.pci_address for device in survey.devices} if isinstance(survey, RdmaSurvey) else set()
    return len(known & here), len(known)
