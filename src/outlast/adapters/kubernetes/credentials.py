"""Who we are to the API server: fixed, read again from files, or asked from an exec plugin.

A source gives the credential that holds now and is told when the server refused it. Secrets live in
`Credential` alone, which never shows them.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outlast.ports.clock import Clock

REREAD_S = 60.0
"""The kubelet rotates projected tokens long before they end; a minute is what other clients use."""
SECRET_FILE_BYTES_MAX = 1024 * 1024


class KubeconfigError(Exception):
    """No usable way to a cluster. The message is one sentence: which file, what is wrong, what to do."""


@dataclass(frozen=True, slots=True, repr=False)
class Credential:
    """What is presented to the server: a header, a client certificate, both, or nothing."""

    authorization: str = ""
    certificate_pem: bytes = b""
    key_pem: bytes = b""

    def __repr__(self) -> str:
        parts = [
            name
            for name, value in (("authorization", self.authorization), ("certificate", self.certificate_pem))
            if value
        ]
        return f"Credential({', '.join(parts) or 'anonymous'})"


class CredentialSource(Protocol):
    """Gives the credential to use now."""

    async def current(self, clock: Clock) -> Credential:
        """The credential for the next request. Raises KubeconfigError or Unauthorized."""
        ...

    def refused(self, credential: Credential) -> None:
        """The server answered 401 to this credential: obtain another before the next request."""
        ...


def bearer(token: str, origin: str) -> str:
    """The header for a token. Raises KubeconfigError for one that no header can carry."""
    token = token.strip()
    if not token or not token.isascii() or any(c.isspace() or not c.isprintable() for c in token):
        raise KubeconfigError(f"{origin} holds no usable token; write it again, as one line of plain text.")
    return f"Bearer {token}"


def basic(username: str, password: str) -> str:
    """The header for a user name and password."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


class FixedCredential:
    """A credential that never changes."""

    def __init__(self, credential: Credential = Credential()) -> None:
        self._credential = credential

    async def current(self, clock: Clock) -> Credential:
        """The credential given at the start."""
        return self._credential

    def refused(self, credential: Credential) -> None:
        """Nothing else to offer."""


@dataclass(frozen=True, slots=True)
class SecretFiles:
    """Files that hold parts of a credential; None where a part is not in a file."""

    token: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


class FileCredential:
    """A credential whose files are read again each minute and after a 401.

    While a file cannot be read the last content stays in use: rotation replaces files by rename, but a
    short gap must not take a controller down.
    """

    def __init__(self, files: SecretFiles, fixed: Credential = Credential()) -> None:
        self._files = files
        self._fixed = fixed
        self._held: Credential | None = None
        self._read_at_s = 0.0

    async def current(self, clock: Clock) -> Credential:
        """The credential as the files had it less than a minute ago. Raises KubeconfigError."""
        now_s = clock.monotonic()
        if self._held is None or now_s - self._read_at_s >= REREAD_S:
            try:
                self._held = self._read()
            except KubeconfigError:
                if self._held is None:
                    raise
            self._read_at_s = now_s
        return self._held

    def refused(self, credential: Credential) -> None:
        """Read the files at the next request."""
        self._read_at_s = float("-inf")

    def _read(self) -> Credential:
        files, fixed = self._files, self._fixed
        authorization = fixed.authorization
        if files.token:
            origin = f"Token file {files.token}"
            authorization = bearer(read_secret(files.token, "token").decode("utf-8", "replace"), origin)
        return Credential(
            authorization=authorization,
            certificate_pem=read_secret(files.certificate, "client certificate")
            if files.certificate
            else fixed.certificate_pem,
            key_pem=read_secret(files.key, "client key") if files.key else fixed.key_pem,
        )


def read_secret(path: Path, what: str) -> bytes:
    """The bytes of a small file. Raises KubeconfigError with the reason."""
    try:
        with path.open("rb") as file:
            data = file.read(SECRET_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise KubeconfigError(
            f"The {what} file {path} cannot be read ({error.strerror}); check the path and its permissions."
        ) from None
    if len(data) > SECRET_FILE_BYTES_MAX:
        raise KubeconfigError(
            f"The {what} file {path} is larger than {SECRET_FILE_BYTES_MAX} bytes; check the path."
        )
    return data
