"""The closing line of a test run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.left_out import closing_line, leave_out

SUITE = """
import pytest
from tests.left_out import leave_out
def test_runs(): pass
def test_needs_a_browser(): leave_out("the browser tests", "install a browser")
@pytest.mark.skip(reason="no reason at all")
def test_skipped(): pass
"""


def run(tmp_path: Path, ci: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    (tmp_path / "test_suite.py").write_text(SUITE)
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.conftest", *arguments]
    return subprocess.run(
        [*argv, f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=root,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_last_line_names_what_was_left_out_and_how_to_get_it(tmp_path: Path) -> None:
    """Whoever reads only the last line of `make test` knows what it did not prove."""
    done = run(tmp_path, "")
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0, done.stdout
    assert last == "LEFT OUT: no reason at all | the browser tests (to have it: install a browser)"


def test_nothing_may_be_left_out_in_ci(tmp_path: Path) -> None:
    """In CI a missing tool is a failure of the test that needs it."""
    done = run(tmp_path, "true")
    assert done.returncode == 1
    assert "nothing may be left out in CI" in done.stdout


def test_a_plain_skip_fails_ci_too(tmp_path: Path) -> None:
    """A skip that bypasses `leave_out` does not slip through CI."""
    assert run(tmp_path, "true", "-k", "runs or skipped").returncode == 1
    assert run(tmp_path, "true", "-k", "runs").returncode == 0


def test_a_complete_run_ends_as_usual() -> None:
    """Nothing was left out, so nothing is said."""
    assert closing_line([]) == ""


def test_each_lack_is_named_once() -> None:
    """Fifty tests that need one tool are one entry."""
    reason = "left out the browser tests; to have it: install it"
    assert closing_line([reason] * 50) == "LEFT OUT: the browser tests (to have it: install it)"


def test_leaving_out_is_a_skip_outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's machine need not have everything."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="left out x; to have it: y"):
        leave_out("x", "y")
