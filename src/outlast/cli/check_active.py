"""The active part of `outlast check`: what this machine can test with, on which GPUs, one check at a time."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from outlast.active.plan import Candidate, Capabilities, Level, Plan
from outlast.adapters.active.dcgm import DcgmDiagnostic
from outlast.adapters.active.runner import ActiveRunner, Tell
from outlast.adapters.dcgm.find import find_dcgmi
from outlast.adapters.dcgm.tool import DcgmTool
from outlast.adapters.linux.command import run_command
from outlast.agent.look import Found
from outlast.agent.sources import Places
from outlast.cli.check_rows import GpuRow
from outlast.health.catalogue import Catalogue
from outlast.model.health import Verdict
from outlast.model.observation import GpuReading
from outlast.model.observation.active import ActiveResult, ActiveSurvey, NotTested
from outlast.ports.clock import Clock
from outlast.ports.node import GpuReader

TORCH_DEADLINE_S: Final = 60.0
"""Importing torch from a network disk takes its time."""
LOCK_FILE: Final = "check.lock"

_PROBE: Final = (
    "import torch; print(torch.__version__ if torch.version.cuda and torch.cuda.is_available() else '')"
)


class AnotherCheckRuns(Exception):
    """Somebody tests this machine's GPUs already."""


@contextmanager
def only_check(state_dir: Path) -> Iterator[None]:
    """Hold the lock of active checks. Raises AnotherCheckRuns.

    Whoever may not write the state directory uses one of their own: a second user is seen by the GPUs'
    process lists all the same.
    """
    descriptor = _opened(state_dir / LOCK_FILE)
    if descriptor is None:
        descriptor = _opened(Path(tempfile.gettempdir()) / f"outlast-{os.geteuid()}-{LOCK_FILE}")
    if descriptor is None:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise AnotherCheckRuns from error
    try:
        yield
    finally:
        os.close(descriptor)


def candidates(rows: Sequence[GpuRow], found: Found) -> tuple[Candidate, ...]:
    """The GPUs of these rows, with what speaks against testing them."""
    readings = {gpu.pci_address: gpu for gpu in (found.gpu.gpus if found.gpu else ())}
    return tuple(_candidate(row, readings.get(row.pci_address)) for row in rows if row.verdict is not None)


async def capabilities(level: Level, python: str, places: Places, clock: Clock) -> Capabilities:
    """What there is to test with; looks for torch and DCGM only where the level needs them."""
    if level is Level.QUICK:
        return Capabilities()
    torch, why_not = await _torch(python)
    if torch:
        return Capabilities(torch=torch)
    command = find_dcgmi(places.host_root)
    if command is None:
        return Capabilities(torch_missing=why_not)
    version = await DcgmTool(command, clock=clock).version()
    if version.problem is not None:
        message = f"DCGM does not answer ({version.message or version.problem})"
        return Capabilities(torch_missing=why_not, dcgm_missing=message)
    return Capabilities(torch_missing=why_not, dcgm=version.engine or version.tool)


async def run_plan(
    made: Plan,
    *,
    gpu_reader: GpuReader,
    clock: Clock,
    places: Places,
    catalogue: Catalogue,
    python: str,
    until_s: float,
    tell: Tell,
) -> ActiveSurvey:
    """Run it; what could not run is in the answer too."""
    runner = ActiveRunner(gpu_reader=gpu_reader, clock=clock, python=python, tell=tell)
    results: list[ActiveResult] = list(await runner.run(made, until_s))
    command = find_dcgmi(places.host_root)
    if made.dcgm and command is not None:
        diagnostic = DcgmDiagnostic(
            tool=DcgmTool(command, clock=clock),
            gpu_reader=gpu_reader,
            catalogue=catalogue,
            clock=clock,
            proc=places.proc_root,
            tell=tell,
        )
        left_s = max(1.0, min(made.depth.dcgm_deadline_s, until_s - clock.monotonic()))
        results += await diagnostic.run(made, left_s)
    return ActiveSurvey(level=made.level, results=tuple(results))


def progress() -> Tell:
    """Progress on standard error: one line that changes on a terminal, else one line a test."""
    terminal = sys.stderr.isatty()

    def tell(line: str) -> None:
        if terminal:
            print(f"\r\x1b[K{line[:99]}", end="", file=sys.stderr, flush=True)
        elif not line.endswith("%"):
            print(line, file=sys.stderr, flush=True)

    return tell


def end_progress() -> None:
    """Clear the line that changed."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _candidate(row: GpuRow, reading: GpuReading | None) -> Candidate:
    unfit, why = None, ""
    if row.verdict is not Verdict.HEALTHY or reading is None:
        unfit, why = NotTested.NOT_HEALTHY, f"not healthy before: {row.reason or row.what}"
    elif reading.mig_enabled:
        unfit, why = NotTested.MIG, "it is divided (MIG), and instances are not tested"
    elif reading.process_ids:
        more = f" and {len(reading.process_ids) - 1} more" if len(reading.process_ids) > 1 else ""
        unfit, why = NotTested.GPU_BUSY_FOREIGN, f"process {reading.process_ids[0]}{more} uses it"
    return Candidate(
        address=row.pci_address,
        uuid=row.uuid,
        serial=row.serial,
        model=row.model,
        index=row.index,
        unfit=unfit,
        why=why,
    )


async def _torch(python: str) -> tuple[str, str]:
    """Version of a torch that sees CUDA, or why there is none."""
    try:
        run = await run_command(
            (python, "-I", "-W", "ignore", "-c", _PROBE), deadline_s=TORCH_DEADLINE_S, output_bytes_max=4096
        )
    except OSError as error:
        return "", f"{python} cannot be started: {error.strerror}"
    if run.hung:
        return "", f"torch could not be imported within {TORCH_DEADLINE_S:g} s"
    version = run.output.decode("utf-8", "replace").strip()
    if run.exit_code == 0 and version:
        return version, ""
    if run.exit_code == 0:
        return "", f"the torch of {python} sees no CUDA device"
    return "", f"torch with CUDA is not installed for {python}"


def _opened(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
