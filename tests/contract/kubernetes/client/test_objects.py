"""Reading and writing objects: each patch kind, each precondition, each refusal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from outlast.adapters.kubernetes import KubernetesCluster
from outlast.model.cluster import LEASES, NODES, OWNED_NODES, PODS, Lease, LeaseSpec, Node, ObjectMeta
from outlast.ports.cluster import AlreadyExists, Conflict, Invalid, NotFound, Patch, PatchType
from tests.contract.kubernetes.client.waiting import unique

pytestmark = pytest.mark.asyncio


async def new_node(cluster: KubernetesCluster, stem: str = "node", **metadata: Any) -> Node:
    return await cluster.create(NODES, {"metadata": {"name": unique(stem), **metadata}})


async def test_what_is_created_can_be_read_and_listed(cluster: KubernetesCluster) -> None:
    """Name, uid and version come from the server; selectors narrow a list."""
    label = unique("mark")
    node = await new_node(cluster, labels={"mark": label})
    assert (await cluster.get(NODES, node.metadata.name)).metadata.uid == node.metadata.uid
    listed = await cluster.list(NODES, label_selector=f"mark={label}")
    assert [n.metadata.name for n in listed] == [node.metadata.name]
    listed = await cluster.list(NODES, field_selector=f"metadata.name={node.metadata.name}")
    assert [n.metadata.name for n in listed] == [node.metadata.name]


async def test_missing_and_taken_names_have_their_own_errors(cluster: KubernetesCluster) -> None:
    """404 and 409 on create."""
    node = await new_node(cluster)
    with pytest.raises(NotFound, match="get Node nobody"):
        await cluster.get(NODES, "nobody")
    with pytest.raises(AlreadyExists):
        await cluster.create(NODES, {"metadata": {"name": node.metadata.name}})


async def test_the_cordon_patch_holds_its_tests(cluster: KubernetesCluster) -> None:
    """JSON patch: `test` on an absent field passes for null; a failed test is Invalid without causes."""
    node = await new_node(cluster)
    operations = [
        {"op": "test", "path": "/metadata/uid", "value": node.metadata.uid},
        {"op": "test", "path": "/spec/unschedulable", "value": None},
        {"op": "add", "path": "/metadata/annotations", "value": {"outlast.dev/cordon": "{}"}},
        {"op": "add", "path": "/spec/unschedulable", "value": True},
    ]
    patched = await cluster.patch(NODES, node.metadata.name, Patch(PatchType.JSON, operations))
    assert patched.spec.unschedulable
    with pytest.raises(Invalid) as caught:
        await cluster.patch(NODES, node.metadata.name, Patch(PatchType.JSON, operations))
    assert caught.value.status == 422
    assert caught.value.causes == ()


async def test_a_stale_version_conflicts(cluster: KubernetesCluster, space: str) -> None:
    """A merge patch with an old resourceVersion changes nothing."""
    lease = await cluster.create(LEASES, {"metadata": {"name": "lease"}}, space)
    body = {
        "metadata": {"resourceVersion": lease.metadata.resource_version},
        "spec": {"holderIdentity": "me"},
    }
    await cluster.patch(LEASES, "lease", Patch(PatchType.MERGE, body), space)
    with pytest.raises(Conflict):
        await cluster.patch(LEASES, "lease", Patch(PatchType.MERGE, body), space)


async def test_another_uid_is_refused_as_invalid(cluster: KubernetesCluster) -> None:
    """A node that was replaced under its name is never patched by mistake."""
    node = await new_node(cluster)
    body = {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}, "spec": {"unschedulable": True}}
    with pytest.raises((Invalid, Conflict)):
        await cluster.patch(NODES, node.metadata.name, Patch(PatchType.STRATEGIC, body))


async def test_conditions_are_merged_by_type(cluster: KubernetesCluster) -> None:
    """Strategic merge on the status subresource keeps the conditions of others."""
    node = await new_node(cluster)
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    for type_ in ("GPUReady", "RDMAReady"):
        entry = {"type": type_, "status": "True", "reason": "r", "message": "m", "lastTransitionTime": moment}
        patched = await cluster.patch(
            NODES,
            node.metadata.name,
            Patch(PatchType.STRATEGIC, {"status": {"conditions": [entry]}}),
            subresource="status",
        )
    assert {c.type for c in patched.status.conditions} >= {"GPUReady", "RDMAReady"}
    ready = patched.condition("GPUReady")
    assert ready is not None
    assert ready.last_transition_time == moment


async def test_apply_takes_fields_by_force_and_conflicts_without(cluster: KubernetesCluster) -> None:
    """Server-side apply keeps owners; force moves them."""
    node = await new_node(cluster)
    name = node.metadata.name
    await cluster.patch(NODES, name, Patch(PatchType.MERGE, {"metadata": {"labels": {"owned": "a"}}}))
    body = {"metadata": {"name": name, "labels": {"owned": "b"}}}
    applied = await cluster.patch(NODES, name, Patch(PatchType.APPLY, body, force=True))
    assert applied.metadata.labels["owned"] == "b"


async def test_every_write_is_signed(cluster: KubernetesCluster) -> None:
    """The field manager tells our cordon from a human's.

    The node has a label from the start: an object created without any field is never tracked.
    """
    node = await new_node(cluster, labels={"a": "b"})
    patch = Patch(PatchType.MERGE, {"spec": {"unschedulable": True}})
    await cluster.patch(NODES, node.metadata.name, patch)
    owned = await cluster.get(OWNED_NODES, node.metadata.name)
    owners = {
        entry.manager
        for entry in owned.metadata.managed_fields
        if "f:unschedulable" in entry.fields_v1.get("f:spec", {})
    }
    assert owners == {"outlast-controller"}


async def test_a_delete_under_a_wrong_precondition_conflicts(cluster: KubernetesCluster) -> None:
    """uid and resourceVersion protect what came after our last look."""
    node = await new_node(cluster)
    name = node.metadata.name
    with pytest.raises(Conflict):
        await cluster.delete(NODES, name, uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(Conflict):
        await cluster.delete(NODES, name, uid=node.metadata.uid, resource_version="1")
    await cluster.delete(NODES, name, uid=node.metadata.uid)
    with pytest.raises(NotFound):
        await cluster.delete(NODES, name)


async def test_a_shape_with_a_whole_second_can_be_created(cluster: KubernetesCluster, space: str) -> None:
    """MicroTime wants six digits, also where a moment has none."""
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    shape = Lease(
        metadata=ObjectMeta(name=unique("lease")),
        spec=LeaseSpec(
            holder_identity="a", lease_duration_seconds=15, renew_time=moment, acquire_time=moment
        ),
    )
    created = await cluster.create(LEASES, shape, space)
    assert created.spec.renew_time == moment


async def test_an_object_without_what_it_needs_is_refused_by_field(
    cluster: KubernetesCluster, space: str
) -> None:
    """The refusal names the field."""
    with pytest.raises(Invalid) as caught:
        await cluster.create(PODS, {"metadata": {"name": unique("pod")}, "spec": {"containers": []}}, space)
    assert any("containers" in cause.field for cause in caught.value.causes)
