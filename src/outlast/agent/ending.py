"""How the agent's process ends: at once, whatever hangs.

Nothing is joined: a child in uninterruptible sleep would hold us for ever. What must outlive us is
already on disk.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any, Final, NoReturn

import structlog

log = structlog.get_logger("outlast.agent")

EXIT_GRACE_S: Final = 1.0
"""After SIGTERM: time for the last save, then the process ends whatever still runs."""


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or SIGTERM or SIGINT comes; then cancel it, for at most the grace."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    stopping = False

    def stop() -> None:
        nonlocal stopping
        stopping = True
        loop.call_later(EXIT_GRACE_S, os._exit, 0)
        if main is not None:
            main.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await work
    except asyncio.CancelledError:
        if not stopping:
            raise
        log.info("agent ends")


def leave(code: int) -> NoReturn:
    """End the process without joining anything."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
