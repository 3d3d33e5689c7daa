"""The played kubelets, where no server is needed."""

from __future__ import annotations

import asyncio

import pytest

from tests.controlplane.access import Access
from tests.controlplane.kubelet import Exit, Kubelets, ended_status, running_status
from tests.controlplane.machines import Machine

NOBODY = Access("http://127.0.0.1:9")
"""The discard port: nothing answers."""

POD = {
    "metadata": {"name": "p", "uid": "00000000-0000-0000-0000-000000000001"},
    "spec": {"containers": [{"name": "main", "image": "i"}]},
    "status": {"startTime": "2026-01-02T03:04:05Z"},
}


@pytest.mark.asyncio
async def test_a_failed_assertion_in_a_test_stays_itself() -> None:
    """Test output shows the assertion, not a group that has it somewhere inside."""
    with pytest.raises(AssertionError, match="as it was"):
        async with Kubelets(NOBODY):
            raise AssertionError("as it was")


@pytest.mark.asyncio
async def test_a_time_limit_around_the_kubelets_works() -> None:
    """Cancellation from outside passes through, and leaves no task behind."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), Kubelets(NOBODY):
            await asyncio.Event().wait()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_reboot_changes_the_boot_and_nothing_else() -> None:
    """Incidents tell a reboot from a replacement by exactly this."""
    before = Machine("m")
    after = before.rebooted()
    assert after.boot_id != before.boot_id
    assert (after.system_uuid, after.provider_id, after.name) == (before.system_uuid, before.provider_id, "m")
    assert Machine("m").system_uuid != before.system_uuid


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed"), (255, "Failed")])
def test_an_end_is_reported_as_a_kubelet_does(code: int, phase: str) -> None:
    """Phase by exit code; the termination message is where a repair Job says its result."""
    status = ended_status(POD, Exit(code, "result"), "Error")
    terminated = status["containerStatuses"][0]["state"]["terminated"]
    assert (status["phase"], terminated["exitCode"], terminated["message"]) == (phase, code, "result")


def test_a_running_pod_is_ready() -> None:
    """Budgets count Ready pods."""
    ready = {c["type"]: c["status"] for c in running_status(POD)["conditions"]}
    assert ready["Ready"] == ready["ContainersReady"] == "True"
