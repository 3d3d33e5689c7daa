"""Which policy rules, and which version of it."""

from __future__ import annotations

import msgspec
import pytest

from outlast.controller.policies import PolicyBook, judge, status_of, write_status
from outlast.model.cluster import ObjectMeta
from outlast.model.health import FaultClass
from outlast.model.policy import (
    REMEDIATION_POLICIES,
    Ladder,
    Mode,
    RemediationPolicy,
    RemediationPolicySpec,
    RemediationPolicyStatus,
    Rung,
)
from outlast.ports.cluster import Conflict
from outlast.schema.crds import definitions
from outlast.sim.apiserver import Store
from outlast.sim.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS
from outlast.sim.direct import DirectCluster
from tests.unit.remediation.builders import START, a_health, a_node, after

GOOD = RemediationPolicySpec(mode=Mode.ENFORCE)
BAD = RemediationPolicySpec(
    mode=Mode.ENFORCE,
    ladders=(Ladder(fault_class=FaultClass.REBOOT_CURES, rungs=(Rung.BLOCK_NEW_WORK, Rung.REBOOT)),),
)


def policy(spec: RemediationPolicySpec, name: str = "gpu", **status: object) -> RemediationPolicy:
    return RemediationPolicy(
        metadata=ObjectMeta(name=name, generation=2), spec=spec, status=RemediationPolicyStatus(**status)
    )


def a_gpu_node(**labels: str):
    node = a_node()
    marks = {"nvidia.com/gpu.present": "true", **labels}
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=marks))


def test_a_bad_edit_leaves_the_last_good_version_in_force() -> None:
    """In memory while the process lives."""
    book = PolicyBook()
    book.put(policy(GOOD))
    assert not book.put(policy(BAD)), "nothing that rules has changed"
    assert book.ruling(a_gpu_node(), None).spec == GOOD


def test_the_last_good_version_survives_a_restart() -> None:
    """It is kept in the policy's own status."""
    book = PolicyBook()
    book.put(policy(BAD, in_force=GOOD))
    assert book.ruling(a_gpu_node(), None).spec == GOOD


def test_a_policy_that_was_never_good_rules_nothing() -> None:
    """No guess is made of what its author may have meant."""
    book = PolicyBook()
    book.put(policy(BAD))
    assert book.ruling(a_gpu_node(), None) is None


def test_the_highest_priority_that_selects_rules() -> None:
    """Then the first by name, so that the answer does not depend on order of arrival."""
    book = PolicyBook()
    book.put(policy(GOOD, "b"))
    book.put(policy(GOOD, "a"))
    book.put(policy(msgspec.structs.replace(GOOD, priority=5, node_selector={"pool": "x"}), "z"))
    assert book.ruling(a_gpu_node(), None).name == "a"
    assert book.ruling(a_gpu_node(pool="x"), None).name == "z"


def test_a_policy_without_selector_means_nodes_with_gpus() -> None:
    """A web server's node is none of our business."""
    book = PolicyBook()
    book.put(policy(GOOD))
    assert book.ruling(a_node(), a_health()) is None
    assert book.ruling(a_gpu_node(), None) is not None


def test_the_status_names_field_and_rule() -> None:
    """What a person has to change, and what rules meanwhile."""
    status = status_of(judge(policy(BAD), GOOD), 10, 1, None, START)
    accepted = next(c for c in status.conditions if c.type == "Accepted")
    assert accepted.status == "False"
    assert "spec.ladders[0].rungs" in accepted.message and "stays in force" in accepted.message
    assert status.in_force == GOOD and (status.nodes, status.unavailable) == (10, 1)


def test_times_of_conditions_move_only_when_they_flip() -> None:
    """A status that says nothing new is equal to the one before, so it is not written."""
    first = status_of(judge(policy(GOOD), None), 10, 1, None, START)
    same = msgspec.structs.replace(policy(GOOD), status=first)
    assert status_of(judge(same, None), 10, 1, None, after(60)) == first


@pytest.mark.asyncio
async def test_what_is_in_force_replaces_what_was() -> None:
    """Defaults are not written out: merged, a policy set back to Observe would go on saying Enforce."""
    store = Store(lambda: START)
    for definition in definitions():
        store.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
    kind = REMEDIATION_POLICIES
    body = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": "gpu"}, "spec": {}}
    store.create(kind, body)
    cluster = DirectCluster(store)
    acting = msgspec.structs.replace(GOOD, node_selector={"pool": "a"})
    watching = RemediationPolicySpec(node_selector={"zone": "b"})
    for spec in (acting, watching):
        stored = await cluster.get(kind, "gpu")
        judged = judge(msgspec.structs.replace(stored, spec=spec), None)
        await write_status(cluster, stored, status_of(judged, 1, 0, None, START))
    assert (await cluster.get(kind, "gpu")).status.in_force == watching
    with pytest.raises(Conflict):
        await write_status(cluster, stored, status_of(judged, 2, 0, None, START))
