"""A private key, its certificates and those that are trusted, as PEM in files or settings: read, checked, read again.

Guards two promises: what is given out belongs together and is valid at that time, and files that were changed to
something else (half written, another key, expired) leave what was read before in use; and a certificate with other
names than the one in use is refused, unless they may change. Nothing of a key is in an error, a `repr` or the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from bus.errors import count_of
from bus.model import ANY_NAMES, InlinePem, KeyFiles, NameChanges
from bus.platform.bounded_files import FileFault, read_bounded
from bus.platform.reentry import Turn, logger_of

_log = logger_of(__name__)

_KEY_BLOCK = re.compile(
    rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----.*?-----END (?:[A-Z]+ )?PRIVATE KEY-----\n?", re.DOTALL
)
_BASE64_BLOCK = re.compile(r"(-----BEGIN [A-Z0-9 ]+-----)([A-Za-z0-9+/=\s]*)(-----END [A-Z0-9 ]+-----)\s*")
_LINE_CHARACTERS = 64
_CERTIFICATE_BEGIN = re.compile(rb"-----BEGIN (?:X509 )?CERTIFICATE-----")
_CURVES = (ec.SECP256R1.name, ec.SECP384R1.name)  # gRPC's TLS ends no handshake with a key of another kind, except RSA
_UNREADABLE = (ValueError, UnsupportedAlgorithm, x509.InvalidVersion)
_UNREADABLE_NAMES = (*_UNREADABLE, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)
_JKS_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE = b"\x30"

_Source = Path | InlinePem  # its text is a path or the name of a setting


class KeyMaterialFault(Exception):
    """The files cannot be used. The message names file, what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class CertificateNames:
    subject: x509.Name
    alternatives: frozenset[x509.GeneralName]


@dataclass(frozen=True, slots=True)
class KeyMaterial:
    """PEM, as gRPC takes it; the key is not encrypted. `names`: of the own certificate."""

    chain: bytes | None
    key: bytes | None = field(repr=False)
    trusted: bytes | None
    names: CertificateNames | None = None


def read_key_material(files: KeyFiles, now: datetime) -> KeyMaterial:
    """Raises `KeyMaterialFault`."""
    key = chain = names = None
    if files.certificate is not None and files.key is not None:
        key, chain, names = _read_pair(files.certificate, files.key, files.password, now)
    trusted = None
    if files.trusted is not None:
        trusted = _read(files.trusted)
        _certificates(files.trusted, trusted)
    return KeyMaterial(chain, key, trusted, names)


class WatchedKeyMaterial:
    """`current` is always material that was valid when it was read; `look` reads the files again if they were changed.
    `may_change`: which names a certificate in changed files may give up. Safe to use from several threads."""

    def __init__(
        self,
        files: KeyFiles,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        *,
        may_change: NameChanges = ANY_NAMES,
    ) -> None:
        """Raises `KeyMaterialFault`."""
        self._files = files
        self._may_change = may_change
        self._now = now
        self._lock = Turn()
        self._signature = self._sign()
        self._logged_fault = ""
        self.current = read_key_material(files, now())

    def look(self) -> None:
        """Logs a change once, and once why changed files cannot be used. Reads files: not for an event loop."""
        with self._lock:
            log = self._look()
        log()

    def _look(self) -> Callable[[], None]:
        """Look at the files, and return what logs the outcome: a handler of the log may come back."""
        signature = self._sign()
        if signature == self._signature:
            self._logged_fault = ""  # the former files are back: the next bad ones are reported again
            return lambda: None
        try:
            found = read_key_material(self._files, self._now())
            self._check_names(found.names)
        except KeyMaterialFault as fault:
            if str(fault) == self._logged_fault:
                return lambda: None
            self._logged_fault = str(fault)
            return partial(_log.error, "certificates were changed and cannot be used; those of before stay: %s", fault)
        self._signature, self._logged_fault = signature, ""
        if found == self.current:
            return lambda: None
        self.current = found
        return partial(_log.info, "certificates were changed: new connections use %s", self._files.certificate)

    def _check_names(self, found: CertificateNames | None) -> None:
        """Raises `KeyMaterialFault` if names are lost that may not change."""
        held = self.current.names
        if held is None or found is None:
            return
        where = f"{self._files.certificate}: expected"
        if found.subject != held.subject and not self._may_change.of_subject:
            raise KeyMaterialFault(
                f"{where} the name of the certificate in use, {held.subject.rfc4514_string()}, found "
                f"{found.subject.rfc4514_string()}; ssl.allow.dn.changes=true, or a restart, lets it change"
            )
        missing = held.alternatives - found.alternatives
        if missing and not self._may_change.of_alternatives:
            raise KeyMaterialFault(
                f"{where} the alternative names of the certificate in use, found none of "
                f"{', '.join(sorted(map(_show_name, missing)))}; ssl.allow.san.changes=true, or a restart, lets them go"
            )

    def _sign(self) -> tuple[tuple[int, int, int] | None, ...]:
        """It differs if a file was changed."""
        return tuple(map(_signature, (self._files.certificate, self._files.key, self._files.trusted)))


def _signature(source: _Source | None) -> tuple[int, int, int] | None:
    try:
        found = source.stat() if isinstance(source, Path) else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def _read(path: _Source) -> bytes:
    if isinstance(path, InlinePem):
        return _unfold(path.text).encode()
    try:
        content = read_bounded(path)
    except FileFault as fault:
        raise KeyMaterialFault(f"{path}: {fault}") from None
    if content.startswith((*_JKS_MAGIC, _DER_SEQUENCE)):
        raise KeyMaterialFault(
            f"{path}: expected PEM, found a Java keystore, PKCS#12 or DER; convert it with: keytool -importkeystore "
            "-deststoretype PKCS12, then openssl pkcs12 -nodes"
        )
    return content


def _unfold(text: str) -> str:
    """Properties files and environments hold PEM in one line, with spaces or `\\n` for the ends of lines."""

    def wrap(block: re.Match[str]) -> str:
        body = "".join(block[2].split())
        lines = [body[start : start + _LINE_CHARACTERS] for start in range(0, len(body), _LINE_CHARACTERS)]
        return "\n".join([block[1], *lines, block[3], ""])

    return _BASE64_BLOCK.sub(wrap, text.replace("\\n", "\n"))


def _certificates(path: _Source, content: bytes) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(content)
    except _UNREADABLE:
        raise KeyMaterialFault(f"{path}: expected certificates as PEM, found none that can be read") from None
    begun = len(_CERTIFICATE_BEGIN.findall(content))
    if begun != len(found):
        raise KeyMaterialFault(f"{path}: expected {count_of(begun, 'whole certificate')}, found {len(found)}")
    return found


def _public_key(path: _Source, certificate: x509.Certificate) -> rsa.RSAPublicKey | ec.EllipticCurvePublicKey:
    try:
        key = certificate.public_key()
    except _UNREADABLE as error:
        raise KeyMaterialFault(f"{path}: expected a certificate with a public key, found: {error}") from None
    if isinstance(key, rsa.RSAPublicKey) or (isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES):
        return key
    found = key.curve.name if isinstance(key, ec.EllipticCurvePublicKey) else type(key).__name__
    raise KeyMaterialFault(
        f"{path}: expected a certificate of an RSA key or one on the curves P-256 and P-384, which gRPC's TLS takes, "
        f"found {found.removesuffix('PublicKey')}"
    )


def _names(path: _Source, certificate: x509.Certificate) -> CertificateNames:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return CertificateNames(certificate.subject, frozenset(extension.value))
    except x509.ExtensionNotFound:
        return CertificateNames(certificate.subject, frozenset())
    except _UNREADABLE_NAMES:
        raise KeyMaterialFault(f"{path}: expected a certificate whose extensions can be read") from None


def _show_name(name: x509.GeneralName) -> str:
    return str(name.value)


def _read_pair(
    certificate: _Source, key_path: _Source, password: str | None, now: datetime
) -> tuple[bytes, bytes, CertificateNames]:
    """Key, chain and names."""
    content = _read(certificate)
    certificates = _certificates(certificate, content)
    own = certificates[0]
    since, until = own.not_valid_before_utc, own.not_valid_after_utc
    if not since <= now <= until:
        raise KeyMaterialFault(f"{certificate}: expected a certificate that is valid now, found {since} to {until}")
    public_key = _public_key(certificate, own)
    block = _KEY_BLOCK.search(_read(key_path))
    if block is None:
        raise KeyMaterialFault(f"{key_path}: expected a private key as PEM, found none")
    try:
        key = load_pem_private_key(block[0], None if password is None else password.encode())
    except TypeError:
        found = "an encrypted one and no password" if password is None else "one that is not encrypted, and a password"
        raise KeyMaterialFault(f"{key_path}: expected a private key, found {found} (ssl.key.password)") from None
    except _UNREADABLE:
        hint = "" if password is None else ", or its password is another one (ssl.key.password)"
        raise KeyMaterialFault(f"{key_path}: expected a private key as PEM; it cannot be read{hint}") from None
    if key.public_key() != public_key:
        raise KeyMaterialFault(f"{key_path}: expected the private key of {certificate}, found another one")
    chain = b"".join(one.public_bytes(Encoding.PEM) for one in certificates)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), chain, _names(certificate, own)
