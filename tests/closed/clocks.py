"""Clocks of another process that a test can step, by a library of ours that is preloaded into it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from tests.left_out import leave_out
from tests.nvml import HOW_TO_GET_A_COMPILER, compiler

SOURCE = Path(__file__).with_name("clocks.c")


class Clocks:
    """`step` takes effect at the next look at a clock."""

    def __init__(self, folder: Path) -> None:
        self._script = folder / "clocks"
        self._wall_s = self._steady_s = 0.0
        self._library = _build()
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """For the process whose clocks these are."""
        return {"LD_PRELOAD": str(self._library), "OUTLAST_CLOCKS": str(self._script)}

    def step(self, *, wall_s: float = 0.0, steady_s: float = 0.0) -> None:
        """Move the wall clock, or the clocks that only run forward, by so much more."""
        self._wall_s += wall_s
        self._steady_s += steady_s
        self._write()

    def _write(self) -> None:
        new = self._script.with_suffix(".new")
        new.write_text(f"{self._wall_s:.0f} {self._steady_s:.0f}\n")
        new.replace(self._script)


def _build() -> Path:
    """Compiled once per source into a cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outlast"
    folder = cache / f"clocks-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}"
    library = folder / "clocks.so"
    if not library.exists():
        found = compiler()
        if found is None:
            leave_out("the tests with clocks that step", HOW_TO_GET_A_COMPILER)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / library.name
            options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
            subprocess.run([found, *options, "-o", built, SOURCE, "-ldl"], check=True, timeout=60)
            built.replace(library)
    return library
