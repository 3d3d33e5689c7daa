"""Do the links of InfiniBand and RoCE ports make errors? Growth within a window says it, never a total.

Errors that only a port's own cable or transceiver makes keep new work away. What congestion, the other end
or a program can make as well is said and no more.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from outlast.health.checks.declaration import KnownPort, LevelCheck, View
from outlast.health.checks.rdma_links import judged, level, name_of
from outlast.health.finding import Assessment, Level, Note
from outlast.health.reasons import Reason
from outlast.model.health import Subsystem
from outlast.model.observation import RdmaSurvey
from outlast.model.observation.rdma import CARRIER_CHANGES, LINK_DOWNED

NAME: Final = "rdma_errors"
POLLS: Final = 2
RANK: Final = 9
HOUR_S: Final = 3600.0
FLAPS: Final = 3
"""Times down within an hour: what operators of large fleets send a technician for."""


class ErrorRule(NamedTuple):
    """A counter, and how much growth in how long is too much."""

    counter: str
    window_s: float
    least: int


OWN: Final = (
    # 120 symbol errors an hour is the InfiniBand specification's own limit for a good link.
    ErrorRule("symbol_error", HOUR_S, 120),
    ErrorRule("link_error_recovery", HOUR_S, 10),
    ErrorRule("local_link_integrity_errors", HOUR_S, 2),
    ErrorRule("excessive_buffer_overrun_errors", HOUR_S, 2),
)
"""Made at this end of the cable."""
SHARED: Final = (
    ErrorRule("port_rcv_errors", 600.0, 6_000),
    ErrorRule("port_rcv_remote_physical_errors", 600.0, 6_000),
    ErrorRule("port_xmit_discards", 600.0, 60_000),
    ErrorRule("local_ack_timeout_err", 600.0, 600),
    ErrorRule("out_of_sequence", 600.0, 6_000),
    ErrorRule("packet_seq_err", 600.0, 6_000),
    ErrorRule("rnr_nak_retry_err", 600.0, 60),
    ErrorRule("roce_slow_restart", 600.0, 6_000),
)
"""Made anywhere on the path, by congestion, or by a program that is slow to receive."""


def run(view: View) -> Assessment | None:
    """A finding for each remembered port whose link flaps or errs."""
    survey = view.newest(RdmaSurvey)
    if survey is None or not survey.readable:
        return None
    known = {port.place: port for port in view.expected.known_ports}
    bad: list[Level] = []
    notes: list[Note] = []
    covers: set[str] = set()
    for device in survey.devices:
        for port in device.ports:
            place = device.port_key(port.number)
            expected = known.get(place)
            if expected is None or not device.answered:
                continue
            covers.add(expected.key)
            interfaces = [f"{device.key}/{interface.name}" for interface in device.interfaces]
            flaps = _flaps(view, place, interfaces if len(device.ports) == 1 else [])
            if flaps >= FLAPS:
                bad.append(_flapping(expected))
            elif flaps:
                notes.append(_note(expected, "its link went down within the last hour"))
            own = [rule.counter for rule in OWN if _grows(view, place, rule)]
            if own:
                bad.append(_errors(expected, own))
            shared = [rule.counter for rule in SHARED if _grows(view, place, rule)]
            if shared:
                notes.append(
                    _note(expected, f"{', '.join(shared)} grow; made here, on the way or at the other end")
                )
    return Assessment(check=NAME, bad=tuple(bad), notes=tuple(notes), covers=judged(covers, known))


CHECK: Final = LevelCheck(NAME, "errors of InfiniBand and RoCE links", frozenset({RdmaSurvey}), run)


def _flaps(view: View, place: str, interfaces: list[str]) -> int:
    """Times that the link went down within an hour; a carrier that goes and comes back changes twice."""
    downs = view.grown(place, LINK_DOWNED, HOUR_S) or 0
    changes = max((view.grown(place, CARRIER_CHANGES, HOUR_S) or 0 for place in interfaces), default=0)
    return max(downs, (changes + 1) // 2)


def _grows(view: View, place: str, rule: ErrorRule) -> bool:
    return (view.grown(place, rule.counter, rule.window_s) or 0) >= rule.least


def _note(port: KnownPort, text: str) -> Note:
    return Note(subsystem=Subsystem.RDMA, text=f"{name_of(port)}: {text}")


def _flapping(port: KnownPort) -> Level:
    text = f"the link of {name_of(port)} went down {FLAPS} times or more within an hour"
    return level("rdma/link-flapping", Reason.LINK_FLAPPING, port, text, rank=RANK, polls=POLLS)


def _errors(port: KnownPort, counters: list[str]) -> Level:
    text = f"{name_of(port)} counts too many {', '.join(counters)}"
    return level("rdma/link-errors", Reason.RDMA_LINK_ERRORS, port, text, rank=RANK, polls=POLLS)
