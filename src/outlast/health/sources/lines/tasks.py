"""The kernel itself and what it runs: panics, lockups, stuck tasks, memory and tables that ran out.

Formats of kernel/{panic,hung_task,watchdog}.c, kernel/rcu, mm/oom_kill.c, fs/file_table.c and net/.
A memory limit of a cgroup is a workload's own; only running out of the node's memory is the node's.
"""

from __future__ import annotations

import re
from typing import Final

from outlast.health.sources.lines import START, SUBJECT_MAX, Line, count, rule

_HUNG: Final = re.compile(
    rf"{START}INFO: task (?P<task>.{{1,32}}?):\d{{1,10}} blocked (?:in I/O wait )?for more than \d"
)
_SOFT: Final = re.compile(
    rf"{START}(?:NMI )?(?:watchdog: )?BUG: soft lockup - CPU#(?P<cpu>\d{{1,5}}) stuck for \d{{1,9}}s! "
    r"\[(?P<task>.{1,32}?):\d{1,10}\]"
)
_HARD: Final = re.compile(
    rf"{START}(?:NMI )?(?:watchdog: )?(?:CPU\d{{1,5}}: )?(?:BUG: )?(?:NMI )?"
    r"Watchdog detected (?:hard )?LOCKUP on "
)
_RCU: Final = re.compile(
    rf"{START}(?:rcu: )?INFO: (?P<flavour>rcu\w{{0,24}}) (?:self-)?detected (?:expedited )?stalls? "
)
_PANIC: Final = re.compile(rf"{START}(?:---\[ end )?Kernel panic - not syncing(?:: (?P<why>.{{1,64}}))?")
_BUG: Final = re.compile(
    rf"{START}(?:BUG: unable to handle |BUG: kernel NULL pointer|kernel BUG at \S|Unable to handle kernel )"
)
_DIED: Final = re.compile(
    rf"{START}(?:Oops|Internal error|general protection fault|invalid opcode|divide error|stack segment"
    r"|double fault|int3|kernel stack overflow|traps: PANIC)\b.{0,100}?\[#\d{1,4}\]"
)
_STATE: Final = re.compile(
    rf"{START}BUG: (?:workqueue lockup|Bad page (?:state|map|cache)|Bad rss-counter|scheduling while atomic)"
)
_OOM: Final = re.compile(
    rf"{START}(?P<group>Memory cgroup out|Out) of memory(?: \(oom_kill_allocating_task\))?: "
    r"Kill(?:ed)? process \d{1,10} \((?P<task>[^)\n]{1,64})\)"
)
_OOM_EVENT: Final = re.compile(rf"{START}oom-kill:constraint=CONSTRAINT_(?P<limit>[A-Z_]{{1,32}})\b")
_OOM_TASK: Final = re.compile(r",task=(?P<task>.{1,64}?),pid=\d")
_FILES: Final = re.compile(rf"{START}VFS: file-max limit \d{{1,20}} reached")
_CONNTRACK: Final = re.compile(
    rf"{START}(?:[ni][fp]_conntrack: ){{1,2}}(?:[\w ]{{1,32}}: )?table full, dropping packet"
)
_NEIGHBOURS: Final = re.compile(rf"{START}neighbour: \w{{1,24}}: neighbor table overflow")
_SUPPRESSED: Final = re.compile(
    rf"{START}(?P<what>[\w.-]{{1,64}}): (?P<count>\d{{1,10}}) callbacks suppressed"
)


def _plain(kind: str, found: re.Match[str] | None, subject: str = "") -> Line | None:
    return Line(kind=kind, start=found.start(), subject=subject[:SUBJECT_MAX]) if found else None


def hung(text: str) -> Line | None:
    """A task that has not run for minutes."""
    found = _HUNG.search(text)
    return _plain("task/hung", found, found["task"]) if found else None


def bug(text: str) -> Line | None:
    """Soft lockups, and places where the kernel found itself in an impossible state."""
    if found := _SOFT.search(text):
        # By processor: after a pause of its virtual machine each of them says so once, and none is stuck.
        return Line(
            kind="task/soft-lockup", start=found.start(), device=f"CPU {found['cpu']}", subject=found["task"]
        )
    if found := _STATE.search(text):
        return _plain("kernel/warning", found)
    return _plain("kernel/oops", _BUG.search(text))


def died(text: str) -> Line | None:
    """The numbered line of an oops; user space's own faults have no number."""
    return _plain("kernel/oops", _DIED.search(text))


def hard(text: str) -> Line | None:
    """A processor that takes no interrupts."""
    return _plain("task/hard-lockup", _HARD.search(text))


def rcu(text: str) -> Line | None:
    """A processor that did not let go for long."""
    found = _RCU.search(text)
    return _plain("task/rcu-stall", found, found["flavour"]) if found else None


def panic(text: str) -> Line | None:
    """The kernel stops."""
    found = _PANIC.search(text)
    return _plain("kernel/panic", found, found["why"] or "") if found else None


def out_of_memory(text: str) -> Line | None:
    """A process was killed for memory: by its own limit, or because the node had none left."""
    if found := _OOM.search(text):
        return _killed(found, found["task"], own_limit=found["group"].startswith("Memory"))
    if found := _OOM_EVENT.search(text):
        task = _OOM_TASK.search(text)
        return _killed(found, task["task"] if task else "", own_limit=found["limit"] != "NONE")
    return None


def _killed(found: re.Match[str], task: str, *, own_limit: bool) -> Line:
    # A workload's own limit is about the workload, so it joins no fault of the node either.
    return Line(
        kind="memory/oom-cgroup" if own_limit else "memory/oom",
        start=found.start(),
        device="workload" if own_limit else "",
        subject=task[:SUBJECT_MAX],
    )


def tables(text: str) -> Line | None:
    """Tables of the kernel that are full."""
    if found := _CONNTRACK.search(text):
        return _plain("kernel/conntrack-full", found)
    if found := _NEIGHBOURS.search(text):
        return _plain("kernel/neighbours-full", found)
    return _plain("kernel/file-max", _FILES.search(text))


def suppressed(text: str) -> Line | None:
    """The kernel left lines out: counts are lower bounds."""
    found = _SUPPRESSED.search(text)
    if found is None:
        return None
    return Line(
        kind="log/suppressed", start=found.start(), subject=found["what"], occurrences=count(found["count"])
    )


RULES: Final = (
    rule("INFO: task ", "blocked", hung),
    rule("BUG", "BUG BUG:", bug),
    rule("[#", "Oops: [#0] [#1] [#2] [#3] [#4] [#5] [#6] [#7] [#8] [#9]", died),
    rule("LOCKUP", "LOCKUP", hard),
    rule("d stall", "stall stalls", rcu),
    rule("Kernel panic", "panic", panic),
    rule("ut of memory", "memory memory:", out_of_memory),
    rule("oom-kill:", "", out_of_memory),
    rule("file-max", "file-max", tables),
    rule("table full", "table", tables),
    rule("table overflow", "table", tables),
    rule("callbacks suppressed", "suppressed", suppressed),
)
