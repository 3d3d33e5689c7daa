"""Credentials from an exec plugin (client.authentication.k8s.io): one run, kept until it expires.

The plugin is somebody else's program: it gets a deadline, no terminal, and its output is bounded. What
it writes to stderr is shown shortened and with everything that looks like a secret taken out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from outlast.adapters.kubernetes.credentials import Credential, KubeconfigError, bearer
from outlast.ports.clock import Clock
from outlast.ports.cluster import Unauthorized

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
DEADLINE_S = 30.0
"""Cloud plugins call their token service; half a minute is generous and still ends."""
OUTPUT_BYTES_MAX = 1024 * 1024
STDERR_BYTES_MAX = 64 * 1024
EXPIRY_MARGIN = timedelta(seconds=10)
"""A token is replaced a little early: its request must still be on time at the server."""
RERUN_S_MIN = 5.0
"""A plugin whose credentials are born expired or refused is not run more often than this."""

_SECRET_LIKE = re.compile(r"[A-Za-z0-9_\-.+=]{24,}")


class _ExecStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: _ExecStatus | None = None


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """How to run the plugin; `env` is added to ours, `cluster` is passed on where the user wants it."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_version: str = API_VERSIONS[0]
    install_hint: str = ""
    cluster: dict[str, Any] | None = None


class ExecCredentialSource:
    """Runs the plugin when there is no credential that still holds; one run at a time."""

    def __init__(self, plugin: ExecPlugin, *, deadline_s: float = DEADLINE_S) -> None:
        self._plugin = plugin
        self._deadline_s = deadline_s
        self._lock = asyncio.Lock()
        self._held: Credential | None = None
        self._expires: datetime | None = None
        self._ran_at_s = float("-inf")
        self._is_refused = False

    async def current(self, clock: Clock) -> Credential:
        """A credential that has not expired. Raises KubeconfigError, Unauthorized."""
        async with self._lock:
            if self._held is None or (
                self._is_stale(clock.now()) and clock.monotonic() - self._ran_at_s >= RERUN_S_MIN
            ):
                status = await self._run()
                self._held, self._expires = (
                    _credential(status, self._plugin.command),
                    status.expiration_timestamp,
                )
                self._ran_at_s = clock.monotonic()
                self._is_refused = False
            return self._held

    def refused(self, credential: Credential) -> None:
        """Run the plugin again, unless that has happened since this credential was given out."""
        if credential == self._held:
            self._is_refused = True

    def _is_stale(self, now: datetime) -> bool:
        return self._is_refused or (self._expires is not None and now >= self._expires - EXPIRY_MARGIN)

    async def _run(self) -> _ExecStatus:
        plugin = self._plugin
        spec: dict[str, Any] = {"interactive": False}
        if plugin.cluster is not None:
            spec["cluster"] = plugin.cluster
        info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
        env = {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.args,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            hint = (
                f" {plugin.install_hint.strip()}" if plugin.install_hint else " Install it or put it on PATH."
            )
            raise KubeconfigError(
                f"The credential plugin {plugin.command!r} cannot be started ({error.strerror}).{hint}"
            ) from None
        try:
            async with asyncio.timeout(self._deadline_s):
                output, complaint = await _outputs(process)
                code = await process.wait()
        except TimeoutError:
            # Even where the plugin itself has ended, a child of it may hold the pipe open.
            _kill_group(process.pid)
            raise Unauthorized(
                f"The credential plugin {plugin.command!r} did not answer within {self._deadline_s:g} s",
                status=401,
            ) from None
        finally:
            await _end(process)
        if code != 0:
            raise Unauthorized(
                f"The credential plugin {plugin.command!r} failed with exit code {code}: "
                f"{_presentable(complaint)}",
                status=401,
            )
        return _parse(output, plugin)


async def _outputs(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.TaskGroup() as group:
        output = group.create_task(_read_bounded(process.stdout, OUTPUT_BYTES_MAX))
        complaint = group.create_task(_read_bounded(process.stderr, STDERR_BYTES_MAX))
    return output.result(), complaint.result()


async def _read_bounded(stream: asyncio.StreamReader, bytes_max: int) -> bytes:
    """Keep the first `bytes_max` bytes and drain the rest, so that the writer never blocks."""
    kept = bytearray()
    while chunk := await stream.read(65536):
        kept += chunk[: bytes_max - len(kept)]
    return bytes(kept)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        _kill_group(process.pid)
        await process.wait()


def _kill_group(pid: int) -> None:
    """Kill the plugin and its children: it leads a session of its own, so its pid names the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _parse(output: bytes, plugin: ExecPlugin) -> _ExecStatus:
    try:
        answer = msgspec.json.decode(output, type=_ExecCredential)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The decoder's message could quote what the plugin printed, which may be the secret.
        raise Unauthorized(
            f"The credential plugin {plugin.command!r} printed something that is not an ExecCredential",
            status=401,
        ) from None
    if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version:
        raise KubeconfigError(
            f"The credential plugin {plugin.command!r} does not answer in {plugin.api_version}; "
            "set the plugin's apiVersion in the kubeconfig to the one it speaks."
        )
    if answer.status is None:
        raise Unauthorized(f"The credential plugin {plugin.command!r} gave no credential", status=401)
    return answer.status


def _credential(status: _ExecStatus, command: str) -> Credential:
    has_certificate = bool(status.client_certificate_data)
    if has_certificate != bool(status.client_key_data) or not (status.token or has_certificate):
        raise Unauthorized(
            f"The credential plugin {command!r} gave neither a token nor a certificate with its key",
            status=401,
        )
    return Credential(
        authorization=bearer(status.token, f"The credential plugin {command!r}") if status.token else "",
        certificate_pem=status.client_certificate_data.encode(),
        key_pem=status.client_key_data.encode(),
    )


def _presentable(complaint: bytes) -> str:
    lines = [line.strip() for line in complaint.decode("utf-8", "replace").splitlines() if line.strip()]
    text = "".join(c if c.isprintable() else " " for c in (lines[-1] if lines else "it said nothing"))
    return _SECRET_LIKE.sub("[removed]", text)[:300]
