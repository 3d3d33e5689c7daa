"""Finds Chromium for the browser tests, or installs it: by apt as root, else Playwright's own build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.installing import Report, apt_install, attempt

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
VERSION_DEADLINE_S = 30
HOW_TO_GET_IT = "`apt-get install chromium` as root, or `.venv/bin/playwright install chromium`"


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
    report("chromium: not found, installing it")
    apt_install(["chromium", "fonts-dejavu-core"], report)
    found = find()
    if found is None:
        report("chromium: not found, trying Playwright's own build")
        attempt([sys.executable, "-m", "playwright", "install", "chromium"], report)
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
