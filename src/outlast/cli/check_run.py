"""The imperative part of `outlast check`: the real sources of this machine, one look, one page printed."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from outlast.adapters.clock import SystemClock
from outlast.adapters.linux.kernel_log import DevKmsg
from outlast.adapters.linux.machine import LinuxMachine
from outlast.adapters.linux.pci import SysfsPciBus
from outlast.adapters.nvml.reader import NvmlReader
from outlast.agent.look import Found, Look, ReadOnlyFile
from outlast.agent.sources import Places, build
from outlast.cli import UserError
from outlast.cli.check_page import CheckPage, NoSuchGpu, page
from outlast.health.catalogue import Catalogue
from outlast.health.verdict import Settings


@dataclass(frozen=True, slots=True)
class Request:
    """The command line, as data."""

    level: str
    as_json: bool
    gpus: tuple[str, ...]
    deadline_s: float
    fail_on_unknown: bool
    settle_s: float
    places: Places
    kernel_log: Path
    state_dir: Path
    settings: Settings
    catalogue: Catalogue


async def run(request: Request) -> int:
    """Look, print, and return the exit code. Raises UserError for a GPU that is not here."""
    clock = SystemClock()
    start_s = clock.monotonic()
    machine = LinuxMachine(request.places.host_root)
    polled = build(request.places, clock)
    look = Look(
        machine=machine,
        pci=SysfsPciBus(request.places.host_root),
        gpu_reader=NvmlReader(clock=clock, proc=request.places.proc_root),
        kernel_log=DevKmsg(
            state=ReadOnlyFile(request.state_dir / "kernel-log.json"),
            boot_id=machine.facts().boot_id,
            clock=clock,
            path=request.kernel_log,
        ),
        polled=polled,
        memory=ReadOnlyFile(request.state_dir / "judge.json").load(),
        settings=request.settings,
        catalogue=request.catalogue,
        clock=clock,
        deadline_s=request.deadline_s,
        settle_s=request.settle_s,
    )
    found = await look.run()
    for source in polled:
        await source.surveyor.aclose()
    answer = _page(request, found, clock, start_s)
    if request.as_json:
        _print_json(answer)
    else:
        from outlast.cli.check_screen import console, show

        show(console(), answer)
    return answer.exit_code


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
