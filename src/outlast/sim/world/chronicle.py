"""What outlast did, one line a step: read from the changes of Incident objects, nothing else.

`steps` is pure: two states of an incident give the lines between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from outlast.model.incident import INCIDENTS, EndResult, Incident, Phase, Result
from outlast.model.policy import Rung
from outlast.sim.apiserver import Store
from outlast.sim.apiserver.storage import Change

LINES_MAX: Final = 500
_decode = msgspec.json.Decoder(Incident).decode


class Line(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One step."""

    at: datetime
    node: str
    text: str
    incident: str
    bad: bool = False


_DONE: Final = {
    Phase.WAITING: "left in service",
    Phase.BLOCKED: "blocked new work",
    Phase.CHECKPOINTING: "asked its jobs to checkpoint",
    Phase.DRAINING: "draining",
    Phase.VERIFYING: "back with a new boot; checking",
    Phase.WATCHED: "back in service, watched",
    Phase.ON_HOLD: "on hold, needs a human",
}
_ENDS: Final = {
    EndResult.RETURNED: "closed: healthy and back in service",
    EndResult.REPLACED: "closed: replaced by another machine",
    EndResult.CANCELLED_BY_HUMAN: "closed: cancelled by a human",
    EndResult.NOT_NEEDED: "closed: cleared by proof, nothing had to be done",
}


def steps(old: Incident | None, new: Incident) -> list[str]:
    """The steps between two states of an incident, in order."""
    before, after = (old.status if old is not None else None), new.status
    said: list[str] = []
    if old is None:
        faults = new.spec.faults
        said.append(f"seen: {_first_sentence(faults[0].summary)}" if faults else "seen")
    known = {a.id: a.outcome for a in before.attempts} if before is not None else {}
    for attempt in after.attempts:
        outcome = attempt.outcome
        if outcome is not None and known.get(attempt.id) is None and outcome.result is not Result.SUCCEEDED:
            said.append(f"{attempt.rung.value.lower()} did not help: {_first_sentence(outcome.message)}")
    phase = before.phase if before is not None else None
    step = before.step if before is not None else None
    if after.end is None and (
        after.phase is not phase or (after.phase is Phase.REPAIRING and after.step is not step)
    ):
        said.append(_phase(new))
    if after.phase is not Phase.VERIFYING:
        held = {_gist(text) for text in before.blocked_by} if before is not None else set()
        said += [f"waits: {text}" for text in after.blocked_by if _gist(text) not in held]
    if after.end is not None and (before is None or before.end is None):
        said.append(_ENDS[after.end.result])
    return [text for text in said if text]


def _phase(incident: Incident) -> str:
    status = incident.status
    if status.phase is Phase.REPAIRING:
        return "handed over for replacement" if status.step is Rung.REPLACE else "rebooting"
    if status.phase is Phase.DRAINING and status.pods_total:
        return f"draining {status.pods_total} pods" if status.pods_total > 1 else "draining 1 pod"
    return _DONE.get(status.phase, "")


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


def _gist(text: str) -> str:
    """A reason without its numbers, so that a count that moves is not news."""
    return "".join(c for c in text if not c.isdigit())


class Chronicle:
    """Follows the incidents of a store and keeps the newest lines."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._now = now
        self._last: dict[str, Incident] = {}
        self.lines: deque[Line] = deque(maxlen=LINES_MAX)
        self.told = 0
        """Lines ever written."""
        self.listeners: list[Callable[[Line], None]] = []
        self._group = INCIDENTS.api_version.partition("/")[0]
        store.storage.observe(self._on_change)

    def _on_change(self, kind: tuple[str, str], change: Change) -> None:
        if kind != (self._group, INCIDENTS.plural) or change.type == "DELETED":
            return
        new = _decode(change.entry.raw)
        name = new.metadata.name
        for text in steps(self._last.get(name), new):
            self.tell(new.spec.node_name, text, incident=name, bad=text.startswith(("seen", "waits")))
        self._last[name] = new

    def tell(self, node: str, text: str, *, incident: str = "", bad: bool = False) -> None:
        """Add a line."""
        line = Line(at=self._now(), node=node, text=text, incident=incident, bad=bad)
        self.lines.append(line)
        self.told += 1
        for listener in self.listeners:
            listener(line)
