"""Holds the invariants of remediation against the world after every change that could break one.

It looks at the store and at what the machines really did, never at the controller.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.model.cluster import NODES
from outlast.model.incident import INCIDENTS
from outlast.model.policy import REMEDIATION_POLICIES, RemediationPolicy, RemediationPolicySpec
from outlast.sim.apiserver import Store
from outlast.sim.apiserver.storage import Change
from outlast.sim.checkers import ALWAYS, AT_THE_END, Scene, scene_of, violations
from outlast.sim.world.kubelet import Kubelets

VIOLATIONS_MAX: Final = 100
_decode_policy = msgspec.json.Decoder(RemediationPolicy).decode


class Referee:
    """Collects violations while the world runs."""

    def __init__(self, store: Store, kubelets: Kubelets) -> None:
        self._store = store
        self._kubelets = kubelets
        self._found: dict[str, None] = {}
        self.looks = 0
        """How often the invariants were held against the world."""
        self._incidents = store.resource(INCIDENTS).key
        self._nodes = store.resource(NODES).key
        store.storage.observe(self._on_change)

    @property
    def violations(self) -> tuple[str, ...]:
        """What was wrong at any time so far, each once; the first hundred."""
        return tuple(self._found)

    def at_the_end(self) -> tuple[str, ...]:
        """What is wrong with the present as an end."""
        return tuple(violations(self._scene(), AT_THE_END))

    def _on_change(self, kind: tuple[str, str], change: Change) -> None:
        if kind == self._incidents or (kind == self._nodes and _cordon_moved(change)):
            self.looks += 1
            for text in violations(self._scene(), ALWAYS):
                if len(self._found) < VIOLATIONS_MAX:
                    self._found[text] = None

    def _scene(self) -> Scene:
        scene = scene_of(self._store, self._policy())
        scene.reboots = dict(self._kubelets.reboots)
        scene.evicted = list(self._kubelets.ended)
        return scene

    def _policy(self) -> RemediationPolicySpec:
        entries = self._store.entries(REMEDIATION_POLICIES)
        return _decode_policy(entries[0].raw).spec if entries else RemediationPolicySpec()


def _cordon_moved(change: Change) -> bool:
    if change.type != "MODIFIED" or change.previous is None:
        return True
    old, new = change.previous.fields, change.entry.fields
    return old.get("spec.unschedulable") != new.get("spec.unschedulable")
