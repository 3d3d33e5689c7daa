"""The users' work: training gangs, an inference service under a budget, and what every node runs.

Jobs, Deployments, DaemonSets, budgets and the scheduler are the API server's own small controllers.
"""

from __future__ import annotations

from typing import Final

from outlast.model.names import SYSTEM_NAMESPACE
from outlast.sim.apiserver import Store, Writer
from outlast.sim.apiserver.resources import DAEMONSETS, DEPLOYMENTS, JOBS, NAMESPACES, PDBS
from outlast.sim.world import objects
from outlast.sim.world.scenario import Shape

_WRITER: Final = Writer(manager="kubectl-client-side-apply")


def create_workloads(store: Store, shape: Shape) -> None:
    """Everything that runs, before the nodes are there."""
    for namespace in (SYSTEM_NAMESPACE, objects.TRAINING, objects.INFERENCE):
        store.create(NAMESPACES, {"metadata": {"name": namespace}}, writer=_WRITER)
    for name, machines in shape.gangs:
        store.create(JOBS, objects.gang(name, machines, shape.gpus), objects.TRAINING, _WRITER)
    store.create(DEPLOYMENTS, objects.deployment(shape), objects.INFERENCE, _WRITER)
    store.create(PDBS, objects.disruption_budget(shape), objects.INFERENCE, _WRITER)
    for namespace, name in objects.DAEMONS:
        store.create(DAEMONSETS, objects.daemon_set(name), namespace, _WRITER)
