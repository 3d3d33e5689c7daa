"""The page of `outlast check` on a terminal: worst first, at most 100 columns, a mark beside every colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from outlast.agent.look import Seen
from outlast.cli.check_page import CheckPage
from outlast.cli.check_rows import FaultRow
from outlast.model.health import FaultState, Verdict
from outlast.model.observation.active import Outcome
from outlast.model.plain_text import plain
from outlast.web.wording import span

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH_MAX: Final = 100
EVIDENCE_SHOWN_MAX: Final = 3
SHOWN_MAX: Final = 8

_WORDS: Final = {
    Verdict.HEALTHY: ("+ healthy", "green"),
    Verdict.FAULTY: ("! faulty", "bold red"),
    Verdict.UNKNOWN: ("? unknown", "yellow"),
    None: ("  -", "dim"),
}
_SEEN: Final = {Seen.READ: "+", Seen.PARTLY: "?", Seen.FAILED: "?", Seen.NOTHING: "-"}


def console() -> Console:
    """Standard output: colours on a terminal only, and not with NO_COLOR; 100 columns at most."""
    from rich.console import Console

    own = Console(highlight=False)
    return Console(highlight=False, width=min(own.width, WIDTH_MAX) if own.is_terminal else WIDTH_MAX)


def show(out: Console, page: CheckPage) -> None:
    """The headline and what to do, then the tables that they rest on."""
    from rich.text import Text

    word, style = _WORDS[page.verdict]
    out.print(Text.assemble((word.upper(), style), "  ", (plain(page.headline), "bold")))
    out.print(Text.assemble(("Do: ", "bold"), plain(page.advice)))
    out.print()
    if page.looked_at:
        out.print(Text("Looked at:", "bold"))
        for place in page.looked_at:
            out.print(Text(f"  {plain(place)}"))
        out.print()
    if page.gpus:
        _gpus(out, page)
    _subsystems(out, page)
    for row in page.faults:
        _fault(out, row)
    if page.tests:
        _tests(out, page)
    _sources(out, page)


def _gpus(out: Console, page: CheckPage) -> None:
    from rich.text import Text

    table = _table("GPU", "MODEL", "PCI", "VERDICT", "WHAT")
    for row in page.gpus:
        word, style = _WORDS[row.verdict]
        index = "-" if row.index is None else str(row.index)
        model = plain(row.model).removeprefix("NVIDIA ") or "-"
        cells = (index, model, plain(row.pci_address))
        table.add_row(*map(Text, cells), Text(word, style), Text(plain(row.what)))
    out.print(table)
    out.print()


def _subsystems(out: Console, page: CheckPage) -> None:
    from rich.text import Text

    table = _table("PART", "VERDICT", "REASON", "WHAT")
    for row in page.subsystems:
        word, style = _WORDS[row.verdict] if row.counts else _WORDS[None]
        # A fault has a paragraph of its own below; here its first sentence is enough.
        said = row.message.partition(". ")[0] if row.verdict is Verdict.FAULTY else row.message
        table.add_row(row.subsystem, Text(word, style), Text(plain(row.reason)), Text(plain(said)))
    out.print(table)
    out.print()


def _fault(out: Console, row: FaultRow) -> None:
    from rich.text import Text

    fault = row.fault
    state = "stands" if fault.state is FaultState.OPEN else "seen before, not proven to be over"
    age = f", first seen {span(row.age_seconds)} ago" if row.age_seconds is not None else ""
    style = "bold red" if fault.state is FaultState.OPEN else "yellow"
    out.print(Text.assemble((f"{plain(fault.code)}  {plain(row.reason)}", style), f"  {state}{age}"))
    for evidence in fault.evidence[:EVIDENCE_SHOWN_MAX]:
        out.print(Text(f"  {evidence.source}: {plain(evidence.text)}", "dim"))
    if fault.clears_by:
        out.print(Text(f"  over when: {plain(fault.clears_by)}"))
    out.print(Text(f"  do: {plain(row.advice)}"))
    out.print()


def _tests(out: Console, page: CheckPage) -> None:
    """One row a test; what failed or did not run is named with its reason."""
    from rich.text import Text

    names = {row.pci_address: str(row.index) for row in page.gpus if row.index is not None}
    table = _table("TEST", "PASSED", "WHAT ELSE")
    for test in dict.fromkeys(row.test for row in page.tests):
        rows = [row for row in page.tests if row.test == test]
        passed = sum(1 for row in rows if row.outcome is Outcome.PASSED)
        others: dict[str, list[str]] = {}
        for row in rows:
            if row.outcome is not Outcome.PASSED:
                word = "failed" if row.outcome is Outcome.FAILED else "not tested"
                where = "-".join(names.get(gpu, gpu) for gpu in row.gpus)
                others.setdefault(f"{word}: {row.why}", []).append(where)
        said = [
            f"{text} (GPU {', '.join(where[:SHOWN_MAX])}{' ...' if len(where) > SHOWN_MAX else ''})"
            for text, where in others.items()
        ]
        said += [
            f"slow: GPU {'-'.join(names.get(gpu, gpu) for gpu in row.gpus)} {row.text}"
            for row in page.slow
            if row.test == test
        ]
        style = "bold red" if any(row.outcome is Outcome.FAILED for row in rows) else ""
        table.add_row(
            Text(test), f"{passed} of {len(rows)}", Text("\n".join(plain(line) for line in said), style)
        )
    out.print(table)
    out.print()


def _sources(out: Console, page: CheckPage) -> None:
    from rich.text import Text

    table = _table("SOURCE", "", "WHAT WAS READ")
    for row in page.sources:
        said = plain(row.message) or row.seen.value
        text = said if row.seen in (Seen.READ, Seen.NOTHING) else f"{row.seen.value}: {said}"
        table.add_row(Text(plain(row.name)), _SEEN[row.seen], Text(text))
    out.print(table)
    took = f"Took {span(page.duration_seconds)}; level {page.level}; exit code {page.exit_code}."
    out.print(Text(took, "dim"))


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for number, name in enumerate(columns):
        last = number == len(columns) - 1
        table.add_column(name, header_style="dim", no_wrap=not last, overflow="fold")
    return table
