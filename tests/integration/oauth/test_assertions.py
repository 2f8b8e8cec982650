"""Clients that show an assertion, signed by their key, to the token endpoint in place of a secret."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from bus.errors import BusError, ErrorCode
from bus.security.oauth.token_settings import AssertionSettings, TokenSettings, parse_url
from bus.security.oauth.token_sources import TokenSource
from tests.support.identity_provider import IdentityProvider, identity_provider, new_private_key

KEYS = {"RS256": new_private_key("RS256"), "ES256": new_private_key("ES256")}
PASSPHRASE = "hush of the key"


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        provider.client_keys["loader"] = KEYS["RS256"].public_key()
        yield provider


def pem_of(key: Any, passphrase: str = "") -> bytes:
    encryption = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    found: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    return found


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "loader.key"
    path.write_bytes(pem_of(KEYS["RS256"]))
    return path


def source(provider: IdentityProvider, *, client_id: str = "loader", **assertion: Any) -> TokenSource:
    given = {"issuer": "loader", "subject": "loader", "audience": f"{provider.url}/token", **assertion}
    settings = AssertionSettings(**given)
    return TokenSource(TokenSettings(parse_url(f"{provider.url}/token"), client_id=client_id, assertion=settings))


def refusal(found: TokenSource, hidden: str = PASSPHRASE) -> BusError:
    with pytest.raises(BusError) as caught:
        found.token(5_000)
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    for secret in (hidden, "PRIVATE KEY", "eyJ"):
        assert secret not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256"])
@pytest.mark.parametrize("passphrase", ["", PASSPHRASE], ids=["plain", "encrypted"])
def test_a_token_is_got_by_an_assertion(provider: IdentityProvider, algorithm: str, passphrase: str) -> None:
    key = KEYS["ES256" if algorithm == "ES256" else "RS256"]
    provider.client_keys["loader"] = key.public_key()
    pem = pem_of(key, passphrase).decode().replace("\n", "\\n")
    settings = source(provider, key_pem=pem, passphrase=passphrase, algorithm=algorithm)
    assert settings.token(5_000)
    [shown] = provider.assertions
    assert shown["header"]["alg"] == algorithm
    claims = shown["claims"]
    assert claims["exp"] - claims["iat"] == 300
    assert claims["iat"] - claims["nbf"] == 60
    assert abs(claims["iat"] - time.time()) < 60
    [request] = provider.token_requests
    assert request["client_id"] == ["loader"]


def test_each_assertion_is_another_one_and_the_key_may_change_meanwhile(
    provider: IdentityProvider, key_file: Path
) -> None:
    tokens = source(provider, key_file=key_file)
    tokens.forget(tokens.token(5_000))
    new = new_private_key("RS256")
    key_file.write_bytes(pem_of(new))
    provider.client_keys["loader"] = new.public_key()
    tokens.token(5_000)
    assert len({one["claims"]["jti"] for one in provider.assertions}) == 2
    assert source(provider, key_file=key_file, has_id=False).token(5_000)
    assert "jti" not in provider.assertions[-1]["claims"]


def test_header_and_claims_of_a_template_are_in_the_assertion(
    provider: IdentityProvider, key_file: Path, tmp_path: Path
) -> None:
    template = tmp_path / "template.json"
    template.write_text(
        json.dumps({"header": {"kid": "7", "alg": "none"}, "payload": {"sub": "loader", "tenant": "t", "exp": 1}})
    )
    assert source(provider, key_file=key_file, template_file=template, subject="another").token(5_000)
    [shown] = provider.assertions
    assert shown["header"] == {"kid": "7", "alg": "RS256", "typ": "JWT"}
    assert shown["claims"]["tenant"] == "t"
    for text in ("{", "[]", '{"header": 1}', '{"headers": {}}'):
        template.write_text(text)
        assert f"{template}: expected" in refusal(source(provider, key_file=key_file, template_file=template)).message


def test_an_assertion_may_be_ready_made(provider: IdentityProvider, tmp_path: Path) -> None:
    file = tmp_path / "assertion"
    claims = {"iss": "loader", "sub": "loader", "aud": f"{provider.url}/token", "iat": time.time()}

    def write(life_s: float) -> None:
        file.write_text(jwt.encode({**claims, "exp": time.time() + life_s}, KEYS["RS256"], "RS256") + "\n")

    write(60)
    tokens = source(provider, file=file, client_id="")
    tokens.forget(tokens.token(5_000))
    assert "client_id" not in provider.token_requests[0]
    asked = len(provider.token_requests)
    write(-60)
    assert f"the assertion in {file} has expired" in refusal(tokens).message
    file.write_text("half of an {assertion")
    assert f"the assertion in {file}: expected a token of letters" in refusal(tokens).message
    file.unlink()
    assert f"{file}: expected a readable file, found: No such file" in refusal(tokens).message
    assert len(provider.token_requests) == asked


def test_a_key_that_cannot_be_used_is_told_by_its_file(provider: IdentityProvider, tmp_path: Path) -> None:
    whole = pem_of(KEYS["RS256"])
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    cases: list[tuple[bytes, dict[str, Any], str]] = [
        (whole[:400], {}, "expected a private key as PEM; it cannot be read"),
        (b"", {}, "expected a private key as PEM; it cannot be read"),
        (pem_of(KEYS["RS256"], PASSPHRASE), {}, "found an encrypted one and no passphrase"),
        (pem_of(KEYS["RS256"], "another"), {"passphrase": PASSPHRASE}, "or its passphrase is another one"),
        (whole, {"passphrase": PASSPHRASE}, "found one that is not encrypted, and a passphrase"),
        (pem_of(KEYS["ES256"]), {}, "expected a key of RSA for RS256, found another one"),
        (whole, {"algorithm": "ES256"}, "expected a key on the curve P-256 for ES256, found another one"),
        (pem_of(new_private_key("ES384")), {"algorithm": "ES256"}, "expected a key on the curve P-256 for ES256"),
        (pem_of(short), {}, "expected at least 2048 bits, found 1024"),
    ]
    path = tmp_path / "loader.key"
    for content, more, said in cases:
        path.write_bytes(content)
        message = refusal(source(provider, key_file=path, **more)).message
        assert f"{path}: expected" in message
        assert said in message
    assert provider.token_requests == []


def test_an_assertion_that_the_provider_refuses_is_final_and_shown_nowhere(
    provider: IdentityProvider, key_file: Path
) -> None:
    """The provider repeats it in its answer."""
    for wrong in ({"audience": "elsewhere"}, {"issuer": "elsewhere"}, {"subject": "unknown"}):
        assert "HTTP status 401" in refusal(source(provider, key_file=key_file, **wrong)).message


def test_a_key_that_is_lost_costs_nothing_while_the_token_holds(
    provider: IdentityProvider, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = time.time()
    tokens = source(provider, key_file=key_file)
    tokens._now_s = lambda: now_s
    first = tokens.token(5_000)
    key_file.write_bytes(b"half")
    now_s += 0.8 * provider.life_s
    assert tokens.token(5_000) == first
    assert "expected a private key as PEM; it cannot be read" in caplog.text
