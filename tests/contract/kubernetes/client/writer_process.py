"""A process that leads and writes as fast as it may; a test stops it in mid-work.

Arguments: server address, token, CA file or `-`, namespace. It prints a line before each write and one
when leadership ends.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random

from outlast.adapters.clock import SystemClock
from outlast.adapters.kubernetes import Access, KubernetesCluster, LeaderElection, access_with_token
from outlast.model.cluster import LEASES
from outlast.ports.cluster import Patch, PatchType
from tests.contract.kubernetes.client.test_lease import TIMES


async def main(access: Access, namespace: str) -> None:
    async with KubernetesCluster(access, clock=SystemClock(), rng=Random(2)) as cluster:
        election = LeaderElection(
            cluster,
            clock=SystemClock(),
            rng=Random(3),
            namespace=namespace,
            identity="child",
            name="leader",
            times=TIMES,
            on_stopped=lambda: print("stopped", flush=True),
        )

        async def lead() -> None:
            number = 0
            while True:
                if election.may_write():
                    number += 1
                    print(f"write {number}", flush=True)
                    body = {"metadata": {"annotations": {"by": "child", "number": str(number)}}}
                    await cluster.patch(LEASES, "work", Patch(PatchType.MERGE, body), namespace)
                await asyncio.sleep(0.005)

        await election.run(lead)


if __name__ == "__main__":
    url, token, ca_file, space = sys.argv[1:]
    ca = "" if ca_file == "-" else Path(ca_file).read_text()
    asyncio.run(main(access_with_token(url, token, ca_pem=ca), space))
