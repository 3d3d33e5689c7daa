"""How to reach one API server: address, trust, identity.

An `Access` comes from a kubeconfig, from the pod we run in, or from a test that knows an address. It
holds no secret in the open: its repr names the server alone.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from outlast.adapters.kubernetes.credentials import (
    Credential,
    CredentialSource,
    FixedCredential,
    KubeconfigError,
    bearer,
)


@dataclass(frozen=True, slots=True)
class Trust:
    """How the server's certificate is checked; without a CA the system's are used."""

    ca_pem: str = ""
    insecure: bool = False
    server_name: str = ""
    origin: str = "The CA"
    """What to call the CA in an error."""


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """One API server as one user. Raises KubeconfigError for an address that is not one."""

    server: str
    trust: Trust = Trust()
    credentials: CredentialSource = field(default_factory=FixedCredential)
    namespace: str = "default"
    headers: tuple[tuple[str, str], ...] = ()
    """Sent with each request: impersonation."""
    proxy: str = ""
    origin: str = "The server address"

    def __post_init__(self) -> None:
        parts = _split(self.server)
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise KubeconfigError(
                f"{self.origin} {_without_user(self.server)!r} is not an address; write https://host:port."
            )
        if "@" in parts.netloc:
            raise KubeconfigError(
                f"{self.origin} for host {parts.hostname!r} contains a user name; "
                "put credentials into a user entry."
            )

    def __repr__(self) -> str:
        return f"Access({self.server})"

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.server.startswith("https:")


def _split(address: str) -> SplitResult | None:
    """The parts of an address; None for brackets that do not close and ports that do not exist."""
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018 - the port is looked at only when it is asked for
    except ValueError:
        return None
    return parts


def access_with_token(server: str, token: str = "", *, ca_pem: str = "") -> Access:
    """Access to a known address, for tests and tools; an empty token is anonymous."""
    authorization = bearer(token, "The token argument") if token else ""
    return Access(server, Trust(ca_pem=ca_pem), FixedCredential(Credential(authorization)))


def ssl_context(trust: Trust, credential: Credential) -> ssl.SSLContext:
    """A context for this server and client certificate. Raises KubeconfigError."""
    try:
        context = ssl.create_default_context(cadata=trust.ca_pem or None)
    except (ssl.SSLError, ValueError):
        raise KubeconfigError(
            f"{trust.origin} is not a PEM certificate; copy it again from the cluster."
        ) from None
    # Cluster CAs often lack the key identifiers that newer Python versions insist on.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    if trust.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credential.certificate_pem:
        _load_client_certificate(context, credential)
    return context


def _load_client_certificate(context: ssl.SSLContext, credential: Credential) -> None:
    pem = credential.certificate_pem.rstrip() + b"\n" + credential.key_pem
    try:
        # The ssl module loads from files only. A memory file works on a read-only root and leaves no trace.
        if hasattr(os, "memfd_create"):
            with os.fdopen(os.memfd_create("client-certificate"), "wb") as file:
                file.write(pem)
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=_no_passphrase)
        else:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "client.pem"
                path.touch(mode=0o600)
                path.write_bytes(pem)
                context.load_cert_chain(path, password=_no_passphrase)
    except (ssl.SSLError, ValueError):
        raise KubeconfigError(
            "The client certificate and key do not belong together or are not plain PEM; "
            "check client-certificate and client-key of the user entry."
        ) from None


def _no_passphrase() -> str:
    raise ValueError("an encrypted key")


def _without_user(server: str) -> str:
    return server.rpartition("@")[2][:200]
