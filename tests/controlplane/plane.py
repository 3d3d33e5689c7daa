"""One control plane: etcd, API server, scheduler and controller-manager as processes on loopback.

Everything lives in one folder and ends with `stop`. The API server can be killed and started again on
the same data and the same port, which is what a crash test needs. All calls block; from a coroutine
use `asyncio.to_thread`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.controlplane.access import Access
from tests.controlplane.certificates import Authority, Pair, signing_pair
from tests.controlplane.processes import PlaneFailed, Ports, Program, Reaper, wait_until

READY_DEADLINE_S = 60.0
START_TRIES = 3
KUBECTL_DEADLINE_S = 60.0
PROBE_DEADLINE_S = 5.0
KEEP = "OUTLAST_KEEP_PLANE"
"""Set to keep a control plane's folder with its logs and data after it has stopped."""

ETCD = "etcd"
APISERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"


@dataclass(frozen=True, slots=True)
class PlaneOptions:
    """What a control plane runs and how quickly it notices dead machines."""

    controllers: bool = True
    """Scheduler and controller-manager; without them an API server alone starts in half the time."""
    node_monitor_grace_s: int | None = None
    """After this silence the controller-manager sets Ready=Unknown; None keeps Kubernetes' default (50 s)."""
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Extra users with a token each (see `Plane.user`), and their groups."""
    apiserver_arguments: tuple[str, ...] = ()
    """Appended to ours."""


class Plane:
    """A running control plane. `start` it, use `admin`, `stop` it; also a context manager."""

    def __init__(self, binaries: Mapping[str, Path], options: PlaneOptions | None = None) -> None:
        self.options = options or PlaneOptions()
        self._binaries = binaries
        self._programs: dict[str, Program] = {}
        self._tokens = {name: secrets.token_hex(16) for name in ("admin", *self.options.users)}
        self._reaper: Reaper | None = None
        self._ports = Ports()
        self.folder = Path()
        self.admin = Access("")

    def __enter__(self) -> Plane:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything and wait until the API server is ready. Raises PlaneFailed."""
        for tries_left in reversed(range(START_TRIES)):
            try:
                self._start_once()
            except PlaneFailed as error:
                self.stop()
                # Somebody who does not hold our locks took a port between our look and the bind.
                if tries_left and "address already in use" in str(error):
                    continue
                raise
            except BaseException:
                self.stop()
                raise
            return

    def _start_once(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="outlast-plane-"))
        self._reaper = Reaper(None if os.environ.get(KEEP) else self.folder)
        self._authority = Authority(self.folder)
        url = self._configure()
        self.admin = Access(url, self._authority.certificate, self._tokens["admin"])
        self.kubeconfig = self.admin.write_kubeconfig(self.folder / "kubeconfig")
        self._programs[ETCD].start()
        self.start_apiserver()
        if self.options.controllers:
            self.start_program(CONTROLLER_MANAGER)
            self.start_program(SCHEDULER)
            self._programs[CONTROLLER_MANAGER].wait_ready(
                lambda: self._exists("/api/v1/namespaces/default/serviceaccounts/default"),
                deadline_s=READY_DEADLINE_S,
            )

    def stop(self) -> None:
        """End every program, in the order in which they need each other, and remove the data."""
        for name in (SCHEDULER, CONTROLLER_MANAGER, APISERVER, ETCD):
            if name in self._programs:
                self._programs[name].stop()
        self._programs.clear()
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None
        self._ports.release()
        if self.folder != Path() and not os.environ.get(KEEP):
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill_apiserver(self) -> None:
        """SIGKILL the API server: connections break, etcd keeps what was acknowledged."""
        self._programs[APISERVER].kill()

    def start_apiserver(self) -> None:
        """Start the API server (again) on the same port and data; returns when it is ready."""
        program = self._programs[APISERVER]
        program.start()
        program.wait_ready(self._apiserver_ready, deadline_s=READY_DEADLINE_S)

    def start_program(self, name: str) -> None:
        """Start one of ETCD, CONTROLLER_MANAGER or SCHEDULER after it was stopped."""
        self._programs[name].start()

    def stop_program(self, name: str) -> None:
        """Stop one of the programs, for example the controller-manager, to take it out of a measurement."""
        self._programs[name].stop()

    def pid(self, name: str) -> int:
        """Process id of a program, for measurements."""
        return self._programs[name].pid

    # -- use ----------------------------------------------------------------------------------

    def user(self, name: str) -> Access:
        """The token of a user named in the options, or of `admin`."""
        return self.admin.with_token(self._tokens[name])

    def client_certificate(self, user: str, *groups: str) -> Pair:
        """A client certificate that the API server takes for this user in these groups."""
        return self._authority.client(user, groups)

    def kubectl(self, *arguments: str, stdin: str | None = None, access: Access | None = None) -> str:
        """Run kubectl as the administrator, or as `access`; returns its output. Raises PlaneFailed."""
        config = self.kubeconfig
        if access is not None:
            config = access.write_kubeconfig(self.folder / f"kubeconfig-{secrets.token_hex(4)}")
        answer = subprocess.run(
            [self._binaries["kubectl"], f"--kubeconfig={config}", *arguments],
            input=stdin,
            env={"HOME": str(self.folder), "PATH": os.environ.get("PATH", "")},
            capture_output=True,
            text=True,
            timeout=KUBECTL_DEADLINE_S,
            check=False,
        )
        if answer.returncode != 0:
            raise PlaneFailed(f"kubectl {' '.join(arguments)}: {answer.stderr.strip()}")
        return answer.stdout

    def wait_for(self, path: str, *, deadline_s: float = 10.0) -> None:
        """Return when a GET of `path` succeeds."""
        wait_until(lambda: self._exists(path), deadline_s=deadline_s, what=path)

    def log_tails(self) -> str:
        """The last lines of every program's log."""
        return "\n".join(program.log_tail() for program in self._programs.values())

    # -- inside -------------------------------------------------------------------------------

    def _exists(self, path: str) -> bool:
        try:
            return self.admin.ask("GET", path, deadline_s=PROBE_DEADLINE_S).ok
        except OSError:
            return False

    def _apiserver_ready(self) -> bool:
        return self._exists("/readyz")

    def _configure(self) -> str:
        """Write all files, make all command lines; returns the API server's address."""
        etcd, peer, secure = self._ports.take(), self._ports.take(), self._ports.take()
        etcd_url, url = f"http://127.0.0.1:{etcd}", f"https://127.0.0.1:{secure}"
        serving = self._authority.server("kube-apiserver")
        accounts = signing_pair(self.folder)
        self._add(
            ETCD,
            [
                f"--data-dir={self.folder / 'etcd'}",
                "--unsafe-no-fsync",
                "--log-level=warn",
                f"--listen-client-urls={etcd_url}",
                f"--advertise-client-urls={etcd_url}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=default=http://127.0.0.1:{peer}",
            ],
        )
        self._add(
            APISERVER,
            [
                f"--etcd-servers={etcd_url}",
                "--bind-address=127.0.0.1",
                f"--secure-port={secure}",
                f"--tls-cert-file={serving.certificate}",
                f"--tls-private-key-file={serving.key}",
                f"--client-ca-file={self._authority.certificate}",
                f"--cert-dir={self.folder}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={accounts.certificate}",
                f"--service-account-signing-key-file={accounts.key}",
                f"--token-auth-file={self._token_file()}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                # No Endpoints for the service `kubernetes`: a loopback address is not a valid one.
                "--endpoint-reconciler-type=none",
                "--service-cluster-ip-range=10.96.0.0/16",
                *self.options.apiserver_arguments,
            ],
        )
        reach = [f"--kubeconfig={self.folder / 'kubeconfig'}", "--secure-port=0", "--leader-elect=false"]
        manager = [*reach, "--kube-api-qps=500", "--kube-api-burst=1000"]
        manager += [f"--service-account-private-key-file={accounts.key}"]
        manager += [f"--root-ca-file={self._authority.certificate}"]
        if self.options.node_monitor_grace_s is not None:
            manager.append(f"--node-monitor-grace-period={self.options.node_monitor_grace_s}s")
        self._add(CONTROLLER_MANAGER, manager)
        self._add(SCHEDULER, [*reach, "--kube-api-qps=1000", "--kube-api-burst=2000"])
        return url

    def _add(self, name: str, arguments: list[str]) -> None:
        assert self._reaper is not None
        argv = [str(self._binaries[name]), *arguments]
        self._programs[name] = Program(name, argv, self.folder / f"{name}.log", self._reaper)

    def _token_file(self) -> Path:
        groups = {"admin": ("system:masters",), **self.options.users}
        lines = [f'{self._tokens[name]},{name},{name},"{",".join(groups[name])}"' for name in self._tokens]
        path = self.folder / "tokens.csv"
        path.touch(mode=0o600)
        path.write_text("\n".join(lines) + "\n")
        return path
