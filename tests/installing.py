"""Installs what the tests need and this machine lacks, where it allows that: apt as root first."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence

INSTALL_DEADLINE_S = 15 * 60

Report = Callable[[str], None]


def apt_install(packages: Sequence[str], report: Report) -> bool:
    """Install packages with apt-get; False where that is not possible. Look for the result afterwards."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    attempt(["apt-get", "update", "-qq"], report)
    attempt(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], report)
    return True


def attempt(argv: Sequence[str], report: Report) -> None:
    """Run an installer; its failure is reported, and judged by what can be found afterwards."""
    try:
        answer = subprocess.run(
            argv,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
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
