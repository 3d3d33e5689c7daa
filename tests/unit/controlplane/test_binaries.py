"""Where the programs of the control plane are looked for, and which are taken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane import binaries, builder
from tests.controlplane.versions import APISERVER, ETCD_SERVER, KUBECTL, PROGRAMS


def program(folder: Path, name: str, says: str) -> Path:
    path = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with an empty cache and no Kubernetes on PATH."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin/nowhere:/bin")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)


def test_assets_come_before_path_and_path_before_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The order is the one that the documentation states."""
    says = f"Kubernetes v{APISERVER.version}"
    cached = program(binaries.cache_folder(), APISERVER.name, says)
    assert binaries.find(APISERVER) == cached
    on_path = program(tmp_path / "path", APISERVER.name, says)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin")
    assert binaries.find(APISERVER) == on_path
    asset = program(tmp_path / "assets", APISERVER.name, says)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assert binaries.find(APISERVER) == asset


@pytest.mark.parametrize("says", ["Kubernetes v1.36.9", "Kubernetes v1.3.72", "no version", ""])
def test_another_release_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str) -> None:
    """Tests state what this API server does; an older one on PATH would silently change the statement."""
    program(tmp_path / "path", APISERVER.name, says)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin")
    assert binaries.find(APISERVER) is None


def test_a_patch_release_of_the_same_minor_is_good_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A distribution's own 1.37 need not be built again."""
    path = program(tmp_path / "path", KUBECTL.name, '{"clientVersion": {"gitVersion": "v1.37.9"}}')
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin")
    assert binaries.find(KUBECTL) == path


def test_what_is_missing_is_named_with_the_way_to_get_it() -> None:
    """A person learns what to run, not just that something is absent."""
    missing = binaries.missing()
    assert [m.program.split()[0] for m in missing] == [p.name for p in PROGRAMS]
    assert all("python -m tests.controlplane.binaries" in m.how for m in missing)


def test_a_failed_build_says_what_failed_and_what_helps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a reachable module proxy the error names the step, the tool's own words and the advice."""
    go = tmp_path / "path" / "go"
    program(go.parent, "go", "")
    go.write_text(
        '#!/bin/sh\n[ "$1" = env ] && { echo go1.99.0; exit; }\necho "proxy unreachable" >&2; exit 1\n'
    )
    monkeypatch.setenv("PATH", f"{go.parent}:/bin")
    with pytest.raises(builder.BuildFailed, match=r"(?s)`go mod init` failed.*GOPROXY.*proxy unreachable"):
        builder.build([ETCD_SERVER], binaries.cache_folder(), lambda _line: None)
    assert sorted(p.name for p in binaries.cache_folder().iterdir()) == [".lock"]


def test_two_builders_at_once_build_once(tmp_path: Path) -> None:
    """The second waits for the first and finds the program there."""
    calls = tmp_path / "calls"
    go = program(tmp_path / "path", "go", "")
    go.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = env ]; then echo go1.99.0; exit; fi\n'
        f'if [ "$1" = build ]; then echo built >> {calls}; while [ "$1" != -o ]; do shift; done\n'
        f'printf "#!/bin/sh\\necho etcd Version: {ETCD_SERVER.version}\\n" > "$2"\n'
        'chmod +x "$2"; sleep 0.3; fi\n'
        '[ "$1 $2" = "mod init" ] && echo module x > go.mod\nexit 0\n'
    )
    environment = {"PATH": f"{go.parent}:/bin:/usr/bin", "XDG_CACHE_HOME": str(tmp_path / "shared")}
    code = (
        "from tests.controlplane import binaries; from tests.controlplane.versions import ETCD_SERVER;"
        "print(binaries.obtain([ETCD_SERVER], report=lambda line: None)['etcd'])"
    )
    root = Path(__file__).parents[3]
    both = [
        subprocess.Popen([sys.executable, "-c", code], cwd=root, env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    paths = {process.communicate(timeout=60)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(paths) == 1
    assert calls.read_text() == "built\n"
