"""Pages for the terminal: the same data as on the web, laid out in at most 100 columns.

Colour only on a terminal, and never as the only carrier of meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from outlast.model.plain_text import plain
from outlast.remediation.page import ExplainPage, Line, State
from outlast.web.views.fleet import Headline
from outlast.web.views.incidents import Row
from outlast.web.wording import ago, clock_time, clock_time_ms, count

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDTH_MAX: Final = 100

STYLES: Final = {
    State.HEALTHY: "green",
    State.WATCHED: "cyan",
    State.BLOCKED: "yellow",
    State.DRAINING: "bold yellow",
    State.REPAIRING: "magenta",
    State.ON_HOLD: "bold red",
    State.UNKNOWN: "dim",
}
MARKS: Final = {
    State.HEALTHY: "+",
    State.WATCHED: "o",
    State.BLOCKED: "-",
    State.DRAINING: "v",
    State.REPAIRING: "~",
    State.ON_HOLD: "!",
    State.UNKNOWN: "?",
}


def console() -> Console:
    """Standard output: colours on a terminal only, 100 columns at most."""
    from rich.console import Console

    plain = Console(highlight=False, soft_wrap=False)
    return Console(highlight=False, width=min(plain.width, WIDTH_MAX) if plain.is_terminal else WIDTH_MAX)


def print_explanation(out: Console, page: ExplainPage, now: datetime) -> None:
    """The explain page."""
    from rich.text import Text

    head = Text(no_wrap=True)
    head.append(plain(page.node), "bold")
    head.append(f"   {plain(page.headline)}", STYLES[page.state])
    out.print(head)
    if page.incident:
        end = f", closed {clock_time(page.ended_at)}" if page.ended_at else ""
        opened = f"opened {clock_time(page.opened_at)} UTC, {ago(page.opened_at, now)}"
        policy = f", policy {page.policy}" if page.policy else ""
        out.print(Text(plain(f"incident {page.incident}, {opened}{end}{policy}"), "dim"))
    out.print()
    sections = (
        ("What happened", page.happened),
        ("What outlast did", page.did),
        ("Why this and not another", page.why),
        ("Blocked by", page.blocked_by),
        ("Pods still to move", page.pods),
        ("Next", page.next),
    )
    for title, lines in sections:
        if lines:
            _print_section(out, title, lines)
    if page.overrule:
        out.print(Text("Overrule", "bold"))
        for command in page.overrule:
            out.print(Text(f"  {plain(command)}"), soft_wrap=True)


def _print_section(out: Console, title: str, lines: Sequence[Line]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    timed = any(line.at is not None for line in lines)
    remarked = any(line.remark for line in lines)
    grid = Table.grid(padding=(0, 2, 0, 0), expand=remarked)
    if timed:
        grid.add_column(no_wrap=True, style="dim")
    grid.add_column(ratio=1 if remarked else None)
    if remarked:
        grid.add_column(justify="right", style="dim", max_width=30)
    for line in lines:
        text = Text()
        text.append(("! " if line.bad else "") + plain(line.head), "bold red" if line.bad else "bold")
        if line.text:
            text.append(f"  {plain(line.text)}")
        cells: list[RenderableType] = [text]
        if timed:
            cells.insert(0, clock_time_ms(line.at))
        if remarked:
            cells.append(Text(plain(line.remark)))
        grid.add_row(*cells)
    out.print(Text(title, "bold"))
    out.print(Padding(grid, (0, 0, 1, 2)))


def print_headline(out: Console, head: Headline) -> None:
    """The numbers over the fleet."""
    from rich.text import Text

    for banner in head.banners:
        out.print(Text.assemble((f"! {plain(banner.title)}: ", "bold red"), plain(banner.text)))
    text = Text()
    text.append(f"{head.nodes - head.out_of_service:,} of {head.nodes:,} nodes in service", "bold")
    text.append(f"   {head.availability_percent:.2f} % of node time in the last hour")
    text.append(f"   {head.gpus_found:,} of {head.gpus_expected:,} GPUs answer")
    out.print(text)
    out.print(state_counts(head))
    for limit in head.limits:
        full = "  limit reached" if limit.reached else ""
        said = f"{limit.name}: {limit.used} of {limit.most}{full}   policy {limit.policy}"
        out.print(Text(plain(said), "dim"))
    if head.observe_only:
        out.print(Text("No policy enforces: outlast judges and explains, and changes nothing.", "dim"))


def state_counts(head: Headline) -> RenderableType:
    """How many nodes are in each state, in one line."""
    from rich.text import Text

    text = Text()
    for found in head.counts:
        if found.nodes or found.state is State.HEALTHY:
            text.append(f"{MARKS[found.state]} {found.state.value} {found.nodes:,}   ", STYLES[found.state])
    return text


def incident_table(rows: Sequence[Row], title: str) -> RenderableType:
    """Incidents as a table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), title_style="bold")
    for name in ("NODE", "STATE", "FAULT", "STEP", "BLOCKED BY", "FOR"):
        table.add_column(name, no_wrap=name in ("NODE", "STATE", "FOR"), header_style="dim")
    for row in rows:
        word = row.state.value if row.state is not None else row.end
        style = STYLES[row.state] if row.state is not None else ""
        mark = f"{MARKS[row.state]} " if row.state is not None else ""
        foreign = (Text(plain(text)) for text in (row.fault, row.step, row.blocked_by, row.lasted))
        table.add_row(Text(plain(row.node)), Text(mark + word, style), *foreign)
    return table


def how_many(number: int, noun: str) -> str:
    """A counted noun for a title."""
    return count(number, noun)
