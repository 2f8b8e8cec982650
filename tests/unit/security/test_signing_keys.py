"""Key sets of identity providers: which keys are for tokens, and by which algorithms."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from bus.security.bearer_tokens import ALGORITHMS, KEYS_MAX, KeySetError, parse_key_set
from tests.support.identity_provider import jwk_of, key_set, new_private_key

RSA, EC = new_private_key("RS256"), new_private_key("ES256")


def test_a_key_is_for_the_algorithms_of_its_kind() -> None:
    keys = parse_key_set(key_set(jwk_of(RSA, "rsa"), jwk_of(EC, "ec"), jwk_of(new_private_key("EdDSA"), "ed")))
    assert len(keys) == 3
    fitting = {kid: [one for one in ALGORITHMS if keys.find(kid, one)] for kid in ("rsa", "ec", "ed", "other")}
    assert fitting == {
        "rsa": ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
        "ec": ["ES256"],
        "ed": ["EdDSA"],
        "other": [],
    }


def test_a_key_that_names_its_algorithm_is_for_no_other() -> None:
    keys = parse_key_set(key_set(jwk_of(RSA, "rsa", alg="PS256")))
    assert keys.find("rsa", "PS256") is not None
    assert keys.find("rsa", "RS256") is None


OTHERS: dict[str, Any] = {
    "symmetric": {"kty": "oct", "k": "c2VjcmV0", "kid": "hmac"},
    "symmetric with its algorithm": {"kty": "oct", "k": "c2VjcmV0", "kid": "hmac", "alg": "HS256"},
    "for encryption": jwk_of(EC, "encrypts") | {"use": "enc"},
    "public key for HMAC": jwk_of(EC, "hmac") | {"alg": "HS256"},
    "public key for none": jwk_of(EC, "none") | {"alg": "none"},
    "short": {"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "short"},
    "no point": {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "no point"},
    "another curve": {"kty": "EC", "crv": "secp256k1", "kid": "bitcoin"},
    "types": {"kty": ["EC"], "crv": {}},
    "long id": {"kid": "a" * 10_000} | jwk_of(EC),
    "id of another type": {"kid": 3, **jwk_of(EC)},
    "text": "text",
    "null": None,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_key_for_tokens_is_left_out(name: str) -> None:
    keys = parse_key_set(json.dumps({"keys": [OTHERS[name], jwk_of(RSA, "rsa")]}).encode())
    assert list(keys.by_id) == ["rsa"]
    assert keys.ignored == 1


def test_a_published_private_key_and_one_that_is_too_short_or_too_long_are_left_out() -> None:
    from jwt.algorithms import RSAAlgorithm

    private = RSAAlgorithm.to_jwk(RSA, as_dict=True) | {"kid": "private"}
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    long = {"kty": "RSA", "e": "AQAB", "n": "_" + "w" * 1_998 + "x", "kid": "long"}
    keys = parse_key_set(key_set(private, jwk_of(weak, "weak"), long, jwk_of(EC, "ec")))
    assert list(keys.by_id) == ["ec"]
    assert keys.ignored == 3


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"", "found no JSON"),
        (b"<html>", "found no JSON"),
        (b"\xff\xfe", "found no JSON"),
        (b"[" * 100_000, "found no JSON"),
        (b"[]", "found other JSON"),
        (b'{"keys": {}}', "found other JSON"),
        (b'{"keys": []}', "found none among the 0"),
        (b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "found none among the 1"),
        (b'{"keys": [' + b"0," * KEYS_MAX + b"0]}", f"at most {KEYS_MAX} keys, found {KEYS_MAX + 1}"),
    ],
)
def test_what_is_no_key_set_is_refused(document: bytes, said: str) -> None:
    with pytest.raises(KeySetError, match=said):
        parse_key_set(document)


def test_a_token_without_a_key_id_gets_the_only_key_for_its_algorithm() -> None:
    one = parse_key_set(key_set(jwk_of(RSA), jwk_of(EC, "ec")))
    assert one.find(None, "RS256") is not None
    assert one.find(None, "ES256") is not None
    several = parse_key_set(key_set(jwk_of(EC, "one"), jwk_of(new_private_key("ES256"), "two")))
    assert several.find(None, "ES256") is None
