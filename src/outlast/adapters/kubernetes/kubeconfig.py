"""Reads kubeconfig files the way kubectl does, and says in one sentence what is wrong with one.

Several files are merged: the first to name a context, cluster, user or current-context wins, and
relative paths are relative to the file they stand in. No message quotes the text of a file.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from outlast.adapters.kubernetes.access import Access, Trust
from outlast.adapters.kubernetes.credentials import (
    Credential,
    CredentialSource,
    FileCredential,
    FixedCredential,
    KubeconfigError,
    SecretFiles,
    basic,
    bearer,
    read_secret,
)
from outlast.adapters.kubernetes.exec_plugin import API_VERSIONS, ExecCredentialSource, ExecPlugin
from outlast.adapters.kubernetes.incluster import in_cluster_access, is_in_cluster

KUBECONFIG_BYTES_MAX = 8 * 1024 * 1024


class _Entry(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """Base of the shapes below; `repr` is never used on them, since they hold secrets."""

    def __repr__(self) -> str:
        return type(self).__name__


class _Cluster(_Entry, frozen=True):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[dict[str, Any]] | None = None


class _EnvVar(_Entry, frozen=True):
    name: str
    value: str = ""


class _Exec(_Entry, frozen=True, rename="camel"):
    command: str
    api_version: str = ""
    args: list[str] | None = None
    env: list[_EnvVar] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class _User(_Entry, frozen=True):
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    password: str = ""
    exec: _Exec | None = None
    auth_provider: dict[str, Any] | None = None
    as_: str = msgspec.field(name="as", default="")
    as_uid: str = ""
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str]] | None = None


class _Context(_Entry, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(_Entry, frozen=True):
    name: str
    cluster: _Cluster = _Cluster()


class _NamedUser(_Entry, frozen=True):
    name: str
    user: _User = _User()


class _NamedContext(_Entry, frozen=True):
    name: str
    context: _Context = _Context()


class _File(_Entry, frozen=True):
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


S = TypeVar("S")


@dataclass(slots=True, repr=False)
class _Merged:
    """All files together; each entry keeps the file it came from."""

    files: list[Path] = field(default_factory=list)
    current_context: str = ""
    clusters: dict[str, tuple[_Cluster, Path]] = field(default_factory=dict)
    users: dict[str, tuple[_User, Path]] = field(default_factory=dict)
    contexts: dict[str, tuple[_Context, Path]] = field(default_factory=dict)

    def add(self, path: Path, file: _File) -> None:
        self.files.append(path)
        self.current_context = self.current_context or file.current_context
        for cluster in file.clusters or ():
            self.clusters.setdefault(cluster.name, (cluster.cluster, path))
        for user in file.users or ():
            self.users.setdefault(user.name, (user.user, path))
        for context in file.contexts or ():
            self.contexts.setdefault(context.name, (context.context, path))


def find_access(
    kubeconfig: str | Path | None = None, *, context: str = "", env: Mapping[str, str] | None = None
) -> Access:
    """The cluster to use: `kubeconfig`, else KUBECONFIG, else ~/.kube/config, else the pod we run in.

    `context` overrides the current context. Raises KubeconfigError.
    """
    env = os.environ if env is None else env
    if kubeconfig:
        return load_kubeconfig([Path(kubeconfig)], context=context)
    if env.get("KUBECONFIG"):
        named = [Path(part) for part in env["KUBECONFIG"].split(os.pathsep) if part]
        # As kubectl: files of the list may be absent, as long as one is there.
        present = [path for path in named if path.exists()]
        return load_kubeconfig(present or named, context=context)
    # A container may have no home at all; then the name is only for the message.
    home = Path(env.get("HOME") or "~") / ".kube" / "config"
    if home.exists():
        return load_kubeconfig([home], context=context)
    if is_in_cluster(env):
        return in_cluster_access(env)
    raise KubeconfigError(
        f"No cluster was found: KUBECONFIG is not set, {home} does not exist and this is not a pod; "
        "set KUBECONFIG or name a file with --kubeconfig."
    )


def load_kubeconfig(paths: Sequence[Path], *, context: str = "") -> Access:
    """Access to the cluster of one context. Raises KubeconfigError."""
    merged = _Merged()
    for path in paths:
        merged.add(path, _read(path))
    where = ":".join(map(str, merged.files))
    name = context or merged.current_context
    if not name:
        raise KubeconfigError(
            f"{where} sets no current-context; "
            "run `kubectl config use-context NAME` or name one with --context."
        )
    if name not in merged.contexts:
        known = ", ".join(sorted(merged.contexts)[:10]) or "none"
        raise KubeconfigError(f"{where} has no context {name!r} (there are: {known}); choose one of these.")
    chosen, context_path = merged.contexts[name]
    if chosen.cluster not in merged.clusters:
        raise KubeconfigError(
            f"{context_path}: context {name!r} names the cluster {chosen.cluster!r}, "
            "which is not defined; add it."
        )
    if chosen.user and chosen.user not in merged.users:
        raise KubeconfigError(
            f"{context_path}: context {name!r} names the user {chosen.user!r}, which is not defined; add it."
        )
    cluster, cluster_path = merged.clusters[chosen.cluster]
    user, user_path = merged.users.get(chosen.user, (_User(), context_path))
    user_where = f"{user_path}: user {chosen.user!r}"
    return Access(
        server=cluster.server.rstrip("/"),
        trust=_trust(cluster, cluster_path, chosen.cluster),
        credentials=_credentials(user, user_path, user_where, cluster, cluster_path),
        namespace=chosen.namespace or "default",
        headers=_impersonation(user, user_where),
        proxy=cluster.proxy_url,
        origin=f"{cluster_path}: the server of cluster {chosen.cluster!r},",
    )


def _read(path: Path) -> _File:
    try:
        with path.open("rb") as file:
            text = file.read(KUBECONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise KubeconfigError(
            f"The kubeconfig {path} cannot be read ({error.strerror}); check the path and its permissions."
        ) from None
    if len(text) > KUBECONFIG_BYTES_MAX:
        raise KubeconfigError(
            f"The kubeconfig {path} is larger than {KUBECONFIG_BYTES_MAX} bytes; check the path."
        )
    data = _parsed(text, path)
    try:
        # Null stands for absent in YAML written by hand and by some tools.
        return msgspec.convert({} if data is None else _without_nulls(data), _File)
    except msgspec.ValidationError as error:
        raise KubeconfigError(f"The kubeconfig {path} is not as expected: {error}; correct it.") from None
    except RecursionError:
        raise KubeconfigError(f"The kubeconfig {path} is nested without end; correct it.") from None


def _parsed(text: bytes, path: Path) -> Any:
    if text.lstrip().startswith(b"{"):
        # JSON is YAML; what is not quite JSON (comments, trailing commas) is left to the YAML parser.
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(text)
    # 1 MB and 20 ms, which an agent with a service account need not have.
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        # str(error) would quote the lines around the mistake, and a token may stand there.
        line = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise KubeconfigError(
            f"The kubeconfig {path} is not valid YAML{line}; correct or replace it."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError):
        raise KubeconfigError(f"The kubeconfig {path} is not a YAML text; check the path.") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


def _trust(cluster: _Cluster, path: Path, name: str) -> Trust:
    origin = f"{path}: the certificate authority of cluster {name!r}"
    ca = b""
    if cluster.certificate_authority_data:
        ca = _decoded(
            cluster.certificate_authority_data, f"{path}: certificate-authority-data of cluster {name!r}"
        )
    elif cluster.certificate_authority:
        ca = read_secret(_beside(path, cluster.certificate_authority), "certificate authority")
    if ca and cluster.insecure_skip_tls_verify:
        raise KubeconfigError(
            f"{path}: cluster {name!r} has a certificate authority and insecure-skip-tls-verify; "
            "remove one of them."
        )
    return Trust(
        ca_pem=ca.decode("ascii", "replace"),
        insecure=cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        origin=origin,
    )


def _credentials(
    user: _User, path: Path, where: str, cluster: _Cluster, cluster_path: Path
) -> CredentialSource:
    if user.auth_provider is not None:
        raise KubeconfigError(
            f"{where} uses auth-provider, which Kubernetes removed; use an exec plugin instead."
        )
    if user.exec is not None:
        return _exec_source(user.exec, path, where, cluster, cluster_path)
    if bool(user.client_certificate or user.client_certificate_data) != bool(
        user.client_key or user.client_key_data
    ):
        raise KubeconfigError(f"{where} has only one of client certificate and client key; add the other.")
    fixed = Credential(
        authorization=_authorization(user, where),
        certificate_pem=_decoded(user.client_certificate_data, f"client-certificate-data of {where}"),
        key_pem=_decoded(user.client_key_data, f"client-key-data of {where}"),
    )
    files = SecretFiles(
        token=_beside(path, user.token_file) if user.token_file else None,
        certificate=_beside(path, user.client_certificate)
        if user.client_certificate and not user.client_certificate_data
        else None,
        key=_beside(path, user.client_key) if user.client_key and not user.client_key_data else None,
    )
    if files == SecretFiles():
        return FixedCredential(fixed)
    for secret, what in (
        (files.token, "token"),
        (files.certificate, "client certificate"),
        (files.key, "client key"),
    ):
        if secret:
            read_secret(secret, what)
    return FileCredential(files, fixed)


def _authorization(user: _User, where: str) -> str:
    if user.token:
        return bearer(user.token, where)
    if user.username:
        return basic(user.username, user.password)
    return ""


def _exec_source(
    plugin: _Exec, path: Path, where: str, cluster: _Cluster, cluster_path: Path
) -> CredentialSource:
    if plugin.api_version not in API_VERSIONS:
        raise KubeconfigError(
            f"{where}: the exec plugin's apiVersion {plugin.api_version!r} is not known; "
            f"use {' or '.join(API_VERSIONS)}."
        )
    if plugin.interactive_mode == "Always":
        raise KubeconfigError(
            f"{where}: the exec plugin needs a terminal (interactiveMode Always), which there is not; "
            "use another user."
        )
    command = str(_beside(path, plugin.command)) if os.sep in plugin.command else plugin.command
    if shutil.which(command) is None:
        hint = plugin.install_hint.strip() or "install it or put it on PATH."
        raise KubeconfigError(f"{where}: the exec plugin {command!r} was not found; {hint}")
    return ExecCredentialSource(
        ExecPlugin(
            command=command,
            args=tuple(plugin.args or ()),
            env={variable.name: variable.value for variable in plugin.env or ()},
            api_version=plugin.api_version,
            install_hint=plugin.install_hint,
            cluster=_cluster_info(cluster, cluster_path) if plugin.provide_cluster_info else None,
        )
    )


def _cluster_info(cluster: _Cluster, path: Path) -> dict[str, Any]:
    """The cluster as an exec plugin sees it; its config comes from a reserved extension."""
    info: dict[str, Any] = {"server": cluster.server}
    if cluster.certificate_authority_data:
        info["certificate-authority-data"] = cluster.certificate_authority_data
    elif cluster.certificate_authority:
        ca = read_secret(_beside(path, cluster.certificate_authority), "certificate authority")
        info["certificate-authority-data"] = base64.b64encode(ca).decode()
    if cluster.insecure_skip_tls_verify:
        info["insecure-skip-tls-verify"] = True
    if cluster.tls_server_name:
        info["tls-server-name"] = cluster.tls_server_name
    if cluster.proxy_url:
        info["proxy-url"] = cluster.proxy_url
    for extension in cluster.extensions or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info


def _impersonation(user: _User, where: str) -> tuple[tuple[str, str], ...]:
    headers = [("Impersonate-User", user.as_)] if user.as_ else []
    headers += [("Impersonate-Uid", user.as_uid)] if user.as_uid else []
    headers += [("Impersonate-Group", group) for group in user.as_groups or ()]
    for key, values in (user.as_user_extra or {}).items():
        headers += [(f"Impersonate-Extra-{key}", value) for value in values]
    if headers and not user.as_:
        raise KubeconfigError(f"{where} impersonates a group, uid or extra without a user; add `as`.")
    if any(not (name + value).isprintable() for name, value in headers):
        raise KubeconfigError(f"{where} impersonates a name with a control character; correct it.")
    return tuple(headers)


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise KubeconfigError(f"{what} is not base64; copy it again from the cluster.") from None


def _beside(path: Path, name: str) -> Path:
    return path.parent / name
