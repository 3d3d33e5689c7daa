"""What the demo shows in the terminal: a live table there, plain lines in a pipe, one document as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from outlast.cli.pages import STYLES, WIDTH_MAX, console, state_counts
from outlast.model.incident import EndResult
from outlast.remediation.page import State
from outlast.web.views.fleet import Filter, FleetPage, fleet
from outlast.web.wording import count, fault_name, span, words_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from outlast.ports.clock import Clock
    from outlast.sim.demo import Demo, Report
    from outlast.sim.world.chronicle import Line
    from outlast.web.follow import Follower

LINES_SHOWN: Final = 14
FRAME_S: Final = 0.2


class Screen(Protocol):
    """Where the demo tells its story."""

    def begin(self, play: Demo, follower: Follower, *, dashboard: str, kubeconfig: Path) -> None:
        """Everything is up; say how to look at it."""
        ...

    async def run(self, pace: Clock) -> None:
        """Show what happens. Ends by cancellation only."""
        ...

    def end(self, report: Report, *, stays: bool) -> None:
        """Say how it came out."""
        ...


def choose_screen(*, as_json: bool) -> Screen:
    """The screen that fits where our output goes."""
    if as_json:
        return JsonScreen()
    out = console()
    return LiveScreen(out) if out.is_terminal else PlainScreen(out)


class JsonScreen:
    """Nothing until the report."""

    def begin(self, play: Demo, follower: Follower, *, dashboard: str, kubeconfig: Path) -> None:
        """Say where it runs, beside the report."""
        del play, follower
        print(f"dashboard {dashboard or 'not installed'}  KUBECONFIG={kubeconfig}", file=sys.stderr)

    async def run(self, pace: Clock) -> None:
        """Wait."""
        while True:
            await pace.sleep(60)

    def end(self, report: Report, *, stays: bool) -> None:
        """Print the report."""
        del stays
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode(), flush=True)


class PlainScreen:
    """One line a step, without colours: for pipes and logs."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._play: Demo | None = None

    def begin(self, play: Demo, follower: Follower, *, dashboard: str, kubeconfig: Path) -> None:
        """Say how to look at it, then follow."""
        del follower
        self._play = play
        print_opening(self._out, play, dashboard, kubeconfig)
        play.world.chronicle.listeners.append(self._tell)

    def _tell(self, line: Line) -> None:
        print(f"{line.at:%H:%M:%S}  {line.node:<8} {line.text}", flush=True)

    async def run(self, pace: Clock) -> None:
        """Lines come by themselves."""
        while True:
            await pace.sleep(60)

    def end(self, report: Report, *, stays: bool) -> None:
        """Print the summary."""
        assert self._play is not None
        self._play.world.chronicle.listeners.remove(self._tell)
        print_summary(self._out, report, stays=stays)


class LiveScreen:
    """A table that moves."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._play: Demo | None = None
        self._follower: Follower | None = None

    def begin(self, play: Demo, follower: Follower, *, dashboard: str, kubeconfig: Path) -> None:
        """Say how to look at it."""
        self._play, self._follower = play, follower
        print_opening(self._out, play, dashboard, kubeconfig)

    async def run(self, pace: Clock) -> None:
        """Redraw a few times a second."""
        from rich.live import Live

        with Live(self._frame(), console=self._out, auto_refresh=False, transient=True) as live:
            while True:
                live.update(self._frame(), refresh=True)
                await pace.sleep(FRAME_S)

    def _frame(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        assert self._play is not None
        assert self._follower is not None
        now = self._play.clock.now()
        page: FleetPage = fleet(self._follower.state(), Filter(), now)
        head = page.headline
        top = Text()
        top.append(f"{now:%H:%M:%S}  ", "bold")
        if self._play.world.began_s is None:
            top.append("starting: agents make their first check", "dim")
        else:
            top.append(f"minute {self._play.world.minute:.0f}   ", "dim")
            top.append(f"{head.nodes - head.out_of_service} of {head.nodes} nodes in service", "bold")
            for limit in head.limits:
                style = "bold yellow" if limit.reached else "dim"
                top.append(f"   {limit.name} {limit.used} of {limit.most}", style)
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), expand=True)
        table.add_column(no_wrap=True, style="dim")
        table.add_column(no_wrap=True, style="bold")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for line in list(self._play.world.chronicle.lines)[-LINES_SHOWN:]:
            table.add_row(f"{line.at:%H:%M:%S}", line.node, Text(line.text, _style(line.text)))
        parts: list[RenderableType] = [top, state_counts(head)]
        parts += [Text.assemble((f"! {b.title}: ", "bold red"), b.text) for b in head.banners]
        return Group(*parts, Text(), table, Text())

    def end(self, report: Report, *, stays: bool) -> None:
        """Print the lines that scrolled by, and the summary."""
        assert self._play is not None
        for line in self._play.world.chronicle.lines:
            self._out.print(f"{line.at:%H:%M:%S}  {line.node:<8} {line.text}", style=_style(line.text))
        print_summary(self._out, report, stays=stays)


def _style(text: str) -> str:
    for start, state in (
        ("seen", State.ON_HOLD),
        ("waits", State.UNKNOWN),
        ("blocked", State.BLOCKED),
        ("asked", State.DRAINING),
        ("draining", State.DRAINING),
        ("rebooting", State.REPAIRING),
        ("handed", State.REPAIRING),
        ("back in", State.WATCHED),
        ("back with", State.REPAIRING),
        ("closed", State.HEALTHY),
    ):
        if text.startswith(start):
            return STYLES[state]
    return ""


def print_opening(out: Console, play: Demo, dashboard: str, kubeconfig: Path) -> None:
    """What is running, and the three ways to look at it."""
    shape = play.scenario.shape
    out.print(
        f"[bold]{shape.nodes} simulated nodes with {shape.gpus} GPUs each[/bold], a production agent on each "
        f"and the production controller; {play.rate:g} times faster than life."
    )
    if dashboard:
        out.print(f"  dashboard   [bold]{dashboard}[/bold]")
    else:
        out.print("  dashboard   needs more packages: pip install 'outlast\\[web]'")
    out.print(f"  kubectl     [bold]export KUBECONFIG={kubeconfig}[/bold]", soft_wrap=True)
    out.print(f"  terminal    outlast explain NODE --kubeconfig {kubeconfig}", soft_wrap=True)
    out.print()


def print_summary(out: Console, report: Report, *, stays: bool) -> None:
    """How it came out."""
    from rich.table import Table
    from rich.text import Text

    out.print()
    out.print(Text("What happened", "bold"))
    for story in report.stories:
        out.print(
            Text.assemble(
                ("ok    " if story.ok else "NOT   ", "green" if story.ok else "bold red"), story.title
            )
        )
        for problem in story.problems:
            out.print(Text(f"      {problem}", "red"))
    out.print()
    gap = 2 if out.width >= WIDTH_MAX else 1
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim")
    for name in ("NODE", "FAULT", "END", "BLOCK", "CHECKPOINT", "DRAIN", "REPAIR", "OUT FOR"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("NODE", "FAULT", "END") else "right")
    for row in report.incidents:
        times = (row.detect_to_block_s, row.checkpoint_s, row.drain_s, row.repair_s, row.out_s)
        end = words_of(row.end) if row.end in set(EndResult) else f"{words_of(row.end)}, open"
        table.add_row(row.node, fault_name(row.fault), end, *("-" if t is None else span(t) for t in times))
    out.print(table)
    out.print()
    agent, controller = sum(report.agent_writes.values()), sum(report.controller_writes.values())
    good = "green" if not report.violations else "bold red"
    out.print(
        Text(
            f"{count(len(report.violations), 'invariant')} violated in {report.checks:,} looks, "
            f"{count(len(report.false_drains), 'false drain')}, "
            f"{count(len(report.crashes), 'crash', 'crashes')}",
            good,
        )
    )
    for text in (*report.violations, *report.false_drains, *report.crashes):
        out.print(Text(f"  {text}", "red"))
    out.print(
        f"{report.simulated_minutes:g} minutes of {report.nodes} nodes in {report.real_s:g} s: "
        f"{count(report.reboots, 'reboot')}, {count(report.replaced, 'machine')} replaced, "
        f"{controller:,} writes by the controller, {agent:,} by {report.nodes} agents"
    )
    if not report.over:
        out.print(Text("The stories were not over when the time was.", "bold red"))
    if stays:
        out.print()
        out.print("The cluster stays up: look around. Ctrl-C ends it.")
