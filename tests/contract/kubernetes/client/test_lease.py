"""Leader election on a real Lease, with short spans."""

from __future__ import annotations

import asyncio
import signal
import sys
from random import Random

import pytest

from outlast.adapters.clock import SystemClock
from outlast.adapters.kubernetes import KubernetesCluster, LeaderElection, LeaseTimes
from outlast.model.cluster import LEASES
from outlast.ports.cluster import Patch, PatchType
from tests.contract.kubernetes.client.waiting import DEADLINE_S, until
from tests.contract.kubernetes.conftest import Server

pytestmark = pytest.mark.asyncio

TIMES = LeaseTimes(lease_s=2.0, renew_deadline_s=1.5, retry_s=0.1, request_deadline_s=1.0)


class Candidate:
    def __init__(self, cluster: KubernetesCluster, space: str, identity: str) -> None:
        self.is_leading = False
        self.election = LeaderElection(
            cluster,
            clock=SystemClock(),
            rng=Random(1),
            namespace=space,
            identity=identity,
            name="leader",
            times=TIMES,
        )

    async def run(self) -> None:
        await self.election.run(self._lead)

    async def _lead(self) -> None:
        self.is_leading = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_leading = False


async def test_one_leads_and_the_next_follows_a_clean_end(cluster: KubernetesCluster, space: str) -> None:
    """The lease is created, held, given back, and taken by the other without waiting it out."""
    a, b = (Candidate(cluster, space, identity) for identity in ("a", "b"))
    async with asyncio.TaskGroup() as group:
        first = group.create_task(a.run())
        await until(lambda: a.is_leading and a.election.may_write())
        second = group.create_task(b.run())
        await until(lambda: b.election.holder == "a")
        assert not b.is_leading
        first.cancel()
        await until(lambda: b.is_leading)
        lease = await cluster.get(LEASES, "leader", space)
        assert lease.spec.holder_identity == "b"
        assert lease.spec.lease_transitions == 2
        second.cancel()
    lease = await cluster.get(LEASES, "leader", space)
    assert lease.spec.holder_identity == ""


async def test_a_dead_holder_is_followed_after_its_lease(cluster: KubernetesCluster, space: str) -> None:
    """A name that nobody renews is waited out once, then taken over."""
    await cluster.create(
        LEASES,
        {"metadata": {"name": "leader"}, "spec": {"holderIdentity": "dead", "leaseDurationSeconds": 1}},
        space,
    )
    b = Candidate(cluster, space, "b")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(b.run())
        await until(lambda: b.election.holder == "dead")
        assert not b.is_leading
        await until(lambda: b.is_leading)
        task.cancel()


async def test_a_lease_taken_by_force_ends_leadership(cluster: KubernetesCluster, space: str) -> None:
    """The renewal conflicts, reads another name, and stops at once."""
    a = Candidate(cluster, space, "a")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(a.run())
        await until(lambda: a.is_leading)
        patch = Patch(PatchType.MERGE, {"spec": {"holderIdentity": "z", "leaseDurationSeconds": 60}})
        await cluster.patch(LEASES, "leader", patch, space)
        await until(lambda: not a.is_leading)
        assert not a.election.may_write()
        task.cancel()
    lease = await cluster.get(LEASES, "leader", space)
    assert lease.spec.holder_identity == "z"


async def test_a_leader_that_was_stopped_does_not_write_on_when_it_wakes(
    cluster: KubernetesCluster, server: Server, space: str
) -> None:
    """SIGSTOP until another leads, then SIGCONT: at most the one write that was past its check."""
    await cluster.create(LEASES, {"metadata": {"name": "work"}}, space)
    arguments = [server.access.url, server.access.token, str(server.access.ca_file or "-"), space]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.contract.kubernetes.client.writer_process",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
    )
    b = Candidate(cluster, space, "b")
    try:
        await asyncio.wait_for(_lines_until(process, "write 20"), DEADLINE_S)
        process.send_signal(signal.SIGSTOP)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(b.run())
            await until(lambda: b.is_leading and b.election.may_write())
            before = await cluster.get(LEASES, "work", space)
            process.send_signal(signal.SIGCONT)
            lines = await asyncio.wait_for(_lines_until(process, "stopped"), DEADLINE_S)
            after = await cluster.get(LEASES, "work", space)
            assert b.is_leading
            task.cancel()
    finally:
        process.kill()
        await process.wait()
    late = int(after.metadata.annotations["number"]) - int(before.metadata.annotations["number"])
    assert late <= 1, lines


async def _lines_until(process: asyncio.subprocess.Process, last: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while last not in lines:
        line = await process.stdout.readline()
        assert line, f"the process ended after {lines[-3:]}"
        lines.append(line.decode().strip())
    return lines
