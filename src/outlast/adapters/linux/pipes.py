"""Pipes to a child: both or none, so that a process without free descriptors loses no more of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

Pipe = tuple[int, int]
"""Its end to read from, and its end to write to."""


def two_pipes() -> tuple[Pipe, Pipe]:
    """Two pipes that no other child inherits. Raises OSError when they cannot be had."""
    first = os.pipe2(os.O_CLOEXEC)
    try:
        return first, os.pipe2(os.O_CLOEXEC)
    except OSError:
        for end in first:
            os.close(end)
        raise


def spawn_heard(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Start a program in a session of its own: its pid, and the ends to read its output and its errors from.

    It reads nothing, and no signal of ours reaches it by our group. Raises OSError when it cannot be started.
    """
    (output, child_output), (errors, child_errors) = two_pipes()
    try:
        pid = os.posix_spawnp(
            arguments[0],
            list(arguments),
            dict(environment),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, child_output, 1),
                (os.POSIX_SPAWN_DUP2, child_errors, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE],
        )
    except BaseException:
        os.close(output)
        os.close(errors)
        raise
    finally:
        os.close(child_output)
        os.close(child_errors)
    os.set_blocking(output, False)
    os.set_blocking(errors, False)
    return pid, output, errors
