"""`python -m tests.obtain`: get what the tests need and this machine lacks, before they run.

It never fails: a test that needs something missing is left out by name, or fails in CI.
"""

from __future__ import annotations

import sys

from tests import chromium, nvml
from tests.controlplane import binaries
from tests.controlplane.builder import BuildFailed


def _report(line: str) -> None:
    print(f"  {line}", flush=True)


def main() -> int:
    """Obtain the control plane, Chromium and a C compiler; says what could not be had, and how to get it."""
    try:
        binaries.obtain(report=_report)
    except BuildFailed as error:
        _report(f"control plane: {error}")
    if chromium.obtain(_report) is None:
        _report(f"chromium could not be had; to have it: {chromium.HOW_TO_GET_IT}")
    if nvml.obtain_compiler(_report) is None:
        _report(f"a C compiler could not be had; to have it: {nvml.HOW_TO_GET_A_COMPILER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
