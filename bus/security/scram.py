"""SCRAM by RFC 5802 and RFC 7677: what client and broker say to each other, and what the broker keeps of a password.

Guards two promises: the password itself never leaves the client, and what a broker keeps (`ScramCredential`) proves a
password without being one. Pure: nonces are arguments. What comes from the other side is outside data and is refused
with `ScramError`, whose message names no secret. Channel binding and authorization as another user are refused.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import re
import stringprep
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from unicodedata import ucd_3_2_0

# Brokers prepare what callers show before they are logged in, and the time may grow with the square of the length.
CHARACTERS_MAX = 256

_PROHIBITED: tuple[Callable[[str], bool], ...] = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def prepared(text: str) -> str:
    """Prepare a text for a login by SASLprep (RFC 4013): one form of what looks the same in Unicode, however a keyboard
    or a system writes it, so that clients, administrators and brokers salt the same text of a password.

    Code points that Unicode 3.2 has not assigned are allowed. What the profile prohibits is taken as it is, as in
    PostgreSQL, and so is a text of more than `CHARACTERS_MAX`. ASCII does not change. Kafka prepares nothing."""
    if text.isascii() or len(text) > CHARACTERS_MAX:
        return text
    spaced = "".join(" " if stringprep.in_table_c12(one) else one for one in text if not stringprep.in_table_b1(one))
    found = ucd_3_2_0.normalize("NFKC", spaced)
    is_allowed = not any(is_in(one) for one in set(found) for is_in in _PROHIBITED) and _is_of_one_direction(found)
    return found if found and is_allowed else text


def _is_of_one_direction(text: str) -> bool:
    """RFC 3454, section 6."""
    if not any(map(stringprep.in_table_d1, text)):
        return True
    is_mixed = any(map(stringprep.in_table_d2, text))
    return not is_mixed and stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])


ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 16_384
# A client computes as many rounds as the broker asks for; one that asks for far more only burns its processor.
_ITERATIONS_TAKEN_MAX = 1_000_000
MESSAGE_BYTES_MAX = 4_096
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,512}", re.ASCII)  # printable, without the comma


class ScramError(ValueError):
    """A message that is none of SCRAM's, or proves nothing."""


@dataclass(frozen=True, slots=True)
class ScramMechanism:
    name: str
    hash_name: str
    size_bytes: int  # the size of a hash, and of each key


SCRAM_SHA_256 = ScramMechanism("SCRAM-SHA-256", "sha256", 32)
SCRAM_SHA_512 = ScramMechanism("SCRAM-SHA-512", "sha512", 64)
SCRAM_MECHANISMS: Mapping[str, ScramMechanism] = MappingProxyType(
    {one.name: one for one in (SCRAM_SHA_256, SCRAM_SHA_512)}
)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The proof of a password: StoredKey and ServerKey of RFC 5802."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def salt_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """SaltedPassword. Some milliseconds of processor, without the interpreter's lock."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, prepared(password).encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    stored_key = _hash(mechanism, _hmac(mechanism, salted_password, b"Client Key"))
    return ScramCredential(salt, stored_key, _hmac(mechanism, salted_password, b"Server Key"), iterations)


def is_password_of(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """True if the password is right. Takes as long as `salt_password` in either case."""
    salted = salt_password(mechanism, password, credential.salt, credential.iterations)
    found = credential_of(mechanism, salted, credential.salt, credential.iterations)
    return hmac.compare_digest(found.stored_key, credential.stored_key)


# ------------------------------------------------------------ the client's side


class ScramClient:
    """One login: `first`, `final`, `check`, in this order. `nonce`: printable, without a comma, used once. `salted`:
    the password salted with a salt and a number of iterations, if the caller keeps it."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        name: str,
        password: str,
        nonce: str,
        salted: Callable[[bytes, int], bytes] | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._salted = salted or functools.partial(salt_password, mechanism, password)
        self._nonce = nonce
        self._first_bare = f"n={_escape(name)},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The answer to the server's first message, with the proof. Raises `ScramError`."""
        text = _text(server_first)
        fields = _fields(text, "rsi")
        nonce, salt = fields["r"], _decode(fields["s"])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramError("expected the server to add to this client's nonce, found another one")
        iterations = _number(fields["i"])
        if not ITERATIONS_MIN <= iterations <= _ITERATIONS_TAKEN_MAX:
            raise ScramError(
                f"expected {ITERATIONS_MIN} to {_ITERATIONS_TAKEN_MAX} iterations, found {iterations}: fewer would "
                "give the password away"
            )
        salted = self._salted(salt, iterations)
        client_key = _hmac(self._mechanism, salted, b"Client Key")
        without_proof = f"c={_encode(b'n,,')},r={nonce}"
        message = f"{self._first_bare},{text},{without_proof}".encode()
        signature = _hmac(self._mechanism, _hash(self._mechanism, client_key), message)
        server_key = _hmac(self._mechanism, salted, b"Server Key")
        self._server_signature = _hmac(self._mechanism, server_key, message)
        return f"{without_proof},p={_encode(_xor(client_key, signature))}".encode()

    def check(self, server_final: bytes) -> None:
        """That the server knows the credential too. Raises `ScramError`."""
        found = _decode(_fields(_text(server_final), "v")["v"])
        if not self._server_signature or not hmac.compare_digest(found, self._server_signature):
            raise ScramError("the server has not proved that it knows this user: is it the right one?")


# ------------------------------------------------------------ the server's side


@dataclass(frozen=True, slots=True)
class ClientFirst:
    name: str
    nonce: str
    gs2_header: str
    bare: str


def parse_client_first(message: bytes) -> ClientFirst:
    """Raises `ScramError`."""
    text = _text(message)
    parts = text.split(",", 2)
    if len(parts) < 3 or parts[0] not in ("n", "y"):
        raise ScramError("expected a client-first-message without channel binding")
    flag, authorized, bare = parts
    fields = _fields(bare, "nr")
    name = _unescape(fields["n"])
    if authorized not in ("", f"a={fields['n']}"):
        raise ScramError("expected no authorization as another user")
    if not name or _NONCE.fullmatch(fields["r"]) is None:
        raise ScramError("expected a name and a printable nonce")
    return ClientFirst(name, fields["r"], f"{flag},{authorized},", bare)


class ScramServer:
    """One login: `first`, then `check`."""

    def __init__(
        self, mechanism: ScramMechanism, client_first: ClientFirst, credential: ScramCredential, nonce: str
    ) -> None:
        self.mechanism = mechanism
        self._client_first = client_first
        self._credential = credential
        self._nonce = client_first.nonce + nonce
        self._first = f"r={self._nonce},s={_encode(credential.salt)},i={credential.iterations}"

    def first(self) -> bytes:
        return self._first.encode()

    def check(self, client_final: bytes) -> bytes | None:
        """Check the client's proof; return the server's last message, by which it proves itself, or None if the proof
        is wrong. Raises `ScramError` for a malformed message."""
        text = _text(client_final)
        fields = _fields(text, "crp")
        if fields["r"] != self._nonce or _decode(fields["c"]) != self._client_first.gs2_header.encode():
            raise ScramError("expected the nonce and the header of this login")
        without_proof = text[: text.rindex(",p=")]
        message = f"{self._client_first.bare},{self._first},{without_proof}".encode()
        proof, mechanism = _decode(fields["p"]), self.mechanism
        if len(proof) != mechanism.size_bytes:
            raise ScramError(f"expected a proof of {mechanism.size_bytes} bytes, found {len(proof)}")
        client_key = _xor(proof, _hmac(mechanism, self._credential.stored_key, message))
        if not hmac.compare_digest(_hash(mechanism, client_key), self._credential.stored_key):
            return None
        return f"v={_encode(_hmac(mechanism, self._credential.server_key, message))}".encode()


# ------------------------------------------------------------ messages


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramError(f"expected a message of at most {MESSAGE_BYTES_MAX} bytes, found {len(message)}")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("expected a message in UTF-8") from None


def _fields(text: str, names: str) -> dict[str, str]:
    """Those of `names`, which come in this order; what follows them are extensions, of which none is mandatory."""
    parts = text.split(",")
    found: dict[str, str] = {}
    if parts[0].startswith("m="):
        raise ScramError("expected no mandatory extension")
    if parts[0].startswith("e="):
        raise ScramError("the server has refused the login")
    if names[-1] == "p" and len(parts) > len(names):  # extensions stand before the proof
        parts = [*parts[: len(names) - 1], parts[-1]]
    for name, part in zip(names, parts, strict=False):
        if not part.startswith(f"{name}="):
            break
        found[name] = part[2:]
    if len(found) < len(names):
        raise ScramError(f"expected the fields {', '.join(names)}")
    return found


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(text: str) -> str:
    if re.search("=(?!2C|3D)", text):
        raise ScramError("expected a name with =2C for a comma and =3D for an equals sign")
    return text.replace("=2C", ",").replace("=3D", "=")


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("expected base64") from None


def _number(text: str) -> int:
    if re.fullmatch("[0-9]{1,9}", text, re.ASCII) is None:
        raise ScramError("expected a number")
    return int(text)


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _hash(mechanism: ScramMechanism, data: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(left ^ right for left, right in zip(one, other, strict=True))


PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
# The error for a session, password or token that was valid and is no longer: a new login may help.
SESSION_EXPIRED = "the session has expired; log in again"
PASSWORD_MECHANISMS = (*SCRAM_MECHANISMS, PLAIN)
MECHANISMS = (*PASSWORD_MECHANISMS, OAUTHBEARER)
# Kafka's, with the reason why there is no such thing here.
ABSENT_MECHANISMS: Mapping[str, str] = {
    "GSSAPI": "there is no Kerberos: take SCRAM-SHA-512, or OAUTHBEARER with your identity provider",
}
_OPTION = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_LINE = re.compile(r"\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*", re.DOTALL | re.IGNORECASE)


def parse_jaas(text: str) -> Mapping[str, str]:
    """The options of `Module required name="value" ...;`, the line of JAAS in which Kafka's users keep what they log in
    with. Raises `ValueError`, which has nothing of the text in it."""
    line = _LINE.fullmatch(text)
    if line is None:
        raise ValueError('a line of JAAS: org.apache...LoginModule required username="u" password="p";')
    options = {name: _value(*values) for name, *values in _OPTION.findall(line[1])}
    if _OPTION.sub("", line[1]).strip():
        raise ValueError('options of the form name="value" in the line of JAAS, and a semicolon at its end')
    return options


def _value(double_quoted: str, single_quoted: str, plain: str) -> str:
    return re.sub(r"\\(.)", r"\1", double_quoted or single_quoted) or plain
