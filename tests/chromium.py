"""Finds Chromium for the browser tests, or installs it: by apt as root, else Playwright's own build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
INSTALL_DEADLINE_S = 15 * 60
VERSION_DEADLINE_S = 30
HOW_TO_GET_IT = "`apt-get install chromium` as root, or `.venv/bin/playwright install chromium`"

Report = Callable[[str], None]


def find() -> Path | None:
    """A Chromium that starts, from PATH or from Playwright's own folder; None when there is none."""
    on_path = (shutil.which(name) for name in NAMES)
    candidates = [Path(path) for path in on_path if path]
    browsers = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or str(Path.home() / ".cache" / "ms-playwright")
    candidates += sorted(Path(browsers).glob("chromium-*/chrome-linux*/chrome"), reverse=True)
    return next((path for path in candidates if _starts(path)), None)


def obtain(report: Report) -> Path | None:
    """Chromium, installing it where this machine allows; None when it cannot be had."""
    found = find()
    if found is not None:
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        report("chromium: not found, installing it with apt-get")
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        _try(["apt-get", "update", "-qq"], report, quiet)
        wanted = ["chromium", "fonts-dejavu-core"]
        _try(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted], report, quiet)
        found = find()
    if found is None:
        report("chromium: not found, trying Playwright's own build")
        _try([sys.executable, "-m", "playwright", "install", "chromium"], report, {})
        found = find()
    return found


def _starts(path: Path) -> bool:
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, timeout=VERSION_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def _try(argv: Sequence[str], report: Report, environment: Mapping[str, str]) -> None:
    """Run an installer; its failure is reported, and judged by what can be found afterwards."""
    try:
        answer = subprocess.run(
            argv,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        report(f"{argv[0]}: {error}")
        return
    if answer.returncode != 0:
        last = (answer.stderr or answer.stdout).strip().splitlines()[-1:]
        report(f"{' '.join(argv[:2])} failed (exit {answer.returncode}): {' '.join(last)}")
