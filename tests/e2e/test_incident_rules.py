"""The history of an Incident is append-only on a real API server."""

from __future__ import annotations

import itertools

import pytest

from tests.controlplane.access import MERGE
from tests.controlplane.installation import Installation
from tests.incident_rules import ALLOWED, ATTACKS, SPEC_ATTACKS, Json, incident

INCIDENTS = "/apis/outlast.dev/v1alpha1/incidents"
_numbers = itertools.count(1)


@pytest.fixture
def path(installation: Installation) -> str:
    """A new incident's path."""
    name = f"rules-{next(_numbers)}"
    installation.admin.request("POST", f"{INCIDENTS}?fieldValidation=Strict", incident(name))
    return f"{INCIDENTS}/{name}"


def takes(installation: Installation, path: str, body: Json) -> bool:
    answer = installation.admin.ask("PATCH", f"{path}?fieldValidation=Strict", body, content_type=MERGE)
    assert answer.ok or answer.status == 422, answer
    assert not answer.warnings
    return answer.ok


@pytest.mark.parametrize("name", ATTACKS)
def test_history_cannot_be_rewritten(installation: Installation, path: str, name: str) -> None:
    """Not even by an administrator: every client goes through the schema."""
    stands, attack = ATTACKS[name]
    assert takes(installation, f"{path}/status", {"status": stands})
    assert not takes(installation, f"{path}/status", attack)


@pytest.mark.parametrize("name", SPEC_ATTACKS)
def test_the_opening_cannot_be_rewritten(installation: Installation, path: str, name: str) -> None:
    """An incident is about one node and one moment."""
    assert not takes(installation, path, SPEC_ATTACKS[name])


@pytest.mark.parametrize("name", ALLOWED)
def test_what_the_controller_writes_is_taken(installation: Installation, path: str, name: str) -> None:
    """A rule that is too strict would make an incident unwritable for ever."""
    stands, change = ALLOWED[name]
    assert takes(installation, f"{path}/status", {"status": stands})
    assert takes(installation, f"{path}/status", change)
