"""Incidents that a machine lives through, as written and in variations: the right verdict, or none."""

from __future__ import annotations

import pytest

from tests.acceptance.incidents import Incident, incidents, lived_through

VARIATIONS = 2


@pytest.mark.parametrize("seed", range(VARIATIONS))
@pytest.mark.parametrize("incident", incidents(), ids=lambda incident: f"{incident.kind}-{incident.id}")
def test_an_incident_gets_the_cure_it_needs(incident: Incident, seed: int) -> None:
    """The strongest verdict is the right cure for the right GPU; a benign day disrupts nobody."""
    outcome = lived_through(incident, seed)
    assert incident.disruptive or not outcome.disruptive
    assert outcome.right, f"wanted {incident.cure} on {incident.where}, got {outcome.cure}"


def test_there_are_enough_incidents_of_both_kinds() -> None:
    """A corpus of only sick machines would call everything sick and score full marks."""
    all_of_them = incidents()
    benign = [incident for incident in all_of_them if incident.kind.startswith("benign")]
    assert len(all_of_them) >= 60
    assert len(benign) >= len(all_of_them) / 3
    assert len({(incident.kind, incident.id) for incident in all_of_them}) == len(all_of_them)
