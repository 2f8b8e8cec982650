"""The client response of RFC 7628: what it looks like, and what is none."""

from __future__ import annotations

import pytest

from bus.security.oauth.token_sources import NoToken, client_response, parse_client_response


def test_the_example_of_the_rfc_is_read_but_for_its_identity() -> None:
    """RFC 7628, 4.1. The bus takes the principal from the token."""
    token = "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="
    message = f"n,,\x01host=server.example.com\x01port=143\x01auth=Bearer {token}\x01\x01".encode()
    assert parse_client_response(message) == token
    with pytest.raises(NoToken, match="no authorization identity"):
        parse_client_response(message.replace(b"n,,", b"n,a=user@example.com,"))


@pytest.mark.parametrize("token", ["abc", "a.b-c_d~e+f/g==", "A" * 20_000])
def test_what_is_written_is_read(token: str) -> None:
    assert parse_client_response(client_response(token)) == token


def test_extensions_of_kafka_are_read_over() -> None:
    assert parse_client_response(b"n,,\x01auth=Bearer abc\x01traceId=123\x01\x01") == "abc"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a\x00b\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"n,,\x01auth=Bearer abc\x01\x01more",
        b"n,,\x01auth=Bearer abc\x01auth=Bearer abc\x01\x01",
        b"p=x,,\x01auth=Bearer abc\x01\x01",
        b"n,,n=alice,r=abc",
        b"n,,\x01auth=Bearer " + b"a" * 100_000 + b"\x01\x01",
    ],
    ids=lambda message: repr(message[:30]),
)
def test_what_is_no_client_response_is_refused_without_what_was_found(message: bytes) -> None:
    with pytest.raises(NoToken, match="expected") as refused:
        parse_client_response(message)
    assert "abc" not in str(refused.value)


@pytest.mark.parametrize("token", ["", "two words", "a\x01b", "a\nb", "ä", "=a"])
def test_what_would_end_the_message_is_not_written(token: str) -> None:
    with pytest.raises(NoToken):
        client_response(token)
