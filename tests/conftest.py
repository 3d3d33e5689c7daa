"""Fixtures for all suites, and the closing line that says what a machine could not run."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from tests.left_out import closing_line, leave_out

pytest_plugins = ["tests.controlplane.fixtures"]

_closing_line = pytest.StashKey[str]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `root` need it."""
    if item.get_closest_marker("root") and os.geteuid() != 0:
        leave_out("the tests that need root", "run `make test` as root")


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    """Remember what was left out; it is printed after everything else."""
    skipped = terminalreporter.stats.get("skipped", [])
    config.stash[_closing_line] = closing_line(str(report.longrepr) for report in skipped)
    yield


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of the run."""
    line = config.stash.get(_closing_line, "")
    if line:
        print(line)
