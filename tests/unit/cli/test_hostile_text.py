"""Text from nodes, pods and people on an operator's terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

from outlast.cli.pages import incident_table, print_explanation
from outlast.model.plain_text import plain
from outlast.remediation.page import ExplainPage, Line, State
from outlast.web.views.incidents import Row

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J",
    "\x9b31m",
    "\u202egnp.exe",
    "[/bold] closes nothing",
    "[link=https://example.org]click[/link]",
    "two\nlines\tand a tab",
    "\ud800",
)


def printed(what: object) -> str:
    out = StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=200, highlight=False)
    if isinstance(what, ExplainPage):
        print_explanation(console, what, NOW)
    else:
        console.print(what)
    return out.getvalue()


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_foreign_text_on_the_explain_page_is_shown_and_not_obeyed(text: str) -> None:
    """No escape sequence, no turned-around text and no markup of a node reaches the terminal."""
    line = Line(head=text, text=text, at=NOW, remark=text, bad=True)
    page = ExplainPage(
        node=f"n{text}",
        state=State.UNKNOWN,
        in_service=True,
        headline=text,
        incident=text,
        opened_at=NOW,
        happened=(line,),
        blocked_by=(line,),
        pods=(line,),
        overrule=(text,),
    )
    out = printed(page)
    assert all(char == "\n" or char.isprintable() for char in out)
    assert plain(text)[:10] in out


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_foreign_text_in_the_table_of_incidents_is_shown_and_not_obeyed(text: str) -> None:
    """A fault's code is text, whatever brackets it has."""
    row = Row(
        name=text,
        node=text,
        state=State.BLOCKED,
        fault=text,
        summary=text,
        step=text,
        blocked_by=text,
        opened_at=NOW,
        lasted="5 min",
        end="",
        observe_only=False,
    )
    out = printed(incident_table([row], "1 open incident"))
    assert all(char == "\n" or char.isprintable() for char in out)
    assert plain(text)[:6] in out
