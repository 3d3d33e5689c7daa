"""`outlast replay FILE...`: recorded kernel logs through the agent's judge, and what it would have said."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from outlast.cli import EXIT_FAULT, EXIT_OK, EXIT_UNKNOWN, UserError
from outlast.cli.catalogues import CatalogueFiles

if TYPE_CHECKING:
    from datetime import datetime

    from outlast.adapters.linux.recorded_log import RecordedLog
    from outlast.health.replay import Replay, Report

PROGRESS_EVERY_S = 0.5
PROGRESS_AFTER_S = 1.0
SINCE_MAX = 40


def replay(
    *files: Annotated[
        str, Parameter(help="Kernel logs in their order; - is standard input.", allow_leading_hyphen=True)
    ],
    policy: Annotated[
        Path | None, Parameter(help="A RemediationPolicy as YAML; default: its defaults.")
    ] = None,
    gpu: Annotated[str, Parameter(help="Show only this GPU, by PCI address.")] = "",
    since: Annotated[
        str, Parameter(help="Judge only lines from this date on, such as 2026-11-30T12:00.")
    ] = "",
    json: Annotated[bool, Parameter(help="Print one JSON document.")] = False,
    catalogues: CatalogueFiles = None,
) -> int:
    """Judge recorded kernel logs: which faults they show, what led to them, what a policy would have done.

    Reads dmesg in all its forms, /dev/kmsg, journalctl (also as JSON or export), syslog; gzip, xz, bzip2.
    Exit code 0: no fault. 1: faults were found. 2: wrong usage. 3: none, but not all could be read as a log.

    Example: journalctl -k -o json | outlast replay -
    """
    from outlast.cli import replay_page
    from outlast.health.catalogue import CatalogueError, load
    from outlast.health.replay import Replay
    from outlast.health.sources.facts import ADDRESS, normalise

    if wrong := [name for name in files if name.startswith("-") and name != "-"]:
        raise UserError(f"there is no option {wrong[0][:40]}; see `outlast replay --help`.")
    if not files:
        raise UserError("which log? Name a file, or - for standard input.")
    try:
        catalogue = load(*catalogues or ())
    except CatalogueError as error:
        raise UserError(f"{error}.") from error
    ruling = replay_page.read_policy(policy)
    wanted = normalise(gpu)
    if gpu and not re.fullmatch(ADDRESS, wanted):
        raise UserError(f"--gpu {gpu[:40]!r} is no PCI address; write it as 0000:65:00.0.")
    judged = Replay(catalogue, since=_moment(since))
    logs = _open(files)
    for log in logs:
        _read(log, judged)
    report = judged.report()
    if gpu:
        report = replay_page.only(report, wanted)
    _print(replay_page.as_json(report, ruling) if json else replay_page.as_text(report, ruling))
    return _exit_code(report)


def _print(text: str) -> None:
    """Whoever reads the output may stop early, as `head` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_code(report: Report) -> int:
    from outlast.cli import replay_page

    if report.faults:
        return EXIT_FAULT
    if replay_page.unread(report) or not any(file.is_log for file in report.files):
        return EXIT_UNKNOWN
    return EXIT_OK


def _open(files: tuple[str, ...]) -> list[RecordedLog]:
    """All of them, before any is read: a wrong name should not be found after an hour."""
    from outlast.adapters.linux.recorded_log import RecordedLog, RecordedLogError

    if files.count("-") > 1:
        raise UserError("standard input can be read only once.")
    logs = []
    try:
        for name in files:
            stdin = None if sys.stdin is None else sys.stdin.buffer
            logs.append(RecordedLog(None, stdin) if name == "-" else RecordedLog(Path(name)))
    except RecordedLogError as error:
        for log in logs:
            log.close()
        raise UserError(str(error)) from error
    return logs


def _read(log: RecordedLog, judged: Replay) -> None:
    from outlast.health.replay.unfold import unfolded

    judged.begin_file(log.name)
    progress = _Progress(log)
    for piece in unfolded(log.pieces()):
        judged.feed(piece)
        progress.show()
    progress.clear()
    file = judged.end_file(log.note)
    if not file.note:
        if not file.size_bytes:
            file.note = "is empty"
        elif not file.is_log:
            file.note = "is no log: most of its lines are no text"


class _Progress:
    """How far the reading is, on a terminal, when it takes long."""

    def __init__(self, log: RecordedLog) -> None:
        from outlast.adapters.clock import SystemClock

        self._log = log
        self._clock = SystemClock()
        self._shown = False
        self._next_s = self._clock.monotonic() + PROGRESS_AFTER_S
        self._on = sys.stderr is not None and sys.stderr.isatty()

    def show(self) -> None:
        if not self._on or self._clock.monotonic() < self._next_s:
            return
        self._next_s = self._clock.monotonic() + PROGRESS_EVERY_S
        self._shown = True
        read = self._log.stored_bytes / 1e6
        of = f" of {self._log.size_bytes / 1e6:,.0f} MB" if self._log.size_bytes else " MB"
        print(f"\r\x1b[Kreading {self._log.name}: {read:,.0f}{of}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _moment(text: str) -> datetime | None:
    from datetime import UTC, datetime

    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text[:SINCE_MAX].strip())
    except ValueError:
        raise UserError(f"--since {text[:SINCE_MAX]!r} is no date; write it as 2026-11-30T12:00.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
