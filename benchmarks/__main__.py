"""`python -m benchmarks [NAME ...]`: run some or all benchmarks and update docs/benchmarks.md."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import time
import traceback

import benchmarks
from benchmarks import report

NOT_BENCHMARKS = {"__main__", "report"}


def names() -> list[str]:
    """Every module of this package that measures something."""
    found = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name not in NOT_BENCHMARKS]
    return [name for name in found if hasattr(importlib.import_module(f"benchmarks.{name}"), "run")]


def main(argv: list[str]) -> int:
    """Run the named benchmarks, or all; exit 1 when one could not run, 2 for an unknown name."""
    known = names()
    wanted = argv or known
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"no benchmark called {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for position, name in enumerate(wanted, 1):
        print(f"[{position}/{len(wanted)}] {name} ...", flush=True)
        begun, load = time.monotonic(), os.getloadavg()[0]
        try:
            section = importlib.import_module(f"benchmarks.{name}").run()
        except Exception:
            print("    could not run:", file=sys.stderr)
            traceback.print_exc()
            failed.append(name)
            continue
        report.write(section, load)
        for row in section.rows:
            goal = f"   (goal {row.goal}: {'met' if row.met else 'MISSED'})" if row.goal else ""
            print(f"    {row.figure}: {row.value}{goal}")
        print(f"    {time.monotonic() - begun:.0f} s", flush=True)
    print(f"written to {report.PAGE.relative_to(report.PAGE.parent.parent)}")
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
