"""Waiting for a file descriptor on the running loop, without a transport around it."""

from __future__ import annotations

import asyncio


async def readable(fd: int) -> None:
    """Return when a read of `fd` would not block (its end and its errors included)."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, wake)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
