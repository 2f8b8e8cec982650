"""A certificate for the brokers of both sides, and the authority that clients trust: PEM files that both can read.

Guards one promise: both sides have the same certificate, the same kind of key and the same cipher suite, so what is
compared is how each encrypts and not what.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

# What two programs with gRPC's TLS agree on. Kafka is told to take it, else its choice is AES with 256 bits.
CIPHER_SUITE = "TLS_AES_128_GCM_SHA256"
KEY = "P-256"
_VALID = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class KeyFiles:
    authority: Path  # its certificate
    broker: Path  # private key and certificate

    @property
    def bus_settings(self) -> Sequence[str]:
        """Of a broker of the bus, `KEY=VALUE` each."""
        return f"ssl.truststore.location={self.authority}", f"ssl.keystore.location={self.broker}"

    @property
    def client_configs(self) -> dict[str, Any]:
        """Of the SDK's clients."""
        return {"security_protocol": "SSL", "ssl_ca_location": str(self.authority)}

    @property
    def kafka_broker_properties(self) -> str:
        return (
            "ssl.keystore.type=PEM\n"
            f"ssl.keystore.location={self.broker}\n"
            f"ssl.cipher.suites={CIPHER_SUITE}\n"
            "ssl.enabled.protocols=TLSv1.3\n"
        )

    @property
    def kafka_client_properties(self) -> str:
        return f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={self.authority}\n"


def write_key_files(folder: Path) -> KeyFiles:
    """Into a folder that is there; the certificate is for 127.0.0.1."""
    key, authority_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _sign("authority", authority_key, None, authority_key)
    certificate = _sign("broker", key, authority, authority_key)
    files = KeyFiles(folder / "authority.pem", folder / "broker.pem")
    files.authority.write_bytes(authority.public_bytes(Encoding.PEM))
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    files.broker.touch(mode=0o600)
    files.broker.write_bytes(key_pem + certificate.public_bytes(Encoding.PEM))
    return files


def _sign(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """`issuer` None: by itself, an authority."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None:
        host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([host]), critical=False)
    return builder.sign(issuer_key, SHA256())
