"""Leader election on a Lease, timed by monotonic clocks alone.

A candidate never compares the times written in a lease with its own: it notes when it saw the record
change and waits the lease's duration from there. The leader stops itself earlier, at the renew
deadline, counted from before the last successful renewal was sent. So no clock step makes two leaders.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import structlog

from outlast.adapters.kubernetes.codec import micro_time
from outlast.model.cluster import LEASES, Lease
from outlast.ports.clock import Clock
from outlast.ports.cluster import Cluster, ClusterError, Conflict, NotFound, Patch, PatchType

JITTER = 0.2
"""Each wait is lengthened by up to this share, so that candidates do not move in step."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The spans of an election, in seconds. Raises ValueError where they cannot be safe together."""

    lease_s: float = 15.0
    """How long others wait after the last change they saw."""
    renew_deadline_s: float = 10.0
    """How long a leader goes on without a successful renewal."""
    retry_s: float = 2.0
    request_deadline_s: float = 4.0
    """How long a write sent by the leader may take: writing stops this much before the deadline."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_deadline_s < self.lease_s:
            raise ValueError("an election needs 0 < retry_s < renew_deadline_s < lease_s")
        if not 0 < self.request_deadline_s < self.renew_deadline_s:
            raise ValueError("an election needs 0 < request_deadline_s < renew_deadline_s")
        if self.renew_deadline_s - self.request_deadline_s <= self.retry_s:
            raise ValueError(
                "an election needs renew_deadline_s - request_deadline_s > retry_s, else writes flicker"
            )


@dataclass(frozen=True, slots=True)
class Observed:
    """A lease as read, and when this process first saw it in this version."""

    lease: Lease
    since_s: float


def observe(before: Observed | None, lease: Lease, now_s: float) -> Observed:
    """Fold one reading in: the time is kept as long as the record does not change."""
    same = before is not None and (
        before.lease.metadata.resource_version == lease.metadata.resource_version
        and before.lease.metadata.uid == lease.metadata.uid
    )
    return Observed(lease, before.since_s if before is not None and same else now_s)


Claim = Literal["free", "ours", "held"]


def claim_on(observed: Observed, identity: str, times: LeaseTimes, now_s: float) -> Claim:
    """Whether we may write ourselves into the lease: it is free or run out, already ours, or held."""
    spec = observed.lease.spec
    if spec.holder_identity == identity:
        return "ours"
    if not spec.holder_identity:
        return "free"
    # The holder's own duration counts: it may run with other settings than ours.
    lease_s = float(spec.lease_duration_seconds) or times.lease_s
    return "free" if now_s - observed.since_s >= lease_s else "held"


class _LeadershipLost(Exception):
    """The renew deadline passed, or somebody else holds the lease."""


class LeaderElection:
    """Implements `outlast.ports.cluster.Fence`. Run it once; give its fence to everything that writes.

    `identity` is the pod's name, which the server-side fence compares with the writer's token.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        clock: Clock,
        rng: Random,
        namespace: str,
        identity: str,
        name: str = "outlast-controller",
        times: LeaseTimes = LeaseTimes(),
        on_started: Callable[[], None] | None = None,
        on_stopped: Callable[[], None] | None = None,
    ) -> None:
        if not identity:
            raise ValueError("a candidate needs an identity: the name of its pod")
        self._cluster = cluster
        self._clock = clock
        self._rng = rng
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._times = times
        self._on_started = on_started or _nothing
        self._on_stopped = on_stopped or _nothing
        self._observed: Observed | None = None
        self._renewed_at_s: float | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this process leads; writes ask `may_write`, which ends earlier."""
        return self._renewed_at_s is not None

    @property
    def holder(self) -> str:
        """Who held the lease when it was last read; empty where unknown or nobody."""
        return self._observed.lease.spec.holder_identity if self._observed else ""

    def may_write(self) -> bool:
        """True only while a write sent now is over before our leadership can be."""
        if self._renewed_at_s is None:
            return False
        times = self._times
        return (
            self._clock.monotonic() < self._renewed_at_s + times.renew_deadline_s - times.request_deadline_s
        )

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, run `lead` while it is ours, wait again when it is lost.

        Returns when `lead` returns; raises what it raises. The lease is given back on return, error and
        cancellation, after `lead` has ended.
        """
        while True:
            await self._acquire()
            try:
                self._on_started()
                await self._lead(lead)
                return
            except _LeadershipLost as lost:
                _log.warning("leadership lost", lease=self._name, identity=self._identity, why=str(lost))
            finally:
                # Still set on a clean end, an error or a cancellation; a lost lease is not ours to give back.
                is_held = self.is_leader
                self._renewed_at_s = None
                self._on_stopped()
                if is_held:
                    await self._release()
            await self._pause()

    async def _acquire(self) -> None:
        while not await self._try_to_take():
            await self._pause()
        _log.info("leading", lease=self._name, identity=self._identity)

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                keepers = [
                    group.create_task(self._keep_renewing()),
                    group.create_task(self._stop_at_deadline()),
                ]
                await lead()
                for keeper in keepers:
                    keeper.cancel()
        except BaseExceptionGroup as failures:
            others = [e for e in failures.exceptions if not isinstance(e, _LeadershipLost)]
            raise (others or failures.exceptions)[0] from None

    async def _keep_renewing(self) -> None:
        while True:
            await self._pause()
            if not await self._try_to_take() and self.holder not in ("", self._identity):
                self._lose(f"{self.holder} holds the lease")

    async def _stop_at_deadline(self) -> None:
        """Ends leadership on time even while a renewal hangs."""
        while True:
            renewed_at_s = self._renewed_at_s
            if renewed_at_s is None:
                raise _LeadershipLost("the lease was not ours")
            left_s = renewed_at_s + self._times.renew_deadline_s - self._clock.monotonic()
            if left_s <= 0:
                self._lose(f"no renewal succeeded for {self._times.renew_deadline_s:g} s")
            await self._clock.sleep(left_s)

    def _lose(self, why: str) -> None:
        self._renewed_at_s = None
        raise _LeadershipLost(why)

    async def _try_to_take(self) -> bool:
        """Take or renew the lease where that is allowed; True where our write was confirmed."""
        try:
            observed = self._observed if self.is_leader and self._observed else await self._read()
            for _ in range(2):
                if claim_on(observed, self._identity, self._times, self._clock.monotonic()) == "held":
                    return False
                started_s = self._clock.monotonic()
                try:
                    lease = await self._write(observed.lease, self._record(observed.lease))
                except (Conflict, NotFound):
                    # Somebody wrote in between (perhaps ourselves, with an answer that got lost), or the
                    # lease was deleted: look again, and try once more if it still may be ours.
                    observed = await self._read()
                else:
                    self._observed = Observed(lease, self._clock.monotonic())
                    self._renewed_at_s = started_s
                    return True
        except ClusterError as error:
            _log.warning("lease not written", lease=self._name, identity=self._identity, why=str(error))
        return False

    async def _read(self) -> Observed:
        try:
            lease = await self._cluster.get(LEASES, self._name, self._namespace)
        except NotFound:
            # Empty: taking it is one and the same step for a new lease and for a released one.
            body = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": {}}
            lease = await self._cluster.create(LEASES, body, self._namespace)
        self._observed = observe(self._observed, lease, self._clock.monotonic())
        return self._observed

    def _record(self, lease: Lease) -> dict[str, Any]:
        now = micro_time(self._clock.now())
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._times.lease_s),
            "renewTime": now,
        }
        if lease.spec.holder_identity != self._identity:
            spec |= {"acquireTime": now, "leaseTransitions": lease.spec.lease_transitions + 1}
        return spec

    async def _write(self, lease: Lease, spec: dict[str, Any]) -> Lease:
        body = {"metadata": {"resourceVersion": lease.metadata.resource_version}, "spec": spec}
        return await self._cluster.patch(LEASES, self._name, Patch(PatchType.MERGE, body), self._namespace)

    async def _release(self) -> None:
        """Give the lease back so that the next leader need not wait. Best effort."""
        # A null removes the holder; the server refuses an empty one.
        spec = {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": micro_time(self._clock.now())}
        try:
            # Read first: a renewal that was cut off may or may not have changed the version.
            observed = await self._read()
            if observed.lease.spec.holder_identity == self._identity:
                lease = await self._write(observed.lease, spec)
                self._observed = Observed(lease, self._clock.monotonic())
                _log.info("lease released", lease=self._name, identity=self._identity)
        except ClusterError as error:
            _log.warning("lease not released", lease=self._name, identity=self._identity, why=str(error))

    async def _pause(self) -> None:
        await self._clock.sleep(self._times.retry_s * (1 + JITTER * self._rng.random()))


def _nothing() -> None:
    return None
