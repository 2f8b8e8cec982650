"""Keys and certificates: what is given out belongs together and is valid; bad files leave the earlier ones in use."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes as PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate

from bus.model import InlinePem, KeyFiles, NameChanges
from bus.security.key_material import KeyMaterialFault, WatchedKeyMaterial, read_key_material
from tests.support.certificates import Authority, Issued

NOW = datetime.now(timezone.utc)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_one_file_with_both_is_the_same_as_two(authority: Authority) -> None:
    issued = authority.issue("broker")
    two = read_key_material(KeyFiles(issued.certificate, issued.key, authority.path), NOW)
    assert read_key_material(KeyFiles(issued.both, issued.both, authority.path), NOW) == two
    assert two.trusted == authority.path.read_bytes()


def test_key_is_decrypted_and_shown_to_nobody(authority: Authority) -> None:
    issued = authority.issue("broker", password="hush")
    files = KeyFiles(issued.certificate, issued.key, password="hush")
    material = read_key_material(files, NOW)
    assert material.key is not None
    assert b"BEGIN PRIVATE KEY" in material.key
    assert "hush" not in repr(files)
    assert "PRIVATE" not in repr(material)


@pytest.mark.parametrize("password", [None, "hush"])
@pytest.mark.parametrize("fold", [str, lambda pem: pem.replace("\n", " "), lambda pem: pem.replace("\n", "\\n")])
def test_settings_may_hold_what_files_would(
    authority: Authority, password: str | None, fold: Callable[[str], str]
) -> None:
    issued = authority.issue("broker", password=password)
    in_files = KeyFiles(issued.certificate, issued.key, authority.path, password)
    inline = KeyFiles(
        InlinePem("chain", fold(issued.certificate.read_text() + authority.path.read_text())),
        InlinePem("key", fold(issued.key.read_text())),
        InlinePem("trusted", fold(authority.path.read_text())),
        password,
    )
    expected, found = read_key_material(in_files, NOW), read_key_material(inline, NOW)
    assert (found.key, found.trusted) == (expected.key, expected.trusted)
    assert found.chain == (expected.chain or b"") + authority.path.read_bytes()
    assert "BEGIN" not in repr(inline)
    watched = WatchedKeyMaterial(inline)
    watched.look()
    assert watched.current == found


def test_fault_of_a_setting_names_it_and_shows_nothing_of_it(authority: Authority) -> None:
    issued = authority.issue("broker")
    certificate, key = (InlinePem(path.suffix[1:], path.read_text()) for path in (issued.certificate, issued.key))
    for files, said in (
        (KeyFiles(InlinePem("chain", "hush"), key), "chain: expected certificates as PEM, found none that can be read"),
        (KeyFiles(certificate, InlinePem("the.key", "hush")), "the.key: expected a private key as PEM, found none"),
        (KeyFiles(certificate, InlinePem("the.key", key.text[:90] + key.text[120:])), "the.key: expected a private"),
        (KeyFiles(trusted=InlinePem("ca", "")), "ca: expected certificates as PEM"),
    ):
        with pytest.raises(KeyMaterialFault, match=re.escape(said)) as refused:
            read_key_material(files, NOW)
        assert "hush" not in str(refused.value)
        assert key.text[40:60] not in str(refused.value)


def test_files_that_cannot_be_used_are_refused_with_the_reason(authority: Authority, tmp_path: Path) -> None:
    broker, locked = authority.issue("broker"), authority.issue("locked", password="hush")
    java, empty = tmp_path / "java.jks", tmp_path / "empty.pem"
    java.write_bytes(b"\xfe\xed\xfe\xed more")
    empty.write_bytes(b"")
    cases = [
        (KeyFiles(tmp_path / "none", broker.key), "none: expected a readable file, found: No such file"),
        (KeyFiles(java, java), "java.jks: expected PEM, found a Java keystore"),
        (KeyFiles(empty, broker.key), "empty.pem: expected certificates as PEM, found none that can be read"),
        (KeyFiles(broker.certificate, broker.certificate), "broker.crt: expected a private key as PEM, found none"),
        (KeyFiles(broker.certificate, locked.key), "found an encrypted one and no password (ssl.key.password)"),
        (KeyFiles(locked.certificate, locked.key, password="bad"), "or its password is another one"),
        (KeyFiles(broker.certificate, broker.key, password="x"), "found one that is not encrypted, and a password"),
        (KeyFiles(authority.issue("other").certificate, broker.key), "expected the private key of"),
        (KeyFiles(*pair(authority.issue("old", days=(-2, -1)))), "expected a certificate that is valid now, found"),
        (KeyFiles(*pair(authority.issue("new", days=(1, 2)))), "expected a certificate that is valid now, found"),
        (KeyFiles(trusted=empty), "empty.pem: expected certificates as PEM"),
    ]
    for files, said in cases:
        with pytest.raises(KeyMaterialFault, match=re.escape(said)) as refused:
            read_key_material(files, NOW)
        assert "hush" not in str(refused.value)


def test_bundle_that_is_written_half_is_refused_not_taken_in_part(authority: Authority, tmp_path: Path) -> None:
    bundle, broker = tmp_path / "bundle.pem", authority.issue("broker")
    whole = authority.path.read_bytes() + Authority(tmp_path / "two").path.read_bytes()
    bundle.write_bytes(whole)
    assert read_key_material(KeyFiles(trusted=bundle), NOW).trusted == whole
    bundle.write_bytes(whole[:-60])
    with pytest.raises(KeyMaterialFault, match=r"bundle\.pem: expected 2 whole certificates, found 1"):
        read_key_material(KeyFiles(trusted=bundle), NOW)
    broker.certificate.write_bytes(broker.certificate.read_bytes() + whole[:-60])
    with pytest.raises(KeyMaterialFault, match=r"broker\.crt: expected 3 whole certificates, found 2"):
        read_key_material(KeyFiles(broker.certificate, broker.key), NOW)


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (ec.generate_private_key(ec.SECP521R1()), "secp521r1"),
        (ed25519.Ed25519PrivateKey.generate(), "Ed25519"),
    ],
)
def test_key_with_which_no_handshake_ends_is_refused(authority: Authority, key: PrivateKeyTypes, found: str) -> None:
    issued = authority.issue("broker", key=key)
    with pytest.raises(KeyMaterialFault, match=rf"expected a certificate of an RSA key .*, found {found}$"):
        read_key_material(KeyFiles(issued.certificate, issued.key), NOW)


@pytest.mark.parametrize(
    ("whole", "damaged"),
    [
        ("a003020102", "a003020139"),  # version
        ("06072a8648ce3d0201", "06072a8648ce3d0241"),  # kind of the key
        ("06082a8648ce3d030107", "06082a8648ce3d030159"),  # its curve
        ("03420004", "03420009"),  # its point
    ],
)
def test_damaged_certificate_is_a_fault_wherever_it_is_damaged(authority: Authority, whole: str, damaged: str) -> None:
    """The library has errors of its own for what it does not know."""
    broker = authority.issue("broker")
    content = load_pem_x509_certificate(broker.certificate.read_bytes()).public_bytes(Encoding.DER)
    assert bytes.fromhex(whole) in content
    text = base64.encodebytes(content.replace(bytes.fromhex(whole), bytes.fromhex(damaged))).decode()
    broker.certificate.write_text(f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n")
    with pytest.raises(KeyMaterialFault, match=r"broker\.crt: expected"):
        read_key_material(KeyFiles(broker.certificate, broker.key), NOW)


def pair(issued: Issued) -> tuple[Path, Path]:
    return issued.certificate, issued.key


def test_bad_change_leaves_the_earlier_certificate_and_is_told_once(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.issue("broker")
    watched = WatchedKeyMaterial(KeyFiles(issued.certificate, issued.key))
    first, good = watched.current, issued.certificate.read_bytes()
    caplog.set_level(logging.INFO, "bus.security.key_material")
    for content in (good[:100], authority.issue("other").certificate.read_bytes()):
        caplog.clear()
        issued.certificate.write_bytes(content)
        for _ in range(3):
            watched.look()
        assert watched.current is first
        [record] = caplog.records
        assert "cannot be used; those of before stay" in record.getMessage()
    next_one = authority.issue("broker")  # into the same files
    caplog.clear()
    watched.look()
    watched.look()
    assert watched.current.chain == next_one.certificate.read_bytes()
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_bad_change_is_told_again_after_the_files_of_before_were_back(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.issue("broker")
    watched = WatchedKeyMaterial(KeyFiles(issued.certificate, issued.key))
    aside = tmp_path / "aside"
    for _ in range(2):
        caplog.clear()
        issued.certificate.rename(aside)
        watched.look()
        watched.look()
        assert len(caplog.records) == 1
        aside.rename(issued.certificate)
        watched.look()


@pytest.mark.parametrize(
    ("may_change", "uris", "refused"),
    [
        (NameChanges(), ("spiffe://bus/a", "spiffe://bus/b"), None),
        (NameChanges(), ("spiffe://bus/a", "spiffe://bus/b", "spiffe://bus/c"), None),
        (NameChanges(), ("spiffe://bus/b",), "found none of spiffe://bus/a; ssl.allow.san.changes=true"),
        (NameChanges(of_subject=True), (), "found none of spiffe://bus/a, spiffe://bus/b; ssl.allow.san.changes=true"),
        (NameChanges(of_alternatives=True), (), None),
    ],
)
def test_changed_files_take_no_alternative_name_away(
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
    may_change: NameChanges,
    uris: tuple[str, ...],
    refused: str | None,
) -> None:
    issued = authority.issue("broker", uris=("spiffe://bus/a", "spiffe://bus/b"))
    watched = WatchedKeyMaterial(KeyFiles(issued.certificate, issued.key), may_change=may_change)
    first = watched.current
    authority.issue("broker", uris=uris)  # into the same files
    watched.look()
    assert (watched.current is first) is (refused is not None)
    assert refused is None or refused in caplog.text


def test_changed_files_give_no_other_name(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    issued = authority.issue("broker")
    files = KeyFiles(issued.certificate, issued.key)
    strict, lenient, client = (
        WatchedKeyMaterial(files, may_change=NameChanges()),
        WatchedKeyMaterial(files, may_change=NameChanges(of_subject=True)),
        WatchedKeyMaterial(files),
    )
    first = strict.current
    other = authority.issue("other")
    for mine, its in zip(pair(issued), pair(other), strict=True):
        mine.write_bytes(its.read_bytes())
    for watched in (strict, lenient, client):
        watched.look()
    assert strict.current is first
    assert "the certificate in use, CN=broker,O=Bus\\, Ltd, found CN=other,O=Bus\\, Ltd; ssl.allow.dn" in caplog.text
    assert lenient.current.chain == client.current.chain == other.certificate.read_bytes()
    authority.issue("broker")  # the name of before, with a new key
    strict.look()
    assert strict.current.chain == issued.certificate.read_bytes()


def test_certificate_whose_alternative_names_cannot_be_read_is_a_fault(authority: Authority) -> None:
    broker = authority.issue("broker")
    content = load_pem_x509_certificate(broker.certificate.read_bytes()).public_bytes(Encoding.DER)
    names = bytes.fromhex("300687047f000001")
    assert names in content
    text = base64.encodebytes(content.replace(names, bytes.fromhex("300687057f000001"))).decode()
    broker.certificate.write_text(f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n")
    with pytest.raises(KeyMaterialFault, match=r"broker\.crt: expected a certificate whose extensions can be read"):
        read_key_material(KeyFiles(broker.certificate, broker.key), NOW)
