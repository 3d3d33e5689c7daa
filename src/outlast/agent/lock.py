"""One agent per machine: a lock on a file that both would have to share.

During a rollout the old agent may still be ending; the new one waits in silence rather than failing.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

import structlog

from outlast.ports.clock import Clock

log = structlog.get_logger("outlast.agent")

LOCK_POLL_S: Final = 1.0
COMPLAIN_EVERY_POLLS: Final = 60


async def only_agent(path: Path, clock: Clock) -> int | None:
    """Wait until no other agent holds the lock; the descriptor holds it until the process ends.

    None, with a warning, where the directory cannot be written: then nobody guards against a second one.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        log.warning("no lock against a second agent", path=str(path), error=str(error))
        return None
    polls = 0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if polls % COMPLAIN_EVERY_POLLS == 0:
                log.warning("DuplicateAgent: another agent runs on this machine; waiting", path=str(path))
            polls += 1
            await clock.sleep(LOCK_POLL_S)
        else:
            return descriptor
