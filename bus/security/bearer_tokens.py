"""The public keys of an identity provider, read from its key set (RFC 7517), and the check of tokens that it signs.

A token is a signed JSON Web Token (RFC 7519), from which is read who logs in. Guards these promises: a key verifies
only the algorithms that fit its type, so a token cannot choose `none`, or HMAC with the public key as the secret; the
number and the size of keys are bounded; of a token that is not verified yet, only the key id and the algorithm are
used, and the algorithm has to be one of `ALGORITHMS`; issuer, audience and expiry are always checked; a principal
cannot be one with another meaning (`User:ANONYMOUS`), nor one that stands for more than an identity provider may say
(`reserved`: super users, brokers). The reason of a rejection is for the broker's log. It may contain claims of a
verified token, but never the token. Decides only: keys and time are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import InvalidKeyError, InvalidTokenError, PyJWK, PyJWKError, PyJWS

from bus.errors import show_names
from bus.records.json_text import parse_strict
from bus.security.acls import PRINCIPAL_TYPE
from bus.security.users import fault_of_name

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

KEYS_MAX = 1_000
KEY_ID_CHARACTERS_MAX = 512
# Below, RSA is too weak (NIST SP 800-131A); above, one signature holds the event loop for milliseconds.
_RSA_BITS_MIN, _RSA_BITS_MAX = 2_048, 8_192
_RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVE_ALGORITHMS = {("EC", "P-256"): "ES256", ("EC", "P-384"): "ES384", ("EC", "P-521"): "ES512"}
_EDWARDS = {("OKP", "Ed25519"): "EdDSA"}
# The algorithms that may sign a token (RFC 7518, RFC 8037): signatures by private keys only.
ALGORITHMS = (*_RSA_ALGORITHMS, *_CURVE_ALGORITHMS.values(), *_EDWARDS.values())


class KeySetError(ValueError):
    """A key set that cannot be used; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    key_id: str  # empty: the set gives it none
    algorithms: tuple[str, ...]  # some of ALGORITHMS, never empty
    key: PublicKey


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """`by_id`: the keys of a set, each under its id. `ignored`: how many others the set has."""

    by_id: Mapping[str, Sequence[SigningKey]]
    ignored: int = 0

    def __len__(self) -> int:
        return sum(len(keys) for keys in self.by_id.values())

    def find(self, key_id: str | None, algorithm: str) -> SigningKey | None:
        """The key for a token with this header. Without an id: the only one for the algorithm, if there is one only."""
        if key_id is not None:
            fitting = [key for key in self.by_id.get(key_id, ()) if algorithm in key.algorithms]
            return fitting[0] if fitting else None
        fitting = [key for keys in self.by_id.values() for key in keys if algorithm in key.algorithms]
        return fitting[0] if len(fitting) == 1 else None


NO_KEYS = SigningKeys(MappingProxyType({}))


def parse_key_set(document: bytes) -> SigningKeys:
    """Raises `KeySetError`."""
    try:
        found = parse_strict(document)
    except ValueError:
        raise KeySetError("expected a JSON Web Key Set, found no JSON") from None
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise KeySetError('expected a JSON Web Key Set, {"keys": [...]}, found other JSON')
    if len(listed) > KEYS_MAX:
        raise KeySetError(f"expected at most {KEYS_MAX} keys, found {len(listed)}")
    keys = [key for one in listed if (key := _signing_key(one)) is not None]
    if not keys:
        raise KeySetError(
            f"expected keys for signatures by {', '.join(ALGORITHMS)}, found none among the {len(listed)} of the set"
        )
    by_id: dict[str, list[SigningKey]] = {}
    for key in keys:
        by_id.setdefault(key.key_id, []).append(key)
    return SigningKeys(MappingProxyType(by_id), len(listed) - len(keys))


def _signing_key(found: Any) -> SigningKey | None:
    """None: it is for something else, or cannot be used."""
    if not isinstance(found, dict) or found.get("use", "sig") != "sig":
        return None
    key_id, algorithms = found.get("kid", ""), _algorithms(found)
    if not isinstance(key_id, str) or len(key_id) > KEY_ID_CHARACTERS_MAX or not algorithms:
        return None
    try:
        key = PyJWK(found, algorithm=algorithms[0]).key
    except (InvalidKeyError, PyJWKError, ValueError, TypeError, RecursionError):
        return None
    if not isinstance(key, PublicKey):  # a private key was published
        return None
    if isinstance(key, RSAPublicKey) and not _RSA_BITS_MIN <= key.key_size <= _RSA_BITS_MAX:
        return None
    return SigningKey(key_id, algorithms, key)


def _algorithms(found: Mapping[str, Any]) -> tuple[str, ...]:
    kind, curve = found.get("kty"), found.get("crv")
    if kind == "RSA":
        fitting: tuple[str, ...] = _RSA_ALGORITHMS
    elif isinstance(curve, str) and isinstance(kind, str):
        one = _CURVE_ALGORITHMS.get((kind, curve)) or _EDWARDS.get((kind, curve))
        fitting = () if one is None else (one,)
    else:
        fitting = ()
    return tuple(one for one in fitting if found.get("alg", one) == one)


# All headers of a call together may have 32 KiB.
TOKEN_BYTES_MAX = 16_384
NAME_BYTES_MAX = 1_000  # an ACL takes principals of 1,024 bytes
_TEXT_LENGTH_MAX = 200
_TIME_MAX_S = 1e12  # neither infinite nor not a number
_JWS = PyJWS(algorithms=list(ALGORITHMS))


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The rules for tokens, by Kafka's names: sasl.oauthbearer.expected.issuer, .expected.audience,
    .clock.skew.seconds, .sub.claim.name, .scope.claim.name. `scopes`: a token must have all of them. `prefix` precedes
    the name in a token. `reserved`: principals that no token may name."""

    issuer: str
    audiences: Sequence[str]  # the token has to name one of them
    clock_skew_s: int = 30
    name_claim: str = "sub"
    scope_claim: str = "scope"
    scopes: Sequence[str] = ()
    prefix: str = ""
    reserved: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AcceptedToken:
    """`name`: with the prefix. `expires_s`: when a login by the token ends, in seconds since 1970."""

    name: str
    scopes: tuple[str, ...]
    expires_s: float


@dataclass(frozen=True, slots=True)
class RejectedToken:
    """`name`: of the principal, if the signature is valid; otherwise empty."""

    reason: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """The key set has no key with this id for this algorithm. A newer key set may have it."""

    key_id: str | None
    algorithm: str

    @property
    def reason(self) -> str:
        named = "no id" if self.key_id is None else f"the id {_show(self.key_id)}"
        return f"the key set has no key for a token that names {named} and the algorithm {self.algorithm}"


def check_token(
    token: str, keys: SigningKeys, rules: TokenRules, *, now_s: float
) -> AcceptedToken | RejectedToken | UnknownKey:
    if len(token) > TOKEN_BYTES_MAX:
        return RejectedToken(f"expected a token of at most {TOKEN_BYTES_MAX} characters, found {len(token)}")
    if not token.isascii():
        return RejectedToken("expected a JSON Web Token, found characters beyond ASCII")
    named = _key_of(token)
    if isinstance(named, RejectedToken):
        return named
    key = keys.find(named.key_id, named.algorithm)
    if key is None:
        return named
    claims = _verified_claims(token, key, named.algorithm)
    if isinstance(claims, RejectedToken):
        return claims
    return _check_claims(claims, rules, now_s)


# ------------------------------------------------------------ the signature


def _key_of(token: str) -> UnknownKey | RejectedToken:
    try:
        header = _JWS.get_unverified_header(token)
    except (InvalidTokenError, ValueError, RecursionError):
        return RejectedToken("expected a signed JSON Web Token, found something else")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        return RejectedToken(f"expected a signature by one of {', '.join(ALGORITHMS)}, found {_show(algorithm)}")
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > KEY_ID_CHARACTERS_MAX):
        return RejectedToken(f"expected an id of the key (kid) of at most {KEY_ID_CHARACTERS_MAX} characters")
    return UnknownKey(key_id, algorithm)


def _verified_claims(token: str, key: SigningKey, algorithm: str) -> Mapping[str, Any] | RejectedToken:
    try:
        payload = _JWS.decode(token, key.key, algorithms=[algorithm])
    except (InvalidTokenError, ValueError, TypeError):
        return RejectedToken(f"the signature is not that of the key {_show(key.key_id)}")
    try:
        claims = parse_strict(payload)  # a name that comes twice would say two things of a user
    except ValueError:
        claims = None
    if not isinstance(claims, dict):
        return RejectedToken("expected a JSON object of claims, found something else")
    return claims


# ------------------------------------------------------------ the claims


def _check_claims(claims: Mapping[str, Any], rules: TokenRules, now_s: float) -> AcceptedToken | RejectedToken:
    claimed = claims.get(rules.name_claim)
    name = f"{rules.prefix}{claimed}"
    nameless = _fault_of_name(claimed, rules)
    reason = (
        _fault_of_origin(claims, rules)
        or _fault_of_time(claims, rules, now_s)
        or nameless
        or _fault_of_rank(name, rules)
        or _fault_of_scope(claims, rules)
    )
    if reason is not None:
        return RejectedToken(reason, "" if nameless else name)
    expires_s = float(claims["exp"])
    if expires_s <= now_s:  # within the skew of the clocks
        expires_s += rules.clock_skew_s
    return AcceptedToken(name, _scopes(claims.get(rules.scope_claim)) or (), expires_s)


def _fault_of_origin(claims: Mapping[str, Any], rules: TokenRules) -> str | None:
    issuer, audience = claims.get("iss"), claims.get("aud")
    if issuer != rules.issuer:
        return f"expected the issuer (iss) {rules.issuer}, found {_show(issuer)}"
    audiences = audience if isinstance(audience, list) else [audience]
    if not any(isinstance(one, str) and one in rules.audiences for one in audiences):
        return f"expected an audience (aud) of {', '.join(rules.audiences)}, found {_show(audience)}"
    return None


def _fault_of_time(claims: Mapping[str, Any], rules: TokenRules, now_s: float) -> str | None:
    expires: Any = claims.get("exp")
    begins: Any = claims.get("nbf", 0)
    if not _is_time(expires):
        return f"expected a time of expiry (exp) in seconds, found {_show(expires)}"
    if not _is_time(begins):
        return f"expected a time of beginning (nbf) in seconds, found {_show(begins)}"
    if now_s >= expires + rules.clock_skew_s:
        return f"the token has expired {now_s - expires:.0f} s ago (exp)"
    if now_s < begins - rules.clock_skew_s:
        return f"the token is not valid for another {begins - now_s:.0f} s (nbf); are the clocks right?"
    return None


def _fault_of_name(name: Any, rules: TokenRules) -> str | None:
    if not isinstance(name, str):
        return f"expected a name in the claim {rules.name_claim}, found {_show(name)}"
    for one in (name, f"{rules.prefix}{name}"):
        fault = fault_of_name(one, NAME_BYTES_MAX)
        if fault is not None:
            return f"the claim {rules.name_claim}: {fault}"
    return None


def _fault_of_rank(name: str, rules: TokenRules) -> str | None:
    principal = f"{PRINCIPAL_TYPE}:{name}"
    if principal not in rules.reserved:
        return None
    return (
        f"{_show(principal)} is a super user or a broker, and tokens of this listener may not say so "
        "(sasl.oauthbearer.allow.super.users)"
    )


def _fault_of_scope(claims: Mapping[str, Any], rules: TokenRules) -> str | None:
    found = claims.get(rules.scope_claim)
    scopes = _scopes(found)
    if scopes is None:
        return f"expected a text, or a list of texts, in the claim {rules.scope_claim}, found {_show(found)}"
    missing = [scope for scope in rules.scopes if scope not in scopes]
    if missing:
        return f"expected the scope {', '.join(missing)} in the claim {rules.scope_claim}, found {_show(found)}"
    return None


def _scopes(found: Any) -> tuple[str, ...] | None:
    """Parse scopes that are separated by spaces (RFC 8693), or a list, which some providers send. None: it is
    neither."""
    if found is None:
        return ()
    if isinstance(found, str):
        return tuple(found.split())
    if isinstance(found, list) and all(isinstance(one, str) for one in found):
        return tuple(found)
    return None


def _is_time(value: Any) -> bool:
    """Seconds since 1970, whole or not (RFC 7519, NumericDate)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _TIME_MAX_S


def _show(value: Any) -> str:
    """Format a value for a reason: on one line, and cut."""
    if isinstance(value, str):
        return repr(value[:_TEXT_LENGTH_MAX])
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return repr(show_names(value)[:_TEXT_LENGTH_MAX])
    return "none" if value is None else f"a value of the type {type(value).__name__}"
