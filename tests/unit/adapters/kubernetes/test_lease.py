"""One leader at a time, on clocks that only count; a lease server in memory that can fail."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest

from outlast.adapters.kubernetes.lease import LeaderElection, LeaseTimes, Observed, claim_on, observe
from outlast.model.cluster import Lease, LeaseSpec, ObjectMeta
from outlast.ports.cluster import Conflict, NotFound, Patch, Unavailable
from tests.unit.adapters.kubernetes.virtual import VirtualClock, eventually

TIMES = LeaseTimes()


class LeaseServer:
    """One Lease behind the calls an election makes, and the trouble it can make."""

    def __init__(self) -> None:
        self.stored: Lease | None = None
        self.fails = False
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.loses_answers = False
        self.writes = 0
        self._version = 0

    async def get(self, kind: Any, name: str, namespace: str = "") -> Lease:
        await self._trouble()
        if self.stored is None:
            raise NotFound("no lease", status=404)
        return self.stored

    async def create(self, kind: Any, body: dict[str, Any], namespace: str = "") -> Lease:
        await self._trouble()
        return self._store({})

    async def patch(self, kind: Any, name: str, patch: Patch, namespace: str = "", **_: Any) -> Lease:
        await self._trouble()
        if self.stored is None:
            raise NotFound("no lease", status=404)
        if patch.body["metadata"]["resourceVersion"] != self.stored.metadata.resource_version:
            raise Conflict("modified", status=409)
        spec = msgspec.to_builtins(self.stored.spec) | patch.body["spec"]
        self.writes += 1
        lease = self._store({key: value for key, value in spec.items() if value is not None})
        if self.loses_answers:
            raise Unavailable("the answer got lost")
        return lease

    def _store(self, spec: dict[str, Any]) -> Lease:
        self._version += 1
        meta = ObjectMeta(name="l", uid="u", resource_version=str(self._version))
        self.stored = Lease(metadata=meta, spec=msgspec.convert(spec, LeaseSpec))
        return self.stored

    async def _trouble(self) -> None:
        await self.hangs.wait()
        if self.fails:
            raise Unavailable("down")

    @property
    def holder(self) -> str:
        return self.stored.spec.holder_identity if self.stored else ""


class Door:
    """One candidate's way to the server, which can be shut for it alone."""

    def __init__(self, server: LeaseServer) -> None:
        self.is_shut = False
        self._server = server

    def __getattr__(self, verb: str) -> Any:
        if self.is_shut:
            raise Unavailable("no way")
        return getattr(self._server, verb)


class Candidate:
    """An election whose `lead` notes when it runs."""

    def __init__(self, server: LeaseServer, clock: VirtualClock, identity: str) -> None:
        self.story: list[str] = []
        self.is_leading = False
        self.door = Door(server)
        self.election = LeaderElection(
            self.door,  # type: ignore[arg-type]
            clock=clock,
            rng=Random(ord(identity)),
            namespace="ns",
            identity=identity,
            on_started=lambda: self.story.append("started"),
            on_stopped=lambda: self.story.append("stopped"),
        )

    async def lead(self) -> None:
        self.is_leading = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_leading = False

    async def run(self) -> None:
        await self.election.run(self.lead)


def held_by(identity: str, version: str = "1", lease_s: int = 15) -> Lease:
    meta = ObjectMeta(name="l", uid="u", resource_version=version)
    return Lease(metadata=meta, spec=LeaseSpec(holder_identity=identity, lease_duration_seconds=lease_s))


def test_a_lease_is_waited_out_from_when_its_last_change_was_seen() -> None:
    """Not from the times written in it: the holder's wall clock may be anywhere."""
    seen = observe(None, held_by("other"), 100.0)
    again = observe(seen, held_by("other"), 110.0)
    assert claim_on(again, "me", TIMES, 114.9) == "held"
    assert claim_on(again, "me", TIMES, 115.0) == "free"
    renewed = observe(again, held_by("other", "2"), 114.0)
    assert claim_on(renewed, "me", TIMES, 128.9) == "held"


def test_the_holders_own_duration_counts() -> None:
    """A holder with longer settings is not robbed."""
    assert claim_on(Observed(held_by("other", lease_s=60), 0.0), "me", TIMES, 59.0) == "held"


def test_a_free_lease_and_our_own_are_taken_at_once() -> None:
    """Nothing to wait for."""
    assert claim_on(Observed(held_by(""), 0.0), "me", TIMES, 0.0) == "free"
    assert claim_on(Observed(held_by("me"), 0.0), "me", TIMES, 0.0) == "ours"


@pytest.mark.parametrize(
    "times",
    [
        {"lease_s": 10.0},
        {"retry_s": 10.0},
        {"request_deadline_s": 10.0},
        {"request_deadline_s": 8.5},
        {"retry_s": 0.0},
    ],
)
def test_times_that_cannot_be_safe_together_are_refused(times: dict[str, float]) -> None:
    """Two leaders, or a fence that flickers, by configuration."""
    with pytest.raises(ValueError, match="an election needs"):
        LeaseTimes(**times)


@pytest.mark.asyncio
async def test_writing_stops_a_request_before_the_renew_deadline() -> None:
    """No renewal since t: writes end at t + 10 - 4, leading at t + 10, another leads from t + 15."""
    server, clock = LeaseServer(), VirtualClock()
    a = Candidate(server, clock, "a")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(a.run())
        await eventually(lambda: a.is_leading)
        renewed_s = clock.now_s
        assert a.election.may_write()
        server.fails = True
        await clock.advance(5.99)
        assert a.election.may_write()
        await clock.advance(0.02)
        assert not a.election.may_write()
        assert a.is_leading
        await clock.advance(3.98)
        assert a.is_leading
        await clock.advance(0.02)
        assert not a.is_leading
        assert clock.now_s - renewed_s == pytest.approx(10.01)
        assert a.story == ["started", "stopped"]
        assert server.holder == "a"
        task.cancel()


@pytest.mark.asyncio
async def test_a_renewal_that_hangs_does_not_keep_a_leader() -> None:
    """The deadline ends leadership also while a request is still out."""
    server, clock = LeaseServer(), VirtualClock()
    a = Candidate(server, clock, "a")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(a.run())
        await eventually(lambda: a.is_leading)
        server.hangs.clear()
        await clock.advance(10.01)
        assert not a.is_leading
        assert not a.election.may_write()
        task.cancel()


@pytest.mark.asyncio
async def test_two_candidates_are_never_leaders_at_once() -> None:
    """Over failures of either side, at most one may write; a dead leader is followed within the lease."""
    server, clock = LeaseServer(), VirtualClock()
    a, b = Candidate(server, clock, "a"), Candidate(server, clock, "b")
    leaders: set[str] = set()
    rng = Random(5)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(a.run()), group.create_task(b.run())]
        for _ in range(2000):
            await clock.advance(0.25)
            for candidate in (a, b):
                if rng.random() < 0.02:
                    candidate.door.is_shut = not candidate.door.is_shut
            writers = [c for c in (a, b) if c.election.may_write()]
            assert len(writers) <= 1
            assert not (a.is_leading and b.is_leading)
            leaders |= {c.election._identity for c in writers}
        for task in tasks:
            task.cancel()
    assert leaders == {"a", "b"}


@pytest.mark.asyncio
async def test_a_leader_that_stopped_breathing_is_followed_after_the_lease() -> None:
    """A killed process leaves its name behind; the next waits fifteen seconds from the last change."""
    server, clock = LeaseServer(), VirtualClock()
    server._store({"holderIdentity": "dead", "leaseDurationSeconds": 15})
    b = Candidate(server, clock, "b")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(b.run())
        await eventually(lambda: b.election.holder == "dead")
        await clock.advance(14.9)
        assert not b.is_leading
        await clock.advance(2.6)
        assert b.is_leading
        assert server.stored is not None
        assert server.stored.spec.lease_transitions == 1
        task.cancel()


@pytest.mark.asyncio
async def test_a_clean_end_gives_the_lease_back() -> None:
    """The next leader need not wait; the fence is closed before."""
    server, clock = LeaseServer(), VirtualClock()
    a = Candidate(server, clock, "a")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(a.run())
        await eventually(lambda: a.is_leading)
        task.cancel()
    assert server.holder == ""
    assert not a.election.may_write()
    assert a.story == ["started", "stopped"]


@pytest.mark.asyncio
async def test_a_bug_in_the_leaders_work_comes_out_and_gives_the_lease_back() -> None:
    """Nothing is swallowed, nobody waits for a lease nobody uses."""
    server, clock = LeaseServer(), VirtualClock()

    async def lead() -> None:
        raise RuntimeError("bug")

    a = Candidate(server, clock, "a")
    with pytest.raises(RuntimeError, match="bug"):
        await a.election.run(lead)
    assert server.holder == ""


@pytest.mark.asyncio
async def test_somebody_elses_name_in_the_lease_ends_leadership_at_once() -> None:
    """An administrator, or a second cluster of ours, took it."""
    server, clock = LeaseServer(), VirtualClock()
    a = Candidate(server, clock, "a")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(a.run())
        await eventually(lambda: a.is_leading)
        server._store({"holderIdentity": "z", "leaseDurationSeconds": 15})
        await clock.advance(2.5)
        assert not a.is_leading
        assert server.holder == "z"
        task.cancel()


@pytest.mark.asyncio
async def test_an_answer_that_got_lost_costs_one_more_look_and_not_the_lead() -> None:
    """The write happened; the next renewal conflicts, reads, and goes through."""
    server, clock = LeaseServer(), VirtualClock()
    a = Candidate(server, clock, "a")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(a.run())
        await eventually(lambda: a.is_leading)
        server.loses_answers = True
        await clock.advance(2.5)
        server.loses_answers = False
        await clock.advance(2.5)
        assert a.is_leading
        assert a.election.may_write()
        assert a.story == ["started"]
        task.cancel()


@pytest.mark.asyncio
async def test_a_deleted_lease_is_made_again() -> None:
    """A careless kubectl delete does not stop the platform."""
    server, clock = LeaseServer(), VirtualClock()
    a = Candidate(server, clock, "a")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(a.run())
        await eventually(lambda: a.is_leading)
        server.stored = None
        await clock.advance(2.5)
        assert server.holder == "a"
        assert a.is_leading
        task.cancel()
