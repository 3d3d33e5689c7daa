"""What `outlast demo` and `outlast web` say before they start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from outlast.cli import EXIT_USAGE, run


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["demo", "--rate", "0"], "--rate 0"),
        (["demo", "--rate", "100000"], "--rate 100000"),
        (["demo", "--port", "70000"], "--port 70000"),
        (["demo", "--rate", "fast"], "fast"),
    ],
)
def test_a_wrong_number_is_one_sentence(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was given is named, and what would be right."""
    assert run(words) == EXIT_USAGE
    err = capsys.readouterr().err
    assert named in err
    assert "Traceback" not in err


def test_a_port_that_is_taken_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for a port and cannot have it is told which, and what to do."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words in (["demo", "--port", port], ["web", "--port", port, "--kubeconfig", str(kubeconfig)]):
            assert run(words) == EXIT_USAGE
            err = capsys.readouterr().err
            assert port in err
            assert "another --port" in err
