"""The scripts of docs/slurm.md, run: what Slurm is told for each exit code of the check."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/slurm.md"


class Node:
    """A node whose `outlast`, `scontrol` and `logger` write down how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        self.calls.touch()
        self.drained = False

    def run(self, script: str, exit_code: int, **environment: str) -> int:
        """One script of the page with a check that ends so; the script's exit code."""
        report = '{"headline": "GPU 5 has fallen off the bus"}'
        self._program("outlast", f"echo '{report}'\nexit {exit_code}")
        self._program("scontrol", "[ $1 = show ] && echo 'Reason=outlast fault'" if self.drained else "")
        self._program("logger", "cat >/dev/null")
        text = _scripts()[script].replace("/usr/local/bin/outlast", "outlast")
        done = subprocess.run(
            ["bash", "-c", text],
            env={"PATH": f"{self.folder}:{os.environ['PATH']}", "SLURMD_NODENAME": "n1", **environment},
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=30,
        )
        assert b"not found" not in done.stderr, done.stderr
        return done.returncode

    def told(self) -> str:
        """What Slurm's controller was told."""
        lines = self.calls.read_text().splitlines()
        return "\n".join(line for line in lines if line.startswith("scontrol update"))

    def _program(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self.calls}"\n{body}\n')
        path.chmod(0o755)


def _scripts() -> dict[str, str]:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {found[1]: block for block in blocks if (found := re.search(r"sbin/outlast-(\w+)", block))}
    assert set(names) == {"prolog", "health", "epilog"}
    return names


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("check", "strict", "starts"),
    [(0, "0", True), (1, "0", False), (3, "0", True), (3, "1", False), (2, "1", True)],
)
def test_the_prolog_drains_for_a_fault_and_for_unknown_only_where_told(
    node: Node, check: int, strict: str, starts: bool
) -> None:
    """A check that is called wrongly keeps no job from running."""
    code = node.run("prolog", check, SLURM_JOB_GPUS="0,1", OUTLAST_STRICT=strict)

    assert code == (0 if starts else 1)
    assert ("state=drain" in node.told()) is not starts
    assert "outlast check --gpu 0,1" in node.calls.read_text()
    if not starts:
        assert "fallen off the bus" in node.told()


def test_a_job_without_gpus_is_not_checked(node: Node) -> None:
    """Nothing runs."""
    assert node.run("prolog", 1) == 0
    assert node.calls.read_text() == ""


@pytest.mark.parametrize(
    ("check", "drained", "told"),
    [(0, False, ""), (1, False, "drain"), (3, False, ""), (0, True, "resume"), (3, True, ""), (2, True, "")],
)
def test_the_health_check_program_takes_back_only_what_it_drained(
    node: Node, check: int, drained: bool, told: str
) -> None:
    """Healthy gives back; unknown changes nothing."""
    node.drained = drained

    node.run("health", check)

    assert (f"state={told}" in node.told()) if told else node.told() == ""


@pytest.mark.parametrize(("job", "check", "code"), [("40", 1, 1), ("40", 0, 0), ("41", 1, 0)])
def test_the_epilog_tests_now_and_then(node: Node, job: str, check: int, code: int) -> None:
    """Every 20th job."""
    assert node.run("epilog", check, SLURM_JOB_ID=job, SLURM_JOB_GPUS="0") == code
