"""The Lease that says this agent is alive. Budgeted apart from health: at 10,000 nodes and the default
of one renewal a minute it costs the API server 167 small writes a second, and a silent agent shows
after `lease_duration_s`.
"""

from __future__ import annotations

from random import Random
from typing import Any

from outlast.agent.options import JITTER, Options
from outlast.agent.patience import Patience
from outlast.agent.telemetry import Telemetry
from outlast.model.cluster import LEASES
from outlast.model.names import AGENT_LEASE_PREFIX
from outlast.ports.clock import Clock
from outlast.ports.cluster import AlreadyExists, Cluster, ClusterError, NotFound, Patch, PatchType


class LeaseRenewer:
    """Renews this node's Lease for ever."""

    def __init__(
        self, cluster: Cluster, options: Options, clock: Clock, rng: Random, telemetry: Telemetry
    ) -> None:
        self._cluster = cluster
        self._telemetry = telemetry
        self._options = options
        self._clock = clock
        self._rng = rng
        self.name = f"{AGENT_LEASE_PREFIX}{options.node_name}"

    async def run(self) -> None:
        """Renew for ever; a failure is retried sooner than the next renewal."""
        patience = Patience("Lease", self._options.node_name, self._clock, self._rng)
        while True:
            try:
                await self._renew()
            except ClusterError as error:
                self._telemetry.wrote("lease", type(error).__name__)
                await self._clock.sleep(patience.failed(error))
            else:
                patience.succeeded()
                self._telemetry.wrote("lease", "ok")
                spread = 1 + JITTER * (2 * self._rng.random() - 1)
                await self._clock.sleep(self._options.lease_renew_s * spread)

    async def _renew(self) -> None:
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, Any] = {
            "holderIdentity": self._options.node_name,
            "leaseDurationSeconds": self._options.lease_duration_s,
            "renewTime": now,
        }
        namespace = self._options.namespace
        try:
            await self._cluster.patch(
                LEASES, self.name, Patch(PatchType.MERGE, {"spec": spec}), namespace=namespace
            )
        except NotFound:
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.name,
                "metadata": {"name": self.name, "namespace": namespace},
                "spec": {**spec, "acquireTime": now},
            }
            try:
                await self._cluster.create(LEASES, body, namespace)
            except AlreadyExists:
                return
