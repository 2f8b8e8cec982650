"""Accepted tokens, and each reason for which a token is refused; errors contain nothing of a token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWS

from bus.security.bearer_tokens import (
    ALGORITHMS,
    NO_KEYS,
    TOKEN_BYTES_MAX,
    AcceptedToken,
    RejectedToken,
    TokenRules,
    UnknownKey,
    check_token,
    parse_key_set,
)
from tests.support.identity_provider import AUDIENCE, ISSUER, forged, jwk_of, key_set, new_private_key, signed

NOW_S = 1_000_000.0
KEY = new_private_key("ES256")
KEYS = parse_key_set(key_set(jwk_of(KEY, "one")))
RULES = TokenRules(ISSUER, [AUDIENCE, "other-bus"])
CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW_S + 60}


def check(token: str, *, keys: Any = KEYS, rules: TokenRules = RULES) -> Any:
    return check_token(token, keys, rules, now_s=NOW_S)


def check_claims(rules: TokenRules = RULES, **claims: Any) -> Any:
    return check(signed(KEY, {**CLAIMS, **claims}), rules=rules)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_the_provider_is_accepted(algorithm: str) -> None:
    key = new_private_key(algorithm)
    token = signed(key, CLAIMS, algorithm=algorithm)
    keys = parse_key_set(key_set(jwk_of(key, "one"), jwk_of(KEY, "two")))
    assert check(token, keys=keys) == AcceptedToken("alice", (), NOW_S + 60)


@pytest.mark.parametrize(
    ("claims", "accepted"),
    [
        ({"aud": ["else", "other-bus"]}, AcceptedToken("alice", (), NOW_S + 60)),
        ({"exp": NOW_S - 29}, AcceptedToken("alice", (), NOW_S + 1)),
        ({"nbf": NOW_S + 30}, AcceptedToken("alice", (), NOW_S + 60)),
        ({"scope": "read write"}, AcceptedToken("alice", ("read", "write"), NOW_S + 60)),
        ({"scope": ["read", "write"]}, AcceptedToken("alice", ("read", "write"), NOW_S + 60)),
        (
            {"sub": "system:serviceaccount:jobs:loader"},
            AcceptedToken("system:serviceaccount:jobs:loader", (), NOW_S + 60),
        ),
    ],
)
def test_claims_that_are_accepted(claims: dict[str, Any], accepted: AcceptedToken) -> None:
    assert check_claims(**claims) == accepted


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"exp": NOW_S - 30}, "the token has expired 30 s ago"),
        ({"exp": None}, "expected a time of expiry"),
        ({"exp": "soon"}, "expected a time of expiry"),
        ({"exp": True}, "expected a time of expiry"),
        ({"exp": float("inf")}, "expected a JSON object of claims"),
        ({"exp": float("nan")}, "expected a JSON object of claims"),
        ({"exp": 10**400}, "expected a time of expiry"),
        ({"nbf": NOW_S + 31}, "not valid for another 31 s"),
        ({"nbf": "now"}, "expected a time of beginning"),
        ({"iss": "https://elsewhere.example"}, "expected the issuer .*found 'https://elsewhere.example'"),
        ({"iss": [ISSUER]}, "expected the issuer"),
        ({"iss": None}, "expected the issuer .*found none"),
        ({"aud": "elsewhere"}, "expected an audience .*bus, other-bus, found 'elsewhere'"),
        ({"aud": ["elsewhere", 3]}, "expected an audience"),
        ({"aud": {}}, "expected an audience"),
        ({"aud": None}, "expected an audience .*found none"),
        ({"sub": None}, "expected a name in the claim sub, found none"),
        ({"sub": ""}, "claim sub"),
        ({"sub": 7}, "expected a name in the claim sub"),
        ({"sub": "ANONYMOUS"}, "expected another name than ANONYMOUS"),
        ({"sub": "*"}, "expected another name than ANONYMOUS"),
        ({"sub": "two\nlines"}, "claim sub"),
        ({"sub": "\ud800"}, "claim sub"),
        ({"sub": "a" * 1_001}, "claim sub"),
        ({"scope": 7}, "expected a text, or a list of texts, in the claim scope"),
        ({"scope": [7]}, "expected a text, or a list of texts, in the claim scope"),
    ],
)
def test_claims_that_are_not_accepted(claims: dict[str, Any], said: str) -> None:
    import re

    found = check_claims(**claims)
    assert isinstance(found, RejectedToken)
    assert re.search(said, found.reason), found.reason
    assert len(found.reason) < 1_000
    assert "\n" not in found.reason


def test_other_claims_may_have_the_name_and_the_scopes() -> None:
    rules = TokenRules(ISSUER, [AUDIENCE], name_claim="email", scope_claim="scp", scopes=["bus.read", "bus.write"])
    accepted = check_claims(rules, email="a@b.example", scp="bus.write openid bus.read")
    assert accepted == AcceptedToken("a@b.example", ("bus.write", "openid", "bus.read"), NOW_S + 60)
    less = check_claims(rules, email="a@b.example", scp="bus.read")
    assert less == RejectedToken("expected the scope bus.write in the claim scp, found 'bus.read'", "a@b.example")
    assert isinstance(check_claims(rules, email="a@b.example"), RejectedToken)


def test_alg_none_and_hmac_with_the_public_key_are_refused() -> None:
    pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    der = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    for algorithm in ("none", "None", "", "HS256", None, 3):
        for secret in (None, b"", pem, der):
            found = check(forged(CLAIMS, {"alg": algorithm, "kid": "one"}, secret))
            assert isinstance(found, RejectedToken), algorithm
            assert "expected a signature by one of RS256" in found.reason
    assert isinstance(check(forged(CLAIMS, {"kid": "one"})), RejectedToken)


def test_a_signature_by_another_key_under_a_known_id_is_refused_and_its_claims_are_not_told() -> None:
    found = check(signed(new_private_key("ES256"), {**CLAIMS, "sub": "mallory"}))
    assert found == RejectedToken("the signature is not that of the key 'one'")


def test_a_key_of_the_wrong_kind_for_the_algorithm_is_none() -> None:
    """The algorithm is that of the key, whatever the token says."""
    token = signed(new_private_key("RS256"), CLAIMS, algorithm="RS256")
    assert check(token) == UnknownKey("one", "RS256")


def test_a_changed_payload_is_refused() -> None:
    header, _, signature = signed(KEY, CLAIMS).split(".")
    other = forged({**CLAIMS, "sub": "admin"}, {}).split(".")[1]
    assert isinstance(check(f"{header}.{other}.{signature}"), RejectedToken)


def test_an_unknown_key_is_asked_for() -> None:
    token = signed(KEY, CLAIMS, key_id="two")
    assert check(token) == UnknownKey("two", "ES256")
    assert "names the id 'two' and the algorithm ES256" in UnknownKey("two", "ES256").reason
    assert check(signed(KEY, CLAIMS), keys=NO_KEYS) == UnknownKey("one", "ES256")
    assert check(signed(KEY, CLAIMS, key_id=None)) == AcceptedToken("alice", (), NOW_S + 60)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a",
        "..",
        "a.b.c",
        "a.b.c.d.e",
        "bus-opaque-token",
        "\xff.\xff.\xff",
        forged("text", {"alg": "ES256", "kid": "one"}),
        forged([], {"alg": "ES256", "kid": "one"}),
        forged(CLAIMS, {"alg": "ES256", "kid": 7}),
        forged(CLAIMS, {"alg": "ES256", "kid": "a" * 600}),
        forged(CLAIMS, {"alg": "ES256", "kid": "one", "crit": ["exp"]}),
        forged(CLAIMS, {"alg": "ES256", "kid": "one", "b64": False}),
        forged(CLAIMS, ["ES256"]),
        "W" * 8_000 + ".e30.e30",
        "A" * (TOKEN_BYTES_MAX + 1),
    ],
    ids=lambda token: token[:20],
)
def test_what_is_no_token_is_refused(token: str) -> None:
    found = check(token)
    assert isinstance(found, RejectedToken)
    assert len(found.reason) < 1_000
    assert not token or len(token) < 3 or token not in found.reason


def test_deeply_nested_json_is_refused() -> None:
    import base64

    nested = base64.urlsafe_b64encode(b"[" * 9_000).decode().rstrip("=")
    assert isinstance(check(f"{nested}.e30.e30"), RejectedToken)
    assert isinstance(check(signed(KEY, CLAIMS).split(".")[0] + f".{nested}.e30"), RejectedToken)


def test_a_token_that_says_two_things_of_its_user_is_refused() -> None:
    claims = f'{{"iss":"{ISSUER}","aud":"{AUDIENCE}","exp":{NOW_S + 60},"sub":"alice","sub":"bob"}}'
    token = PyJWS().encode(claims.encode(), KEY, algorithm="ES256", headers={"kid": "one"})
    found = check(token)
    assert isinstance(found, RejectedToken)
    assert "expected a JSON object of claims" in found.reason


def test_a_token_makes_no_super_user_and_no_broker_unless_its_listener_allows_it() -> None:
    rules = replace(RULES, reserved=frozenset({"User:admin", "User:alice"}))
    refused = check_claims(rules)
    assert isinstance(refused, RejectedToken)
    assert refused.name == "alice"
    assert "'User:alice' is a super user or a broker" in refused.reason
    assert isinstance(check_claims(rules, sub="bob"), AcceptedToken)


def test_a_prefix_stands_before_the_name_and_is_no_way_around_what_is_reserved() -> None:
    rules = replace(RULES, prefix="ali", reserved=frozenset({"User:alice"}))
    assert check_claims(rules, sub="bi") == AcceptedToken("alibi", (), NOW_S + 60)
    assert isinstance(check_claims(rules, sub="ce"), RejectedToken)
    assert isinstance(check_claims(rules), AcceptedToken)
    assert isinstance(check_claims(rules, sub=" x"), RejectedToken)  # not seen by itself
