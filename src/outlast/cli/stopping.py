"""Ctrl-C and SIGTERM as an event, so that a long-running command ends in order and without a traceback."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def stop_event() -> AsyncIterator[asyncio.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second SIGINT ends the process as usual."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        loop.remove_signal_handler(signal.SIGINT)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield stopped
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
