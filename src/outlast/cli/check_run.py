"""The imperative part of `outlast check`: the real sources of this machine, one look, one page printed."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outlast.active.plan import Level, plan
from outlast.adapters.clock import SystemClock
from outlast.adapters.linux.machine import LinuxMachine
from outlast.adapters.linux.pci import SysfsPciBus
from outlast.adapters.linux.state_file import ReadOnlyFile
from outlast.adapters.nvml.reader import NvmlReader
from outlast.agent.kernel_source import kernel_source
from outlast.agent.look import Found, Look
from outlast.agent.sources import Places, build
from outlast.cli import UserError
from outlast.cli.check_page import CheckPage, NoSuchGpu, page
from outlast.health.catalogue import Catalogue
from outlast.health.verdict import Settings
from outlast.model.observation.active import ActiveSurvey

LOOK_DEADLINE_S: Final = 60.0
"""For the passive sources, each of which has a shorter one of its own."""


@dataclass(frozen=True, slots=True)
class Request:
    """The command line, as data."""

    level: Level
    as_json: bool
    gpus: tuple[str, ...]
    timeout_s: float | None
    """For all of it; None: by level."""
    python: str
    fail_on_unknown: bool
    settle_s: float
    places: Places
    kernel_log: str
    state_dir: Path
    settings: Settings
    catalogue: Catalogue


async def run(request: Request) -> int:
    """Look, test, print, and return the exit code. Raises UserError for what cannot be done as asked."""
    clock = SystemClock()
    start_s = clock.monotonic()
    machine = LinuxMachine(request.places.host_root)
    polled = build(request.places, clock)
    reader = NvmlReader(clock=clock, proc=request.places.proc_root)
    look = Look(
        machine=machine,
        pci=SysfsPciBus(request.places.host_root),
        gpu_reader=reader,
        kernel_log=kernel_source(
            request.kernel_log,
            state_dir=request.state_dir,
            host_root=request.places.host_root,
            boot_id=machine.facts().boot_id,
            clock=clock,
            read_only=True,
        ),
        polled=polled,
        memory=ReadOnlyFile(request.state_dir / "judge.json").load(),
        settings=request.settings,
        catalogue=request.catalogue,
        clock=clock,
        deadline_s=request.timeout_s or LOOK_DEADLINE_S + request.settle_s,
        settle_s=request.settle_s,
    )
    found = await look.run()
    for source in polled:
        await source.surveyor.aclose()
    looked = _page(request, found, clock, start_s)
    survey = await _test(request, found, looked, reader, clock, start_s)
    if survey is not None:
        looked = _page(request, look.absorb(survey), clock, start_s)
    if request.as_json:
        _print_json(looked)
    else:
        from outlast.cli.check_screen import console, show

        show(console(), looked)
    return looked.exit_code


async def _test(
    request: Request,
    found: Found,
    looked: CheckPage,
    reader: NvmlReader,
    clock: SystemClock,
    start_s: float,
) -> ActiveSurvey | None:
    """Active tests on the GPUs of the page; None where there is none to test."""
    from outlast.cli import check_active

    gpus = check_active.candidates(looked.gpus, found)
    if not gpus:
        return None
    try:
        with check_active.only_check(request.state_dir):
            has = await check_active.capabilities(request.level, request.python, request.places, clock)
            made = plan(request.level, gpus, has)
            spans_s = made.deadline_s + LOOK_DEADLINE_S + request.settle_s
            tell = check_active.progress() if request.level is not Level.QUICK else lambda line: None
            survey = await check_active.run_plan(
                made,
                gpu_reader=reader,
                clock=clock,
                places=request.places,
                catalogue=request.catalogue,
                python=request.python,
                until_s=start_s + (request.timeout_s or spans_s),
                tell=tell,
            )
            check_active.end_progress()
            return survey
    except check_active.AnotherCheckRuns as error:
        if request.level is Level.QUICK:
            return None
        raise UserError(
            "another check tests the GPUs of this machine; wait for it, or use `--level quick`."
        ) from error


def _page(request: Request, found: Found, clock: SystemClock, start_s: float) -> CheckPage:
    try:
        return page(
            found,
            level=request.level,
            host=platform.node(),
            at=clock.now(),
            duration_s=clock.monotonic() - start_s,
            wanted=request.gpus,
            fail_on_unknown=request.fail_on_unknown,
            looked_at=_looked_at(request.places, found),
        )
    except NoSuchGpu as error:
        raise UserError(str(error)) from error


def _looked_at(places: Places, found: Found) -> tuple[str, ...]:
    """Where a GPU would have left a trace."""
    bus = places.host_root / "sys/bus/pci/devices"
    functions = _listed(bus, "*")
    files = _listed(places.host_root / "dev", "nvidia[0-9]*")
    driver = (places.proc_root / "driver/nvidia").is_dir()
    if found.pci is not None and not found.pci.readable:
        pci = f"PCI bus: {found.pci.message}"
    else:
        pci = f"PCI bus ({bus}): {len(functions)} functions, no display function of NVIDIA (vendor 0x10de)"
    return (
        pci,
        f"device files ({places.host_root / 'dev'}/nvidia*): {', '.join(files[:8]) or 'none'}",
        f"driver ({places.proc_root / 'driver/nvidia'}): {'loaded' if driver else 'not loaded'}",
        *(f"{report.name}: {report.message}" for report in found.sources if report.name == "kernel log"),
    )


def _listed(folder: Path, pattern: str) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.glob(pattern))
    except OSError:
        return []


def _print_json(answer: CheckPage) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
