"""The history of an Incident is append-only on the embedded API server."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from outlast.model.incident import INCIDENTS
from outlast.schema.crds import definitions
from outlast.sim.apiserver import ApiError, Store
from outlast.sim.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS
from tests.incident_rules import ALLOWED, ATTACKS, SPEC_ATTACKS, Json, incident

MERGE = "application/merge-patch+json"


@pytest.fixture
def store() -> Store:
    store = Store(lambda: datetime(2026, 1, 1, tzinfo=UTC))
    for definition in definitions():
        store.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
    store.create(INCIDENTS, incident("i1"))
    return store


def takes(store: Store, body: Json, subresource: str = "status") -> bool:
    try:
        store.patch(INCIDENTS, "i1", MERGE, body, subresource=subresource)
    except ApiError as error:
        assert error.code == 422, error.message
        return False
    return True


@pytest.mark.parametrize("name", ATTACKS)
def test_history_cannot_be_rewritten(store: Store, name: str) -> None:
    """Whoever may write the status, by accident or on purpose, cannot change what happened."""
    stands, attack = ATTACKS[name]
    assert takes(store, {"status": stands})
    assert not takes(store, attack)


@pytest.mark.parametrize("name", SPEC_ATTACKS)
def test_the_opening_cannot_be_rewritten(store: Store, name: str) -> None:
    """An incident is about one node and one moment."""
    assert not takes(store, SPEC_ATTACKS[name], subresource="")


@pytest.mark.parametrize("name", ALLOWED)
def test_what_the_controller_writes_is_taken(store: Store, name: str) -> None:
    """A rule that is too strict would make an incident unwritable for ever."""
    stands, change = ALLOWED[name]
    assert takes(store, {"status": stands})
    assert takes(store, change)
