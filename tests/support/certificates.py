"""Certificates for tests: an authority, and what it issues, as PEM files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Issued:
    """`both` has the key and the certificate."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = _sign(name, self._key, None, self._key, host="", days=(-1, 30))
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        host: str = "127.0.0.1",
        days: tuple[float, float] = (-1, 30),
        password: str | None = None,
        key: CertificateIssuerPrivateKeyTypes | None = None,
        uris: Sequence[str] = (),
    ) -> Issued:
        """`days`: from when to when it is valid, from now. `uris`: alternative names beside the host."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        certificate = _sign(name, key, self._certificate, self._key, host=host, days=days, uris=uris)
        encryption: KeySerializationEncryption = NoEncryption()
        if password is not None:
            encryption = BestAvailableEncryption(password.encode())
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        pem = certificate.public_bytes(Encoding.PEM)
        issued = Issued(*(self._folder / f"{name}{suffix}" for suffix in (".crt", ".key", ".pem")))
        issued.certificate.write_bytes(pem)
        issued.key.write_bytes(key_pem)
        issued.both.write_bytes(key_pem + pem)
        return issued


def _sign(
    name: str,
    key: CertificateIssuerPrivateKeyTypes,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    host: str,
    days: tuple[float, float],
    uris: Sequence[str] = (),
) -> x509.Certificate:
    subject = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Bus, Ltd"), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )
    now = datetime.now(timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if host:
        names = [_general_name(host), *map(x509.UniformResourceIdentifier, uris)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, SHA256())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
