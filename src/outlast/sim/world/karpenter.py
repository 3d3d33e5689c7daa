"""Plays Karpenter's node auto repair: a machine that is handed over is replaced by a new one.

As tried on the real one: it acts after the toleration, counted from the condition's lastTransitionTime,
asks no budget, and stops when more than a fifth of the pool is unhealthy.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from outlast.model.names import ACCELERATED_HARDWARE_READY
from outlast.ports.clock import Clock
from outlast.sim.apiserver import Store, Writer
from outlast.sim.apiserver.resources import NODES
from outlast.sim.world.agenda import Agenda
from outlast.sim.world.objects import Place

TOLERATION_S: Final = 600.0
LOOK_S: Final = 10.0
LAUNCH_S: Final = 180.0
"""From the request for a machine to its kubelet being Ready."""
UNHEALTHY_SHARE_MAX: Final = 0.2
_WRITER: Final = Writer(manager="karpenter")


class Karpenter:
    """Replaces machines whose accelerated hardware is not ready."""

    def __init__(
        self,
        store: Store,
        agenda: Agenda,
        clock: Clock,
        *,
        terminate: Callable[[str], Place],
        launch: Callable[[Place], None],
    ) -> None:
        """`terminate` switches a machine off by node name and returns its place; `launch` fills one."""
        self._store = store
        self._agenda = agenda
        self._clock = clock
        self._terminate = terminate
        self._launch = launch
        self.replaced: list[str] = []
        """Names of the nodes it deleted, in order."""
        agenda.every(LOOK_S, self._look)

    def _look(self) -> None:
        nodes = self._store.list(NODES)
        unhealthy = [n for n in nodes if _is_unhealthy(n)]
        if len(unhealthy) > UNHEALTHY_SHARE_MAX * len(nodes):
            return
        now = self._clock.now()
        for node in unhealthy:
            since = _handed_over_at(node)
            if since is not None and (now - since).total_seconds() >= TOLERATION_S:
                self._replace(node["metadata"]["name"])

    def _replace(self, name: str) -> None:
        self.replaced.append(name)
        place = self._terminate(name)
        self._store.delete(NODES, name, writer=_WRITER)
        self._agenda.after(LAUNCH_S, lambda: self._launch(place))


def _condition(node: dict[str, Any], type_: str) -> dict[str, Any] | None:
    conditions = node["status"].get("conditions") or ()
    return next((c for c in conditions if c["type"] == type_), None)


def _is_unhealthy(node: dict[str, Any]) -> bool:
    ready = _condition(node, "Ready")
    return _handed_over_at(node) is not None or ready is None or ready["status"] != "True"


def _handed_over_at(node: dict[str, Any]) -> datetime | None:
    found = _condition(node, ACCELERATED_HARDWARE_READY)
    if found is None or found["status"] != "False":
        return None
    return datetime.fromisoformat(found["lastTransitionTime"].replace("Z", "+00:00"))
