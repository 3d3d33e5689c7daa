"""Events as kubectl shows them."""

from __future__ import annotations

from random import Random

import pytest

from outlast.adapters.clock import SystemClock
from outlast.adapters.kubernetes import KubernetesCluster, QueuedEvents
from outlast.model.cluster import EVENTS, NODES
from outlast.ports.cluster import EventNote
from tests.contract.kubernetes.client.waiting import unique

pytestmark = pytest.mark.asyncio


async def test_an_event_is_written_once_and_counted(cluster: KubernetesCluster) -> None:
    """About a cluster object it lives in `default`; repetitions raise the count."""
    node = await cluster.create(NODES, {"metadata": {"name": unique("node")}})
    note = EventNote(NODES, node.metadata.name, "Cordoned", "Xid 79", uid=node.metadata.uid, warning=True)
    events = QueuedEvents(cluster, clock=SystemClock(), rng=Random())
    for _ in range(3):
        events.record(note)
        await events.flush()
    selector = f"involvedObject.name={node.metadata.name}"
    listed = await cluster.list(EVENTS, "default", field_selector=selector)
    assert [(e.count, e.reason, e.type, e.source.component) for e in listed] == [
        (3, "Cordoned", "Warning", "outlast-controller")
    ]
    assert events.dropped == 0
