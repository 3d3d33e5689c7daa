"""Fixtures for all suites, and the closing line that says what a machine could not run."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests import chromium as chromium_browser
from tests.left_out import closing_line, in_ci, leave_out

pytest_plugins = ["tests.controlplane.fixtures"]

_closing_line = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for a browser is marked, so that `-m 'not browser'` leaves it out."""
    for item in items:
        if "chromium" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `root` need it."""
    if item.get_closest_marker("root") and os.geteuid() != 0:
        leave_out("the tests that need root", "run `make test` as root")


@pytest.fixture(autouse=True)
def _own_logging() -> Generator[None, None, None]:
    """A command that runs inside a test sets up the log of its process, which is the next test's too."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The browser's executable, for Playwright's `executable_path`."""
    found = chromium_browser.find()
    if found is None:
        leave_out("the browser tests", chromium_browser.HOW_TO_GET_IT)
    return found


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A skipped test fails a CI run: what CI has not run is not known to work."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if in_ci() and exitstatus == pytest.ExitCode.OK and reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    """Remember what was left out; it is printed after everything else."""
    skipped = terminalreporter.stats.get("skipped", [])
    config.stash[_closing_line] = closing_line(_reason(report) for report in skipped)
    yield


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of the run."""
    line = config.stash.get(_closing_line, "")
    if line:
        print(line)


def _reason(report: Any) -> str:
    where = report.longrepr
    text = str(where[2]) if isinstance(where, tuple) else str(where)
    return text.removeprefix("Skipped: ")
