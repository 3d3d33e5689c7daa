"""One row per figure, and the page that shows them.

The page is docs/benchmarks.md: every section is replaced as a whole by the benchmark that owns it, so a
partial run (`python -m benchmarks kernel_line`) leaves the other figures with their own date and commit.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"

HEADER = """# Benchmarks

Written by `make bench`; each section says when, at which commit and on which machine it was measured.
Ratios and medians travel between machines, absolute figures do not. A missed goal is marked and explained.
"Load of others" is what else ran on the machine: above 0.5 times are upper bounds.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `met` is None where there is no goal."""

    figure: str
    value: str
    goal: str = ""
    met: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """The result of one benchmark."""

    name: str
    title: str
    method: str
    rows: tuple[Row, ...]
    peer: str = ""


def machine() -> str:
    """Processor, cores and memory, as the kernel tells them."""
    cpu = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        f"{cpu}, {len(os.sched_getaffinity(0))} cores, {memory_bytes / 2**30:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}"
    )


def commit() -> str:
    """Short id of the checked-out commit, with a mark when the tree differs from it beside this page."""

    def git(*arguments: str) -> str:
        answer = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=False, cwd=PAGE.parent.parent
        )
        return answer.stdout.strip()

    short = git("rev-parse", "--short=9", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!docs/{PAGE.name}")
    return f"{short or 'no commit'}{'-dirty' if changed else ''}"


def render(section: Section, load: float) -> str:
    """The Markdown of one section; `load` is the machine's one-minute load before it began."""
    lines = [
        f"<!-- begin {section.name} -->",
        f"## {section.title}",
        "",
        section.method.strip(),
        "",
        "| figure | measured | goal | |",
        "|---|---|---|---|",
    ]
    for row in section.rows:
        mark = {True: "met", False: "**missed**", None: ""}[row.met]
        note = "; ".join(part for part in (mark, row.note) if part)
        lines.append(f"| {row.figure} | {row.value} | {row.goal} | {note} |")
    if section.peer:
        lines += ["", section.peer.strip()]
    lines += [
        "",
        f"*{datetime.now(UTC):%Y-%m-%d}, commit {commit()}, {machine()}, load of others before: {load:.1f}.*",
        f"<!-- end {section.name} -->",
        "",
    ]
    return "\n".join(lines)


def write(section: Section, load: float) -> None:
    """Replace this section of the page, or append it."""
    page = PAGE.read_text() if PAGE.exists() else HEADER
    text = render(section, load)
    pattern = re.compile(
        rf"<!-- begin {re.escape(section.name)} -->.*?<!-- end {re.escape(section.name)} -->\n", re.S
    )
    page = pattern.sub(lambda _: text, page) if pattern.search(page) else page.rstrip() + "\n\n" + text
    PAGE.write_text(page)
