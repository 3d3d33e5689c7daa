"""pytest's way to the control plane: one per session, a namespace per test.

Programs are found or built after collection, outside of any test's time limit, and only when a
selected test asks for them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane import binaries
from tests.controlplane.builder import BuildFailed
from tests.controlplane.installation import Installation
from tests.controlplane.plane import Plane
from tests.left_out import leave_out

_found = pytest.StashKey[dict[str, Path]]()
_why_not = pytest.StashKey[str]()
_numbers = itertools.count(1)

HOW_TO_GET_IT = "python -m tests.controlplane.binaries"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for the control plane is marked, so that `-m 'not controlplane'` leaves it out."""
    for item in items:
        if {"controlplane", "kubectl"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.controlplane)
        if "kubectl" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kubectl)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Find the programs, or build them: minutes the first time, with a line every now and then."""
    config = session.config
    wanted = any(item.get_closest_marker("controlplane") for item in session.items)
    if not wanted or config.option.collectonly:
        return
    capture = config.pluginmanager.getplugin("capturemanager")

    def report(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", end="", flush=True)

    try:
        config.stash[_found] = binaries.obtain(report=report)
    except BuildFailed as error:
        config.stash[_why_not] = str(error)


@pytest.fixture(scope="session")
def control_plane_programs(request: pytest.FixtureRequest) -> dict[str, Path]:
    """Path of etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl."""
    found = request.config.stash.get(_found, None)
    if found is None:
        why = request.config.stash.get(_why_not, "not looked for").splitlines()[0]
        leave_out("the tests on a real control plane", f"{HOW_TO_GET_IT} ({why})")
    return found


@pytest.fixture(scope="session")
def kubectl(control_plane_programs: dict[str, Path]) -> Path:
    """kubectl of the same release as the control plane."""
    return control_plane_programs["kubectl"]


@pytest.fixture(scope="session")
def controlplane(control_plane_programs: dict[str, Path]) -> Iterator[Plane]:
    """A real control plane, shared by the session: use a namespace and node names of your own."""
    with Plane(control_plane_programs) as plane:
        yield plane


@pytest.fixture(scope="session")
def installation(controlplane: Plane) -> Installation:
    """The control plane with outlast's CRDs, rights and admission policies in force."""
    installed = Installation(controlplane)
    installed.install()
    return installed


@pytest.fixture
def namespace(controlplane: Plane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of this test, with its default ServiceAccount; deleted afterwards, without waiting."""
    stem = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:40].strip("-")
    name = f"{stem}-{os.getpid()}-{next(_numbers)}"
    controlplane.admin.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    controlplane.wait_for(f"/api/v1/namespaces/{name}/serviceaccounts/default")
    yield name
    controlplane.admin.ask("DELETE", f"/api/v1/namespaces/{name}")
