"""Our client, connected to each of the two servers in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest_asyncio

from outlast.adapters.clock import SystemClock
from outlast.adapters.kubernetes import KubernetesCluster, access_with_token
from tests.contract.kubernetes.conftest import Server


@pytest_asyncio.fixture
async def cluster(server: Server) -> AsyncIterator[KubernetesCluster]:
    """A client of the server under test; unknown fields are refused, so that no test writes nonsense."""
    ca = server.access.ca_file.read_text() if server.access.ca_file else ""
    access = access_with_token(server.access.url, server.access.token, ca_pem=ca)
    async with KubernetesCluster(
        access, clock=SystemClock(), rng=Random(1), field_validation="Strict"
    ) as connected:
        yield connected
