"""A fake CUDA driver library, compiled from our own C and loaded by the real worker.

    cuda = FakeCuda(tmp_path, nvml.addresses())
    cuda.set("gpu.3.stuck", "4096:3").action("cuInit", "hang")
    ActiveRunner(..., environment=cuda.environment)

Its GPU numbers are those of tests.nvml, whose UUIDs end in them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.left_out import leave_out
from tests.nvml import HOW_TO_GET_A_COMPILER, compiler

SOURCE = Path(__file__).with_name("fake.c")
LIBRARY = "libcuda.so.1"
MEMORY_BYTES = 96 << 20


class FakeCuda:
    """A script for the fake library; every method takes effect at the next call of any worker."""

    def __init__(self, folder: Path, addresses: Sequence[str]) -> None:
        self._script = folder / "cuda.script"
        self._values = {"gpus": ",".join(addresses), "memory": str(MEMORY_BYTES)}
        self.folder = _build().parent
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to load the fake; set it before exec."""
        return {"LD_LIBRARY_PATH": str(self.folder), "OUTLAST_FAKE_CUDA": str(self._script)}

    def set(self, key: str, value: object) -> FakeCuda:
        """A value of the script."""
        self._values[key] = str(value)
        self._write()
        return self

    def action(self, call: str, action: str, *, gpu: int | None = None) -> FakeCuda:
        """What a call does first: ret:N, sleep:MS, hang, segv, dstate:PATH, touch:PATH."""
        return self.set(f"call.{call}" if gpu is None else f"call.{call}.{gpu}", action)

    def _write(self) -> None:
        new = self._script.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self._values.items()))
        new.replace(self._script)


def _build() -> Path:
    """The library, compiled once per source into a cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outlast"
    folder = cache / f"fake-cuda-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}"
    library = folder / LIBRARY
    if not library.exists():
        found = compiler()
        if found is None:
            leave_out("the active tests on a CUDA library of ours", HOW_TO_GET_A_COMPILER)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / LIBRARY
            options = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{LIBRARY}"]
            subprocess.run([found, *options, "-o", built, SOURCE], check=True, timeout=60)
            built.replace(library)
    return library
