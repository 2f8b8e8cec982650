"""SCRAM: the examples of the RFCs, and what each side refuses of the other."""

from __future__ import annotations

import base64

import pytest

from bus.security.scram import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ClientFirst,
    ScramClient,
    ScramError,
    ScramMechanism,
    ScramServer,
    credential_of,
    is_password_of,
    parse_client_first,
    salt_password,
)

SHA_1 = ScramMechanism("SCRAM-SHA-1", "sha1", 20)
# Of RFC 5802, section 5, and RFC 7677, section 3: client's nonce, server's nonce, salt, proof, signature.
RFC_5802 = (
    SHA_1,
    "fyko+d2lbbFgONRv9qkxdawL",
    "3rfcNHYJY1ZVvWVs7j",
    "QSXCR+Q6sek8bf92",
    "v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    "rmF9pqV8S7suAoZWja4dJRkFsKQ=",
)
RFC_7677 = (
    SCRAM_SHA_256,
    "rOprNGfwEbeRWgbNEkqO",
    "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    "W22ZaJ0SNY7soEsUEjb6gQ==",
    "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)
SALT = b"salt-and-pepper"


@pytest.mark.parametrize("example", [RFC_5802, RFC_7677], ids=["RFC 5802", "RFC 7677"])
def test_both_sides_say_what_the_example_of_the_rfc_says(
    example: tuple[ScramMechanism, str, str, str, str, str],
) -> None:
    mechanism, client_nonce, server_nonce, salt_text, proof, signature = example
    salt = base64.b64decode(salt_text)
    credential = credential_of(mechanism, salt_password(mechanism, "pencil", salt, 4096), salt, 4096)
    client = ScramClient(mechanism, "user", "pencil", client_nonce)
    assert client.first() == f"n,,n=user,r={client_nonce}".encode()
    server = ScramServer(mechanism, parse_client_first(client.first()), credential, server_nonce)
    assert server.first() == f"r={client_nonce}{server_nonce},s={salt_text},i=4096".encode()
    final = client.final(server.first())
    assert final == f"c=biws,r={client_nonce}{server_nonce},p={proof}".encode()
    answer = server.check(final)
    assert answer == f"v={signature}".encode()
    client.check(answer)


def log_in(password: str, *, name: str = "alice", mechanism: ScramMechanism = SCRAM_SHA_512) -> bytes | None:
    """Log in as a user whose password is "right"."""
    credential = credential_of(mechanism, salt_password(mechanism, "right", SALT, 4096), SALT, 4096)
    client = ScramClient(mechanism, name, password, "abc")
    first = parse_client_first(client.first())
    assert first.name == name
    server = ScramServer(mechanism, first, credential, "def")
    answer = server.check(client.final(server.first()))
    if answer is not None:
        client.check(answer)
    return answer


@pytest.mark.parametrize("name", ["alice", "CN=alice,O=Example", "=2C", "ä,=", "a b"])
def test_any_name_gets_through(name: str) -> None:
    assert log_in("right", name=name) is not None


def test_a_wrong_password_proves_nothing() -> None:
    assert log_in("wrong") is None
    credential = credential_of(SCRAM_SHA_256, salt_password(SCRAM_SHA_256, "right", SALT, 4096), SALT, 4096)
    assert is_password_of(SCRAM_SHA_256, credential, "right")
    assert not is_password_of(SCRAM_SHA_256, credential, "wrong")


def test_a_credential_shows_no_key() -> None:
    credential = credential_of(SCRAM_SHA_256, salt_password(SCRAM_SHA_256, "right", SALT, 4096), SALT, 4096)
    assert repr(credential) == "ScramCredential(iterations=4096)"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n",
        b"n,,n=alice",
        b"n,,r=abc,n=alice",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=a\nb",
        b"n,,n=ali=ce,r=abc",
        b"n,,m=x,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,a=root,n=alice,r=abc",
        b"\xff\xfe",
        b"n,,n=" + b"a" * 5000 + b",r=abc",
    ],
)
def test_what_is_no_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        parse_client_first(message)


def test_extensions_that_are_not_mandatory_are_passed_over() -> None:
    assert parse_client_first(b"n,a=alice,n=alice,r=abc,t=1") == ClientFirst(
        "alice", "abc", "n,a=alice,", "n=alice,r=abc,t=1"
    )


@pytest.mark.parametrize(
    ("final", "expected"),
    [
        (b"c=biws,r=abcdef,p=AAAA", "a proof of 32 bytes"),
        (b"c=biws,r=abcdef,p=?", "base64"),
        (b"c=biws,r=abcdef", "the fields c, r, p"),
        (b"c=biws,r=abcxyz,p=AAAA", "nonce and the header"),
        (b"c=cCws,r=abcdef,p=AAAA", "nonce and the header"),
        (b"", "the fields"),
    ],
)
def test_what_is_no_last_message_is_refused(final: bytes, expected: str) -> None:
    credential = credential_of(SCRAM_SHA_256, salt_password(SCRAM_SHA_256, "right", SALT, 4096), SALT, 4096)
    server = ScramServer(SCRAM_SHA_256, parse_client_first(b"n,,n=alice,r=abc"), credential, "def")
    with pytest.raises(ScramError, match=expected):
        server.check(final)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (b"r=xyzdef,s=c2FsdA==,i=4096", "another one"),
        (b"r=abc,s=c2FsdA==,i=4096", "another one"),
        (b"r=abcdef,s=c2FsdA==,i=1", "give the password away"),
        (b"r=abcdef,s=c2FsdA==,i=999999999", "found 999999999"),
        (b"r=abcdef,s=c2FsdA==,i=-5", "a number"),
        (b"r=abcdef,s=c2FsdA==", "the fields r, s, i"),
        (b"m=new,r=abcdef,s=c2FsdA==,i=4096", "mandatory"),
        (b"e=other-error", "refused"),
    ],
)
def test_a_client_does_not_trust_the_server(first: bytes, expected: str) -> None:
    with pytest.raises(ScramError, match=expected):
        ScramClient(SCRAM_SHA_256, "alice", "right", "abc").final(first)


def test_a_server_that_does_not_know_the_user_is_found_out() -> None:
    client = ScramClient(SCRAM_SHA_256, "alice", "right", "abc")
    with pytest.raises(ScramError, match="has not proved"):
        client.check(b"v=AAAA")
    client.final(b"r=abcdef,s=c2FsdA==,i=4096")
    with pytest.raises(ScramError, match="has not proved"):
        client.check(b"v=AAAA")
