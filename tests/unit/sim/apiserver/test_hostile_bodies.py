"""Whatever a body is, the answer is an object or a refusal, never a crash."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.sim.apiserver.controllers import Controllers
from outlast.sim.apiserver.errors import ApiError
from outlast.sim.apiserver.resources import BUILT_IN, CUSTOM_RESOURCE_DEFINITIONS, NODES, PODS
from outlast.sim.apiserver.store import APPLY, JSON, MERGE, STRATEGIC, Store

CRDS = Path(__file__).parents[4] / "deploy" / "crds"
KEYS = st.sampled_from(
    ["metadata", "spec", "status", "name", "labels", "annotations", "finalizers", "ownerReferences", "uid",
     "taints", "conditions", "containers", "template", "selector", "matchLabels", "replicas", "type",
     "$patch",
     "$retainKeys", "$setElementOrder/conditions", "managedFields", "resourceVersion", "nodeName",
     "minAvailable"]
)  # fmt: skip
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
VALUES = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)  # fmt: skip
BODIES = st.dictionaries(KEYS, VALUES, max_size=5)
POINTERS = st.sampled_from(
    ["", "/metadata", "/metadata/labels", "/spec", "/status/conditions/0", "/spec/taints/-", "/kind"]
)
OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {"op": st.sampled_from(["add", "remove", "replace", "test", "move", "copy"]), "path": POINTERS},
        optional={"value": VALUES, "from": POINTERS},
    ),
    max_size=3,
)
BROAD = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def fresh() -> tuple[Store, Controllers]:
    """A store with our custom kinds, a node and a pod."""
    store = Store(lambda: datetime(2026, 1, 1, tzinfo=UTC))
    controllers = Controllers(store)
    for path in sorted(CRDS.glob("*.outlast.dev.yaml")):
        store.create(CUSTOM_RESOURCE_DEFINITIONS, yaml.safe_load(path.read_text()))
    store.create(NODES, {"metadata": {"name": "n"}})
    spec = {"containers": [{"name": "c", "image": "i:1"}], "nodeName": "n"}
    store.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, "default")
    return store, controllers


STORE, CONTROLLERS = fresh()


def named(body: dict[str, Any], name: str) -> dict[str, Any]:
    """The body with a name that can be stored."""
    meta = body.get("metadata")
    return {**body, "metadata": {**(meta if isinstance(meta, dict) else {}), "name": name}}


def attempt(write: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Write and let the controllers look; only refusals are allowed."""
    try:
        write()
    except ApiError as error:
        assert error.code < 500 or "merge key" in error.message, error.message
    CONTROLLERS.settle()
    assert not [r for r in caplog.records if r.exc_info], caplog.text


@BROAD
@given(resource=st.sampled_from(BUILT_IN), body=BODIES)
def test_a_create_is_taken_or_refused(
    resource: Any, caplog: pytest.LogCaptureFixture, body: dict[str, Any]
) -> None:
    """Random bodies of every built-in kind."""
    attempt(lambda: STORE.create(resource, named(body, "x"), "default"), caplog)
    try:
        STORE.delete(resource, "x", "default" if resource.namespaced else "")
    except ApiError:
        return


@pytest.mark.parametrize("kind", ["incidents", "nodehealths", "remediationpolicies"])
@QUICK
@given(body=BODIES)
def test_a_custom_object_is_taken_or_refused(
    kind: str, caplog: pytest.LogCaptureFixture, body: dict[str, Any]
) -> None:
    """Random bodies against the schemas and rules that we ship."""
    resource = STORE.catalogue.find("outlast.dev", "v1alpha1", kind)
    assert resource is not None
    whole = {**named(body, "x"), "apiVersion": resource.api_version, "kind": resource.kind}
    attempt(lambda: STORE.create(resource, whole), caplog)


@pytest.mark.parametrize("content_type", [MERGE, STRATEGIC, APPLY])
@pytest.mark.parametrize("subresource", ["", "status"])
@QUICK
@given(body=BODIES)
def test_a_patch_is_taken_or_refused(
    content_type: str, subresource: str, caplog: pytest.LogCaptureFixture, body: dict[str, Any]
) -> None:
    """Random merge, strategic and apply patches of a node."""
    attempt(lambda: STORE.patch(NODES, "n", content_type, body, subresource=subresource), caplog)


@QUICK
@given(operations=OPERATIONS)
def test_a_json_patch_is_taken_or_refused(caplog: pytest.LogCaptureFixture, operations: list[Any]) -> None:
    """Random operations on a node."""
    attempt(lambda: STORE.patch(NODES, "n", JSON, operations), caplog)
