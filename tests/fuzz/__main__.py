"""`python -m tests.fuzz [--seconds N] [TARGET ...]`: every harness for so long, and what it found.

Each runs in a process of its own with a limit of memory and of time for one input. What ends one is kept as
a file under build/fuzz and printed; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

SECONDS = 20
INPUT_S = 1
MEMORY_MB = 1024
INPUT_BYTES_MAX = 4096
FOLDER = Path(__file__).parents[2] / "build/fuzz"
_EXECUTIONS = re.compile(r"stat::number_of_executed_units:\s*(\d+)|Done (\d+) (?:runs )?in (\d+) second")
_COVERAGE = re.compile(r"cov: (\d+)")


def main() -> int:
    """0 when nothing was found."""
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="for each target")
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], help="default: all of them")
    chosen = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed; to have it: pip install -e '.[fuzz]'", file=sys.stderr)
        return 2
    failed = [name for name in chosen.targets or TARGETS if not fuzz(name, chosen.seconds)]
    if failed:
        print(f"found something in: {', '.join(failed)}; the inputs are in {FOLDER}", file=sys.stderr)
    return 1 if failed else 0


def fuzz(name: str, seconds: int) -> bool:
    """Run one harness; whether it found nothing."""
    from tests.fuzz.targets import TARGETS

    corpus, finds = FOLDER / name / "corpus", FOLDER / name / "found"
    for folder in (corpus, finds):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds()):
        (corpus / f"seed-{number:04}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={INPUT_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-artifact_prefix={finds}/",
        "-print_final_stats=1",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.one", name, *options, corpus],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds * 3 + 300,
        check=False,
    )
    said = done.stdout + done.stderr
    counts = [int(first or second) for first, second, _ in _EXECUTIONS.findall(said)]
    coverage = [int(number) for number in _COVERAGE.findall(said)]
    runs = max(counts, default=0)
    verdict = "nothing found" if done.returncode == 0 else "FOUND SOMETHING"
    print(
        f"{name:16} {runs:>9,} runs  {runs // max(1, seconds):>7,}/s  "
        f"{max(coverage, default=0):>6,} edges  {verdict}",
        flush=True,
    )
    if done.returncode != 0:
        print("\n".join(f"    {line}" for line in said.splitlines()[-40:]), flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
