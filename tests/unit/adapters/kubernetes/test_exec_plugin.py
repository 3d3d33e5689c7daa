"""Somebody else's program gives the credential: run once, kept, bounded, never quoted."""

from __future__ import annotations

import asyncio
import json
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outlast.adapters.kubernetes import KubeconfigError
from outlast.adapters.kubernetes.exec_plugin import ExecCredentialSource, ExecPlugin
from outlast.ports.cluster import Unauthorized
from tests.unit.adapters.kubernetes.certificates import make_pair
from tests.unit.adapters.kubernetes.virtual import VirtualClock

V1 = "client.authentication.k8s.io/v1"
SECRET = "s3cr3t-t0ken-0123456789-abcdefghij"


def answer(version: str = V1, **status: Any) -> str:
    return json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})


class Plugin:
    """A shell script that counts its runs and then does `body`."""

    def __init__(self, folder: Path, body: str) -> None:
        self.folder = folder
        self.path = folder / "plugin"
        self.path.write_text(f"#!/bin/sh\necho run >> {folder}/runs\n{body}\n")
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    def source(self, *, deadline_s: float = 10.0, **options: Any) -> ExecCredentialSource:
        return ExecCredentialSource(ExecPlugin(command=str(self.path), **options), deadline_s=deadline_s)

    @property
    def runs(self) -> int:
        path = self.folder / "runs"
        return len(path.read_text().splitlines()) if path.exists() else 0


def printing(folder: Path, text: str) -> Plugin:
    (folder / "answer").write_text(text)
    return Plugin(folder, f"cat {folder}/answer")


@pytest.mark.asyncio
@pytest.mark.parametrize("version", [V1, "client.authentication.k8s.io/v1beta1"])
async def test_a_token_is_asked_for_once_and_kept(tmp_path: Path, version: str) -> None:
    """Requests in parallel share one run."""
    plugin = printing(tmp_path, answer(version, token=SECRET))
    source, clock = plugin.source(api_version=version), VirtualClock()
    credentials = await asyncio.gather(*(source.current(clock) for _ in range(5)))
    assert {c.authorization for c in credentials} == {f"Bearer {SECRET}"}
    assert plugin.runs == 1


@pytest.mark.asyncio
async def test_an_expired_credential_is_replaced_and_a_refused_one_too(tmp_path: Path) -> None:
    """Expiry is the plugin's word; a 401 is the server's; a plugin is not run in a hot loop for either."""
    clock = VirtualClock()
    expires = (clock.now() + timedelta(seconds=100)).isoformat()
    plugin = printing(tmp_path, answer(token=SECRET, expirationTimestamp=expires))
    source = plugin.source()
    held = await source.current(clock)
    clock.now_s += 80
    await source.current(clock)
    assert plugin.runs == 1
    clock.now_s += 15
    await source.current(clock)
    assert plugin.runs == 2
    await source.current(clock)
    assert plugin.runs == 2
    source.refused(held)
    clock.now_s += 6
    await source.current(clock)
    assert plugin.runs == 3


@pytest.mark.asyncio
async def test_the_plugin_is_told_what_it_may_know(tmp_path: Path) -> None:
    """Version, that there is no terminal, the cluster where the user wants it, and its own variables."""
    plugin = Plugin(
        tmp_path,
        f'printf %s "$KUBERNETES_EXEC_INFO" > {tmp_path}/info; echo "$EXTRA $1" > {tmp_path}/x; exit 1',
    )
    source = plugin.source(cluster={"server": "https://k"}, env={"EXTRA": "e"}, args=("arg",))
    with pytest.raises(Unauthorized):
        await source.current(VirtualClock())
    info = json.loads((tmp_path / "info").read_text())
    assert info == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://k"}},
    }
    assert (tmp_path / "x").read_text() == "e arg\n"


@pytest.mark.asyncio
async def test_a_client_certificate_may_come_from_the_plugin(tmp_path: Path) -> None:
    """With its key; one without the other is refused."""
    certificate, key = make_pair("u")
    both = {"clientCertificateData": certificate.decode(), "clientKeyData": key.decode()}
    credential = await printing(tmp_path, answer(**both)).source().current(VirtualClock())
    assert credential.certificate_pem == certificate
    for half in ({"clientKeyData": "k"}, {"clientCertificateData": "c", "token": "t"}, {}):
        with pytest.raises(Unauthorized, match="neither a token nor a certificate"):
            await printing(tmp_path, answer(**half)).source().current(VirtualClock())


@pytest.mark.asyncio
async def test_a_plugin_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """The deadline has a name; a child that holds the pipe does not hold us."""
    plugin = Plugin(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(Unauthorized, match=r"did not answer within 0\.5 s"):
        await plugin.source(deadline_s=0.5).current(VirtualClock())
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    assert not child.exists() or child.read_text().split(")")[1].split()[0] == "Z"


@pytest.mark.asyncio
async def test_what_a_failing_plugin_says_is_shown_without_secrets(tmp_path: Path) -> None:
    """Its last line usually says what to do (log in again); long opaque words are taken out."""
    plugin = Plugin(tmp_path, f"echo 'noise' >&2; echo 'run: aws sso login, was {SECRET}' >&2; exit 3")
    with pytest.raises(Unauthorized, match=r"exit code 3: run: aws sso login, was \[removed\]") as caught:
        await plugin.source().current(VirtualClock())
    assert SECRET not in str(caught.value)


@pytest.mark.asyncio
@pytest.mark.parametrize("text", ["", SECRET, "[]", '{"kind":"ExecCredential"}', "\xff", answer() + SECRET])
async def test_an_answer_that_is_none_is_refused_and_not_quoted(tmp_path: Path, text: str) -> None:
    """What it printed may be the secret itself."""
    with pytest.raises(Unauthorized) as caught:
        await printing(tmp_path, text).source().current(VirtualClock())
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.asyncio
async def test_an_endless_answer_is_cut(tmp_path: Path) -> None:
    """Output is bounded; the plugin can still finish writing."""
    plugin = Plugin(tmp_path, "head -c 3000000 /dev/zero")
    with pytest.raises(Unauthorized, match="not an ExecCredential"):
        await plugin.source().current(VirtualClock())


@pytest.mark.asyncio
async def test_a_plugin_that_cannot_start_or_speaks_another_version_is_a_configuration_error(
    tmp_path: Path,
) -> None:
    """Nothing that waiting would cure."""
    missing = ExecCredentialSource(ExecPlugin(command=str(tmp_path / "none"), install_hint="Install foo."))
    with pytest.raises(KubeconfigError, match=r"cannot be started .*Install foo\."):
        await missing.current(VirtualClock())
    other = printing(tmp_path, answer("client.authentication.k8s.io/v1beta1", token="t"))
    with pytest.raises(KubeconfigError, match="does not answer in"):
        await other.source().current(VirtualClock())
