"""Fixtures of the tests that run our processes against a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.installation import Installation
from tests.controlplane.plane import Plane


@pytest.fixture(scope="package")
def own_installation(control_plane_programs: dict[str, Path]) -> Iterator[Installation]:
    """A control plane of its own for tests of the whole line: they kill its API server, one after another."""
    with Plane(control_plane_programs) as plane:
        installation = Installation(plane)
        installation.install()
        yield installation
