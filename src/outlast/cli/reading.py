"""Runs a command that reads the cluster, and turns its end into an exit code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

from outlast.cli import EXIT_UNKNOWN
from outlast.cli.connection import CannotTell


def run(verb: str, work: Coroutine[Any, Any, int]) -> int:
    """The command's exit code; 3 with one sentence when the cluster could not be read."""
    try:
        return asyncio.run(work)
    except CannotTell as error:
        print(f"outlast {verb}: {error}", file=sys.stderr)
        return EXIT_UNKNOWN
