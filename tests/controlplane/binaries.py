"""Finds etcd, the Kubernetes control plane and kubectl; builds what is nowhere to be found.

Order: `KUBEBUILDER_ASSETS`, PATH, our cache, build. A copy of another minor release is not used: the
tests state what *this* API server does. `python -m tests.controlplane.binaries` obtains everything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.controlplane.builder import BuildFailed, Report, build
from tests.controlplane.versions import CACHE_KEY, PROGRAMS, Program

VERSION_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Missing:
    """A program that is not here, and how to get it."""

    program: str
    how: str


def cache_folder() -> Path:
    """Where our own builds live; keyed by the versions, so an upgrade never meets an old file."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "outlast" / "controlplane" / CACHE_KEY


def find(program: Program) -> Path | None:
    """The program if it is on this machine in the right version, else None; never builds."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    candidates = [Path(assets) / program.name] if assets else []
    on_path = shutil.which(program.name)
    if on_path:
        candidates.append(Path(on_path))
    candidates.append(cache_folder() / program.name)
    return next((path for path in candidates if path.exists() and _is_ours(program, path)), None)


def missing(programs: Sequence[Program] = PROGRAMS) -> list[Missing]:
    """What is not on this machine; each with the way to get it."""
    how = "run `python -m tests.controlplane.binaries` (needs Go or pip, and the Go module proxy)"
    return [Missing(f"{p.name} {p.version}", how) for p in programs if find(p) is None]


def obtain(programs: Sequence[Program] = PROGRAMS, report: Report = print) -> dict[str, Path]:
    """Path of each program by name, building what is missing. Raises BuildFailed."""
    absent = [program for program in programs if find(program) is None]
    if absent:
        report(
            f"control plane: {', '.join(p.name for p in absent)} not found, building into {cache_folder()}"
        )
        build(absent, cache_folder(), report)
    found = {program.name: find(program) for program in programs}
    broken = [name for name, path in found.items() if path is None]
    if broken:
        raise BuildFailed(f"built, but does not answer with its version: {', '.join(broken)}")
    return {name: path for name, path in found.items() if path is not None}


@cache
def _is_ours(program: Program, path: Path) -> bool:
    try:
        answer = subprocess.run(
            [path, *program.version_arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=VERSION_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and program.reads_as_ours(answer.stdout)


def main() -> int:
    """Obtain everything and print where it is."""
    try:
        found = obtain(report=lambda line: print(f"  {line}", flush=True))
    except BuildFailed as error:
        print(f"control plane: {error}", file=sys.stderr)
        return 1
    for name, path in found.items():
        print(f"{name}: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
