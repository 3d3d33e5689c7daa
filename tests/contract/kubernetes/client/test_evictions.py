"""Every answer of the eviction API."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.adapters.kubernetes import KubernetesCluster
from outlast.model.cluster import PODS, Kind, KubernetesObject, Pod, Resource
from outlast.ports.cluster import EvictionAnswer, NotFound, Patch, PatchType
from tests.contract.kubernetes.client.waiting import unique, until_read


class _Counts(Resource, frozen=True, kw_only=True):
    current_healthy: int = 0


class _Budget(KubernetesObject, frozen=True, kw_only=True):
    status: _Counts = _Counts()


PDBS = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", True, _Budget)


pytestmark = pytest.mark.asyncio

OTHER_UID = "00000000-0000-0000-0000-000000000000"


async def running_pod(cluster: KubernetesCluster, space: str, app: str) -> Pod:
    """A pod that counts as healthy for a budget."""
    spec = {"nodeName": "some-node", "containers": [{"name": "c", "image": "example/app:1"}]}
    body: dict[str, Any] = {"metadata": {"name": unique("pod"), "labels": {"app": app}}, "spec": spec}
    pod = await cluster.create(PODS, body, space)
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    return await cluster.patch(
        PODS, pod.metadata.name, Patch(PatchType.MERGE, status), space, subresource="status"
    )


async def budget(cluster: KubernetesCluster, space: str, app: str, healthy: int) -> None:
    """A budget that keeps one pod, in force."""
    name = unique("pdb")
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
    await cluster.create(PDBS, {"metadata": {"name": name}, "spec": spec}, space)
    await until_read(
        lambda: cluster.get(PDBS, name, space), lambda pdb: pdb.status.current_healthy == healthy
    )


async def test_without_a_budget_an_eviction_is_accepted(cluster: KubernetesCluster, space: str) -> None:
    """201; the pod gets its deletion timestamp or is gone."""
    pod = await running_pod(cluster, space, "free")
    eviction = await cluster.evict(pod.metadata.name, space, uid=pod.metadata.uid, grace_period_s=5)
    assert eviction.answer is EvictionAnswer.ACCEPTED
    try:
        left = await cluster.get(PODS, pod.metadata.name, space)
    except NotFound:
        return
    assert left.metadata.deletion_timestamp is not None


async def test_a_pod_that_is_another_or_no_more_is_gone(cluster: KubernetesCluster, space: str) -> None:
    """404 and a uid that differs are one answer."""
    pod = await running_pod(cluster, space, "free")
    assert (await cluster.evict("nobody", space, uid="u")).answer is EvictionAnswer.GONE
    eviction = await cluster.evict(pod.metadata.name, space, uid=OTHER_UID)
    assert eviction.answer is EvictionAnswer.GONE
    assert (await cluster.get(PODS, pod.metadata.name, space)).metadata.deletion_timestamp is None


async def test_a_budget_blocks_and_says_so(cluster: KubernetesCluster, space: str) -> None:
    """429 with the budget as cause; nothing happens to the pod."""
    pod = await running_pod(cluster, space, "kept")
    await budget(cluster, space, "kept", healthy=1)
    eviction = await cluster.evict(pod.metadata.name, space, uid=pod.metadata.uid)
    assert eviction.answer is EvictionAnswer.BLOCKED_BY_BUDGET
    assert "disruption budget" in eviction.message
    assert (await cluster.get(PODS, pod.metadata.name, space)).metadata.deletion_timestamp is None


async def test_two_budgets_on_one_pod_are_a_mistake_of_people(cluster: KubernetesCluster, space: str) -> None:
    """Permanent: told apart from a server error."""
    pod = await running_pod(cluster, space, "twice")
    await budget(cluster, space, "twice", healthy=1)
    await budget(cluster, space, "twice", healthy=1)
    eviction = await cluster.evict(pod.metadata.name, space, uid=pod.metadata.uid)
    assert eviction.answer is EvictionAnswer.MISCONFIGURED
