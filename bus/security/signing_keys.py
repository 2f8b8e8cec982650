"""The public keys of an identity provider, read from its key set (RFC 7517).

Guards two promises: a key verifies only the algorithms that fit its type, so a token cannot choose `none`, or HMAC with
the public key as the secret; and the number and the size of keys are bounded. Providers publish keys for other purposes
too, so a key that cannot be used is left out and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import InvalidKeyError, PyJWK, PyJWKError

from bus.records.json_text import parse_strict

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
