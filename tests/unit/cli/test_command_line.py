"""The command line itself: fast, complete, and plain about mistakes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import outlast
from outlast.cli import EXIT_PIPE, VERBS, Verb, run

START_S = 0.15


def test_help_lists_every_verb_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """`outlast --help` shows what there is, with an example."""
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(verb.name in printed and verb.help in printed for verb in VERBS)
    assert "Example:" in printed


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_is_there(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line of the table leads to a module that answers `--help`."""
    module = import_module(verb.module)
    assert hasattr(module, "app") or callable(getattr(module, verb.name))
    assert run([verb.name, "--help"]) == 0
    assert "Usage: outlast" in capsys.readouterr().out


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_it_starts_at_once(argument: str) -> None:
    """Help and version need no parser, no HTTP and no terminal library, so they answer in 0.15 s."""
    code = (
        "import sys; from outlast.cli import run; run([sys.argv[1]]);"
        "heavy = {'cyclopts', 'rich', 'aiohttp', 'msgspec', 'asyncio', 'yaml'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code, argument], check=True, capture_output=True, timeout=30)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time, which other work on the machine does not stretch.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < START_S


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`outlast --version` says which."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"outlast {outlast.__version__}\n"


@pytest.mark.parametrize("arguments", [["nonsense"], ["xid"], ["xid", "abc"], ["xid", "79", "--nonsense"]])
def test_a_mistake_is_one_sentence_and_exit_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong and where to look, on standard error."""
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert len(printed.err.strip().splitlines()) == 1
    assert "--help" in printed.err
    assert "Traceback" not in printed.err + printed.out


def test_xid_explains_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    """What broke, what cures it, when it is over, where it shows."""
    assert run(["xid", "79"]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("RebootCures", "Reboot", "GPUReady", "GpuFellOffBus"))
    assert all(len(line) <= 130 for line in printed.splitlines())


def test_xid_as_json_is_a_versioned_document(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read the same facts."""
    assert run(["xid", "13", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["version"], document["code"], document["class"]) == (1, 13, "Application")


def test_an_unlisted_code_is_exit_3_and_says_what_it_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody can tell is not an error of the user."""
    assert run(["xid", "999"]) == 3
    assert "Unknown" in capsys.readouterr().out
    assert run(["xid", "999", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["known"] is False


def test_xid_reads_the_users_catalogue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same override as the agent's; a wrong file is a sentence."""
    file = tmp_path / "xid.csv"
    file.write_text(
        "code,name,class,scope,severity,rung,role,rank,subsystem,reason,proof,expiry_s,text\n"
        "999,OURS,ResetCures,GPU,error,ResetGPU,leader,9,GPU,GpuStuck,RecoveryNone,0,A text of ours.\n"
    )
    assert run(["xid", "999", "--catalogue", str(file)]) == 0
    assert "A text of ours." in capsys.readouterr().out
    file.write_text("nonsense\n")
    assert run(["xid", "999", "--catalogue", str(file)]) == 2
    assert "xid.csv" in capsys.readouterr().err


def test_a_reader_that_stops_early_sees_no_traceback() -> None:
    """`outlast xid 145 | head -1` ends quietly, as a program that SIGPIPE ended."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "outlast", "xid", "145"],
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writer)

    assert (ended.returncode, ended.stderr) == (EXIT_PIPE, b"")
