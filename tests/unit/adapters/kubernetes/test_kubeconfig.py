"""kubeconfig as kubectl reads it, and one sentence for each way to get it wrong."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.adapters.kubernetes import Access, KubeconfigError, find_access, load_kubeconfig
from outlast.adapters.kubernetes.access import ssl_context
from outlast.adapters.kubernetes.credentials import Credential
from tests.unit.adapters.kubernetes.certificates import make_pair
from tests.unit.adapters.kubernetes.virtual import VirtualClock

SECRET = "very-secret-token"


def config(
    user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **top: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": "https://10.0.0.1:6443"} | (cluster or {})}],
        "users": [{"name": "u", "user": {"token": SECRET} if user is None else user}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "gpu"}}],
    } | top


def write(path: Path, content: dict[str, Any] | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


async def credential_of(access: Access) -> Credential:
    return await access.credentials.current(VirtualClock())


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.asyncio
async def test_a_token_and_the_current_context(tmp_path: Path) -> None:
    """The usual file."""
    access = load_kubeconfig([write(tmp_path / "config", config())])
    assert access.server == "https://10.0.0.1:6443"
    assert access.namespace == "gpu"
    assert (await credential_of(access)).authorization == f"Bearer {SECRET}"


def test_a_file_in_json_loads_no_yaml_and_nearly_json_is_still_read(tmp_path: Path) -> None:
    """JSON is YAML, and needs 1 MB less; a comment makes it YAML again."""
    text = json.dumps(config())
    path = write(tmp_path / "config", text)
    program = (
        "import sys; from pathlib import Path; from outlast.adapters.kubernetes import load_kubeconfig; "
        f"access = load_kubeconfig([Path({str(path)!r})]); print(access.namespace, 'yaml' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["gpu", "False"]
    assert load_kubeconfig([write(tmp_path / "commented", f"{text} # ours")]).namespace == "gpu"


def test_files_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    """KUBECONFIG with several files; absent ones are passed over."""
    first = write(tmp_path / "a", {"current-context": "c", "clusters": config()["clusters"]})
    second = write(tmp_path / "b", config(cluster={"server": "https://other:1"}, **{"current-context": "x"}))
    env = {"KUBECONFIG": os.pathsep.join(map(str, (tmp_path / "none", first, second)))}
    assert find_access(env=env).server == "https://10.0.0.1:6443"


def test_the_order_is_argument_then_environment_then_home_then_pod(tmp_path: Path) -> None:
    """As kubectl, then as a pod."""
    home = write(tmp_path / "home" / ".kube" / "config", config(cluster={"server": "https://home:1"}))
    named = write(tmp_path / "named", config(cluster={"server": "https://named:1"}))
    env = {"HOME": str(tmp_path / "home"), "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    assert find_access(named, env=env).server == "https://named:1"
    assert find_access(env=env | {"KUBECONFIG": str(named)}).server == "https://named:1"
    assert find_access(env=env).server == "https://home:1"
    home.unlink()
    with pytest.raises(KubeconfigError, match="service account token"):
        find_access(env=env)
    with pytest.raises(KubeconfigError, match="No cluster was found"):
        find_access(env={"HOME": str(tmp_path)})
    with pytest.raises(KubeconfigError, match="No cluster was found"):
        find_access(env={})


@pytest.mark.asyncio
async def test_paths_are_relative_to_their_file_and_a_token_file_is_read_again(tmp_path: Path) -> None:
    """A rotated token is used within a minute, at once after a 401, and a gap in between is bridged."""
    (tmp_path / "token").write_text("first\n")
    access = load_kubeconfig([write(tmp_path / "config", config({"tokenFile": "token"}))])
    clock, source = VirtualClock(), access.credentials
    assert (await source.current(clock)).authorization == "Bearer first"
    (tmp_path / "token").write_text("second")
    clock.now_s += 59
    assert (await source.current(clock)).authorization == "Bearer first"
    clock.now_s += 1
    held = await source.current(clock)
    assert held.authorization == "Bearer second"
    (tmp_path / "token").write_text("third")
    source.refused(held)
    assert (await source.current(clock)).authorization == "Bearer third"
    (tmp_path / "token").unlink()
    clock.now_s += 61
    assert (await source.current(clock)).authorization == "Bearer third"


@pytest.mark.asyncio
async def test_a_client_certificate_is_loaded_from_data_and_from_files(tmp_path: Path) -> None:
    """Both spellings give the same context; a key that does not fit is a sentence."""
    certificate, key = make_pair("admin")
    _, other_key = make_pair("other")
    (tmp_path / "c.pem").write_bytes(certificate)
    (tmp_path / "k.pem").write_bytes(key)
    data = {"client-certificate-data": b64(certificate), "client-key-data": b64(key)}
    for user in (data, {"client-certificate": "c.pem", "client-key": "k.pem"}):
        access = load_kubeconfig([write(tmp_path / "config", config(user))])
        ssl_context(access.trust, await credential_of(access))
    wrong = load_kubeconfig([write(tmp_path / "config", config(data | {"client-key-data": b64(other_key)}))])
    with pytest.raises(KubeconfigError, match="do not belong together"):
        ssl_context(wrong.trust, await credential_of(wrong))


def test_trust_is_read(tmp_path: Path) -> None:
    """CA as data or file, server name, and no check where the user asked for none."""
    ca, _ = make_pair("ca")
    (tmp_path / "ca.pem").write_bytes(ca)
    for cluster in ({"certificate-authority-data": b64(ca)}, {"certificate-authority": "ca.pem"}):
        access = load_kubeconfig(
            [write(tmp_path / "config", config(cluster=cluster | {"tls-server-name": "kube"}))]
        )
        assert access.trust.ca_pem == ca.decode()
        assert access.trust.server_name == "kube"
        assert ssl_context(access.trust, Credential()).check_hostname
    access = load_kubeconfig([write(tmp_path / "config", config(cluster={"insecure-skip-tls-verify": True}))])
    assert not ssl_context(access.trust, Credential()).check_hostname


@pytest.mark.asyncio
async def test_basic_auth_impersonation_and_anonymous(tmp_path: Path) -> None:
    """The rarer entries act as written, never as somebody else."""
    access = load_kubeconfig([write(tmp_path / "config", config({"username": "a", "password": "b"}))])
    assert (await credential_of(access)).authorization == "Basic " + b64(b"a:b")
    user = {"as": "system:node:n", "as-groups": ["g1", "g2"], "as-user-extra": {"scopes": ["x"]}}
    access = load_kubeconfig([write(tmp_path / "config", config(user))])
    assert access.headers == (
        ("Impersonate-User", "system:node:n"),
        ("Impersonate-Group", "g1"),
        ("Impersonate-Group", "g2"),
        ("Impersonate-Extra-scopes", "x"),
    )
    access = load_kubeconfig([write(tmp_path / "config", config({}, {"server": "http://127.0.0.1:8001/"}))])
    assert (await credential_of(access)) == Credential()
    assert access.server == "http://127.0.0.1:8001"


WRONG: list[tuple[str, dict[str, Any] | str, str]] = [
    ("yaml", "users: [\n  token: " + SECRET, "not valid YAML at line"),
    ("tab", "a:\n\t- " + SECRET, "not valid YAML at line 2"),
    ("binary", "\x00\x01", "not a YAML text"),
    ("scalar", SECRET, "not as expected"),
    ("list", f"- {SECRET}", "not as expected"),
    ("type", config({"token": {"a": SECRET}}), "not as expected"),
    ("no context", config(**{"current-context": ""}), "sets no current-context"),
    ("other context", config(**{"current-context": "zz"}), "no context 'zz' .there are: c."),
    ("no cluster", config(clusters=[]), "names the cluster 'k', which is not defined"),
    ("no user", config(users=[]), "names the user 'u', which is not defined"),
    ("no server", config(cluster={"server": ""}), "the server of cluster 'k', '' is not an address"),
    ("scheme", config(cluster={"server": "10.0.0.1:6443"}), "is not an address; write https://host:port"),
    (
        "port",
        config(cluster={"server": "https://10.0.0.1:99999"}),
        "is not an address; write https://host:port",
    ),
    ("bracket", config(cluster={"server": "https://[::1"}), "is not an address; write https://host:port"),
    ("password", config(cluster={"server": f"https://a:{SECRET}@h"}), "contains a user name"),
    ("ca base64", config(cluster={"certificate-authority-data": "%"}), "not a PEM|is not base64"),
    ("ca missing", config(cluster={"certificate-authority": "none"}), "authority file .* cannot be read"),
    (
        "ca and insecure",
        config(cluster={"certificate-authority-data": "YQ==", "insecure-skip-tls-verify": True}),
        "remove one of them",
    ),
    ("token file", config({"tokenFile": "none"}), "token file .*none cannot be read .No such file"),
    ("token space", config({"token": f"{SECRET} {SECRET}"}), "holds no usable token"),
    ("token newline", config({"token": f"{SECRET}\r\nX-Evil: 1"}), "holds no usable token"),
    (
        "half certificate",
        config({"client-certificate-data": "YQ=="}),
        "only one of client certificate and client key",
    ),
    ("auth-provider", config({"auth-provider": {"name": "gcp"}}), "uses auth-provider"),
    ("group only", config({"as-groups": ["g"]}), "without a user"),
    ("exec version", config({"exec": {"command": "x", "apiVersion": "v1alpha1"}}), "apiVersion 'v1alpha1'"),
    (
        "exec missing",
        config(
            {
                "exec": {
                    "command": "no-such-plugin",
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "installHint": "get it at the desk",
                }
            }
        ),
        "'no-such-plugin' was not found; get it at the desk",
    ),
]


@pytest.mark.parametrize(("content", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_each_mistake_is_one_sentence_without_secrets(
    tmp_path: Path, content: dict[str, Any] | str, message: str
) -> None:
    """Which file, what is wrong, what to do; the token is never quoted, not even by a cause."""
    path = write(tmp_path / "config", content)
    with pytest.raises(KubeconfigError, match=message) as caught:
        access = load_kubeconfig([path])
        ssl_context(access.trust, Credential())
    text = str(caught.value)
    assert SECRET not in text
    assert "\n" not in text
    assert caught.value.__cause__ is None
    assert str(path.parent) in text or "token" in text


def test_a_file_that_is_not_there_or_a_folder_is_one_sentence(tmp_path: Path) -> None:
    """Named by the user, so its absence is an error."""
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(KubeconfigError, match="cannot be read"):
            load_kubeconfig([path])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["clusters", "users", "name", "user", "token", "x"]), inner, max_size=3
            )
        ),
        max_leaves=12,
    )
)
def test_any_yaml_is_an_access_or_one_exception(tmp_path: Path, data: Any) -> None:
    """Whatever stands in the file, the user gets a KubeconfigError and no traceback."""
    path = write(tmp_path / "config", yaml.safe_dump(data))
    with pytest.raises(KubeconfigError):
        load_kubeconfig([path])


def test_no_repr_shows_a_secret(tmp_path: Path) -> None:
    """An access, its credentials and what they read may end up in a log."""
    access = load_kubeconfig([write(tmp_path / "config", config())])
    assert SECRET not in repr(access) + repr(access.credentials) + repr(Credential(f"Bearer {SECRET}"))


@pytest.mark.asyncio
async def test_a_pod_reads_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Address from the environment, IPv6 in brackets; token and namespace from the projected files."""
    from outlast.adapters.kubernetes.incluster import in_cluster_access

    ca, _ = make_pair("ca")
    (tmp_path / "ca.crt").write_bytes(ca)
    (tmp_path / "token").write_text("pod-token")
    (tmp_path / "namespace").write_text("outlast\n")
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = in_cluster_access(env, tmp_path)
    assert access.server == "https://[fd00::1]:6443"
    assert access.namespace == "outlast"
    assert (await credential_of(access)).authorization == "Bearer pod-token"
