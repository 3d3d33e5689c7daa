"""The floor for `burst`: the same JSON Patch for the same nodes, prepared before, with so many in flight.

    python -m benchmarks.bare_loop REQUESTS IN_FLIGHT

REQUESTS is a JSON file: url, ca_file, headers, and a list of [path, body]. It says "ready", waits for a
line on its input, sends everything, and says its processor time. Answers are read and thrown away, except
for errors.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from pathlib import Path

import aiohttp


async def _send(plan: dict[str, object], in_flight: int) -> None:
    context = ssl.create_default_context(cafile=str(plan["ca_file"]))
    connector = aiohttp.TCPConnector(limit=in_flight, ssl=context)
    headers = {str(name): str(value) for name, value in plan["headers"]}  # type: ignore[attr-defined]
    headers["Content-Type"] = "application/json-patch+json"
    waiting = iter([(str(path), body.encode()) for path, body in plan["requests"]])  # type: ignore[attr-defined]
    async with aiohttp.ClientSession(str(plan["url"]), connector=connector, headers=headers) as session:

        async def worker() -> None:
            for path, body in waiting:
                async with session.patch(path, data=body) as response:
                    answer = await response.read()
                    if response.status != 200:
                        raise RuntimeError(f"{path}: {response.status} {answer[:300]!r}")

        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        begun_s = time.process_time()
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(worker())
        print(f"{time.process_time() - begun_s:.3f}", flush=True)


if __name__ == "__main__":
    asyncio.run(_send(json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])))
