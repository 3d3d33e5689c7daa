"""Keys and certificates of one throw-away control plane: an authority, its server, its users.

Elliptic curves keep this at a few milliseconds. The server's own self-signed pair would do for kubectl,
but newer Pythons verify strictly and refuse it.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR = dt.timedelta(days=2)
_CRITICAL_USAGE = {
    "content_commitment": False,
    "key_encipherment": False,
    "data_encipherment": False,
    "key_agreement": False,
    "encipher_only": False,
    "decipher_only": False,
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Paths of a certificate and its key, both PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs the server's and the users' certificates of one control plane; files go to `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "outlast test authority")])
        builder = _certificate(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **_CRITICAL_USAGE),
            critical=True,
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, name: str) -> Pair:
        """A serving pair for 127.0.0.1 and localhost."""
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return self._issue(name, [x509.NameAttribute(NameOID.COMMON_NAME, name)], server_names=names)

    def client(self, user: str, groups: Sequence[str] = ()) -> Pair:
        """A pair that the API server reads as this user in these groups."""
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
        return self._issue(user.replace(":", "-").replace("/", "-"), subject)

    def _issue(
        self,
        file_name: str,
        subject: Sequence[x509.NameAttribute[str]],
        *,
        server_names: Sequence[x509.GeneralName] = (),
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if server_names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = _certificate(x509.Name(subject), self._name, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        if server_names:
            builder = builder.add_extension(x509.SubjectAlternativeName(server_names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(_private(key))
        return pair


def signing_pair(folder: Path) -> Pair:
    """The pair that signs ServiceAccount tokens; `certificate` is the bare public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    pair = Pair(folder / "service-account.pub", folder / "service-account.key")
    pair.certificate.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    pair.key.write_bytes(_private(key))
    return pair


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(minutes=5)).not_valid_after(now + VALID_FOR)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
