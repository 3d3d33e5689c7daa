"""Is every InfiniBand and RoCE port up that was up before, and as fast?

A port that was never active has no cable. One that an administrator switched off is said, not blamed. A
cable is cured by hands: a bad link keeps new work away and drains nobody, for what used it has failed.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from outlast.health.checks.declaration import KnownPort, LevelCheck, View
from outlast.health.finding import SLOW_SPACING_S, Assessment, Level, Note, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import LinkLayer, RdmaDevice, RdmaPort, RdmaSurvey
from outlast.model.observation.rdma import ACTIVE, DISABLED

NAME: Final = "rdma_links"
LINK_POLLS: Final = 4
"""At 30 s: two minutes, longer than a link takes to train or a switch to fail over."""
RANK: Final = 8
NOT_UP: Final = {
    "DOWN": "is down",
    "INIT": "is up but not configured, as without a subnet manager",
    "ARMED": "is up but not active",
}
PEERS_MIN: Final = 4
PEERS_SHARE: Final = 0.75
"""Of the ports of one kind, so many at one speed make it the usual one."""


def run(view: View) -> Assessment | None:
    """A finding for each remembered port that is down or slow."""
    survey = view.newest(RdmaSurvey)
    if survey is None or not survey.readable or view.initializing:
        return None
    bad: list[Level] = []
    notes: list[Note] = []
    covers: set[str] = set()
    known = {port.place: port for port in view.expected.known_ports}
    for device in survey.devices:
        for port in device.ports:
            expected = known.get(device.port_key(port.number))
            if expected is None or not device.answered:
                continue
            if port.state == ACTIVE:
                covers.add(expected.key)
                if port.rate_gbps and port.rate_gbps < expected.rate_gbps:
                    bad.append(_slow(expected, port.rate_gbps))
            elif port.state in NOT_UP:
                covers.add(expected.key)
                if _switched_off(device, port):
                    notes.append(_note(f"{name_of(expected)} is switched off"))
                else:
                    bad.append(_down(expected, port.state))
    notes += _slower_than_peers(survey, known)
    return Assessment(check=NAME, bad=tuple(bad), notes=tuple(notes), covers=judged(covers, known))


def judged(keys: set[str], known: dict[str, KnownPort]) -> frozenset[str] | None:
    """What a poll covers: everything, ports that are remembered no more too, once all known ones answered."""
    return None if keys == {port.key for port in known.values()} else frozenset(keys)


CHECK: Final = LevelCheck(NAME, "InfiniBand and RoCE links", frozenset({RdmaSurvey}), run)


def _switched_off(device: RdmaDevice, port: RdmaPort) -> bool:
    """By an administrator. An Ethernet port without carrier calls itself disabled too: ask its interface."""
    if port.link_layer is LinkLayer.ETHERNET:
        return bool(device.interfaces) and all(interface.up is False for interface in device.interfaces)
    return port.physical_state == DISABLED


def _slower_than_peers(survey: RdmaSurvey, known: dict[str, KnownPort]) -> list[Note]:
    """Slow since ever: by a bad cable, or meant for another network. Nobody can tell from here."""
    rates: dict[tuple[int, LinkLayer], Counter[float]] = {}
    for device in survey.devices:
        for port in device.ports:
            if port.state == ACTIVE and port.rate_gbps and not device.is_efa:
                rates.setdefault((device.device, port.link_layer), Counter())[port.rate_gbps] += 1
    notes = []
    for device in survey.devices:
        for port in device.ports:
            counts = rates.get((device.device, port.link_layer))
            if counts is None or port.state != ACTIVE or not port.rate_gbps or device.is_efa:
                continue
            usual, count = counts.most_common(1)[0]
            total = sum(counts.values())
            expected = known.get(device.port_key(port.number))
            slow = port.rate_gbps < usual and total >= PEERS_MIN and count >= PEERS_SHARE * total
            if slow and expected is not None and port.rate_gbps >= expected.rate_gbps:
                text = f"runs at {port.rate_gbps:g} Gb/s, most of its kind at {usual:g} Gb/s"
                notes.append(_note(f"{name_of(expected)} {text}"))
    return notes


def name_of(port: KnownPort) -> str:
    """What people call it."""
    return f"port {port.number} of {port.name}"


def _note(text: str) -> Note:
    return Note(subsystem=Subsystem.RDMA, text=text)


def _down(port: KnownPort, state: str) -> Level:
    text = f"{name_of(port)} {NOT_UP[state]}"
    return level("rdma/port-down", Reason.RDMA_LINK_DOWN, port, text, rank=RANK, polls=LINK_POLLS)


def _slow(port: KnownPort, rate_gbps: float) -> Level:
    text = f"{name_of(port)} runs at {rate_gbps:g} Gb/s and ran at {port.rate_gbps:g} Gb/s before"
    return level("rdma/port-slow", Reason.RDMA_LINK_SLOW, port, text, rank=RANK, polls=LINK_POLLS)


def level(code: str, reason: Reason, port: KnownPort, text: str, *, rank: int, polls: int) -> Level:
    """A finding about a port that keeps new work away; `text` is the sentence without its full stop."""
    return Level(
        code=code,
        reason=reason,
        fault_class=FaultClass.TRANSIENT,
        subsystem=Subsystem.RDMA,
        scope=Scope.NODE,
        rank=rank,
        proof=Proof.LEVEL_GOOD,
        polls=polls,
        spacing_s=SLOW_SPACING_S,
        device=port.key,
        source=RdmaSurvey.source,
        text=text,
        summary=f"{text[0].upper()}{text[1:]}.",
    )
