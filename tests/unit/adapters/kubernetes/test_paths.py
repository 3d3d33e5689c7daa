"""Kinds to paths, and names that must never become one."""

import pytest

from outlast.adapters.kubernetes.paths import collection_path, creation_path, object_path
from outlast.model.cluster import JOBS, NODES, PODS
from outlast.ports.cluster import Invalid


def test_a_kind_is_its_path() -> None:
    """The core group lives under /api, the others under /apis; namespaces and subresources fall in place."""
    assert object_path(NODES, "n1") == "/api/v1/nodes/n1"
    assert object_path(PODS, "p", "ns", "eviction") == "/api/v1/namespaces/ns/pods/p/eviction"
    assert object_path(JOBS, "j", "ns") == "/apis/batch/v1/namespaces/ns/jobs/j"
    assert collection_path(PODS) == "/api/v1/pods"


@pytest.mark.parametrize("name", ["", ".", "..", "../secrets", "a/b", "a b", "a?x=1", "a%2fb", "é", "a\n"])
def test_a_name_that_is_no_name_never_becomes_a_path(name: str) -> None:
    """An empty or dotted name would turn one object into a collection or into another object."""
    with pytest.raises(Invalid):
        object_path(NODES, name)
    with pytest.raises(Invalid):
        object_path(PODS, "p", name)


def test_a_namespace_goes_with_the_kind() -> None:
    """A namespaced object needs one, a cluster object must not have one."""
    with pytest.raises(Invalid, match="needs a namespace"):
        creation_path(PODS, "")
    with pytest.raises(Invalid, match="has no namespace"):
        object_path(NODES, "n", "ns")
