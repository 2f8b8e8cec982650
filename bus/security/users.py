"""Users: which there are, what proves their passwords, and which changes of that are accepted.

Guards two promises: what is accepted can be read back, and a user's name cannot be taken for another principal
(`User:ANONYMOUS`, `User:*`). A change of several users is decided user by user, as Kafka's AlterUserScramCredentials
(KIP-554). Decides only; `bus.runtime.user_directory` keeps the log.
"""

from __future__ import annotations

import bisect
import hashlib
import hmac
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from bus.client_texts import is_seen
from bus.errors import ErrorCode, Refused, show_names
from bus.security.acls import RESERVED_NAMES
from bus.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramMechanism,
    credential_of,
    prepared,
)

_SALT_BYTES = 32  # the SDK uses this size


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """The visible part of a credential except for its salt."""

    salt_bytes: int
    iterations: int


DEFAULT_SHAPE = Shape(_SALT_BYTES, ITERATIONS_MIN)
# The shapes of one user in the order of SCRAM_MECHANISMS; None: it has no password for that mechanism. The shapes of a
# user belong together: most users have the same ones for all mechanisms, and so must decoys.
Form = tuple[Shape | None, ...]


class DecoyForms:
    """The forms of all users, and the number of users with each. Decoys hide whether a user exists: before a client has
    proved anything, it sees a salt and a number of rounds.

    Guards two promises. A name that is no user, or has no password for the mechanism, gets the same decoy each time, at
    every broker. And lengths of salts and rounds are as frequent among decoys as among the users, so they do not reveal
    whether a name is a user. When users change, a few decoys change too, as if their passwords were reset."""

    def __init__(self, counts: Mapping[Form, int] = MappingProxyType({})) -> None:
        self._counts = counts
        # In an order that does not depend on who came first. The place of a decoy in it is a share of all users and not
        # a number, so that one user more changes few decoys.
        self._forms: Sequence[Form] = sorted(counts, key=_sort_key)
        self._ends = list(itertools.accumulate(counts[form] for form in self._forms))

    def with_changes(self, before: Iterable[Form], after: Iterable[Form]) -> DecoyForms:
        """`before`: of the users that have changed; `after`: of the same users now."""
        counts = Counter(self._counts)
        counts.update(after)
        counts.subtract(before)
        return DecoyForms(+counts)

    def shape(self, mechanism: ScramMechanism, name: str, others: Mapping[str, ScramCredential], key: bytes) -> Shape:
        """Return the shape of a name's decoy. `others`: its credentials for other mechanisms, if it has any."""
        form = form_of(others) if others else self._form(name, key)
        own = form[list(SCRAM_MECHANISMS).index(mechanism.name)]
        return own or next((shape for shape in form if shape is not None), DEFAULT_SHAPE)

    def _form(self, name: str, key: bytes) -> Form:
        if not self._forms:
            return (DEFAULT_SHAPE,) * len(SCRAM_MECHANISMS)
        number = int.from_bytes(hmac.digest(key, f"form:{name}".encode(), hashlib.sha512)[:8], "big")
        return self._forms[bisect.bisect_right(self._ends, number * self._ends[-1] >> 64)]


def decoy_of(mechanism: ScramMechanism, name: str, shape: Shape, key: bytes) -> ScramCredential:
    """No password proves it. Another shape has another salt, as after a change of the password."""
    label = f"{mechanism.name}:{shape.salt_bytes}:{shape.iterations}:{name}"
    seed = hmac.digest(key, label.encode(), hashlib.sha512)
    derived = hashlib.shake_256(seed).digest(shape.salt_bytes + 2 * mechanism.size_bytes)
    salt, keys = derived[: shape.salt_bytes], derived[shape.salt_bytes :]
    return ScramCredential(salt, keys[: mechanism.size_bytes], keys[mechanism.size_bytes :], shape.iterations)


def form_of(credentials: Mapping[str, ScramCredential]) -> Form:
    """`credentials`: of one user, by mechanism."""
    found = (credentials.get(name) for name in SCRAM_MECHANISMS)
    return tuple(None if one is None else Shape(len(one.salt), one.iterations) for one in found)


def _sort_key(form: Form) -> list[list[Shape]]:
    return [[] if shape is None else [shape] for shape in form]


USERS_MAX = 100_000
NAME_BYTES_MAX = 256
SALT_BYTES_MIN, SALT_BYTES_MAX = 8, 128

Credentials = Mapping[str, ScramCredential]  # the credentials of one user by mechanism; never empty


# ------------------------------------------------------------ records


@dataclass(frozen=True, slots=True)
class ScramCredentialSet:
    name: str
    mechanism: str
    credential: ScramCredential


@dataclass(frozen=True, slots=True)
class ScramCredentialDeleted:
    name: str
    mechanism: str


@dataclass(frozen=True, slots=True)
class DecoyKeySet:
    """The key from which the salts of decoys are derived, so that they are always the same at every broker."""

    key: bytes = field(repr=False)


UserRecord = ScramCredentialSet | ScramCredentialDeleted | DecoyKeySet


def encode_record(record: UserRecord) -> dict[str, Any]:
    """Encode the record as a row of the log."""
    row: dict[str, Any] = {"type": type(record).__name__}
    match record:
        case ScramCredentialSet(name, mechanism, found):
            row |= {"name": name, "mechanism": mechanism, "iterations": found.iterations}
            row |= {"salt": found.salt, "stored_key": found.stored_key, "server_key": found.server_key}
        case ScramCredentialDeleted(name, mechanism):
            row |= {"name": name, "mechanism": mechanism}
        case DecoyKeySet(key):
            row |= {"salt": key}
    return row


def decode_record(row: Mapping[str, Any]) -> UserRecord:
    """Raises `ValueError` for a row that is no record of this version."""
    match row.get("type"):
        case "ScramCredentialSet":
            credential = ScramCredential(
                _bytes(row, "salt"), _bytes(row, "stored_key"), _bytes(row, "server_key"), int(row["iterations"])
            )
            return ScramCredentialSet(_text(row, "name"), _text(row, "mechanism"), credential)
        case "ScramCredentialDeleted":
            return ScramCredentialDeleted(_text(row, "name"), _text(row, "mechanism"))
        case "DecoyKeySet":
            return DecoyKeySet(_bytes(row, "salt"))
        case other:
            raise ValueError(f"expected a record of users, found one of type {other!r}")


def _text(row: Mapping[str, Any], name: str) -> str:
    if not isinstance(row.get(name), str):
        raise ValueError(f"expected a text in {name}")
    return str(row[name])


def _bytes(row: Mapping[str, Any], name: str) -> bytes:
    if not isinstance(row.get(name), bytes):
        raise ValueError(f"expected bytes in {name}")
    return bytes(row[name])


# ------------------------------------------------------------ state


@dataclass(frozen=True, slots=True)
class Users:
    by_name: Mapping[str, Credentials] = field(default_factory=lambda: MappingProxyType({}))
    decoy_key: bytes = field(default=b"", repr=False)  # empty before the first change
    decoy_forms: DecoyForms = field(default_factory=DecoyForms, repr=False, compare=False)  # the forms in `by_name`

    def find(self, name: str, mechanism: str) -> ScramCredential | None:
        return self.by_name.get(name, {}).get(mechanism)

    def decoy(self, mechanism: ScramMechanism, name: str, *, own_key: bytes) -> ScramCredential:
        """Return the decoy for a user that does not exist, or has no password for the mechanism. `own_key`: the key of
        a broker in a cluster without users."""
        key = self.decoy_key or own_key
        others = self.by_name.get(name, {})
        return decoy_of(mechanism, name, self.decoy_forms.shape(mechanism, name, others, key), key)


def apply_all(users: Users, records: Sequence[UserRecord]) -> Users:
    """The only way the users change. One copy of the map for all records."""
    by_name, decoy_key = dict(users.by_name), users.decoy_key
    changed = {record.name for record in records if not isinstance(record, DecoyKeySet)}
    for record in records:
        match record:
            case ScramCredentialSet(name, mechanism, credential):
                by_name[name] = {**by_name.get(name, {}), mechanism: credential}
            case ScramCredentialDeleted(name, mechanism):
                left = {key: value for key, value in by_name.pop(name, {}).items() if key != mechanism}
                if left:
                    by_name[name] = left
            case DecoyKeySet(key):
                decoy_key = key
    forms = users.decoy_forms.with_changes(_forms(users.by_name, changed), _forms(by_name, changed))
    return Users(MappingProxyType(by_name), decoy_key, forms)


def _forms(by_name: Mapping[str, Credentials], names: Iterable[str]) -> Iterable[Form]:
    return [form_of(by_name[name]) for name in names if name in by_name]


# ------------------------------------------------------------ changes


@dataclass(frozen=True, slots=True)
class SetScram:
    """Kafka's UserScramCredentialUpsertion: the client has salted the password, so a broker never sees it."""

    name: str
    mechanism: str
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class DeleteScram:
    name: str
    mechanism: str


Alteration = SetScram | DeleteScram


@dataclass(frozen=True, slots=True)
class AlterStep:
    """`answers`: by name, in the order of the first mention; None: done once the records are committed."""

    answers: Mapping[str, Refused | None]
    records: Sequence[UserRecord]


def decide_alter(users: Users, alterations: Sequence[Alteration], *, new_decoy_key: bytes) -> AlterStep:
    """A user of whom one alteration is refused keeps all as it was."""
    answers: dict[str, Refused | None] = {one.name: None for one in alterations}
    seen: set[tuple[str, str]] = set()
    count = len(users.by_name)
    for one in alterations:
        refusal = _refusal(users, one)
        if (one.name, one.mechanism) in seen:
            refusal = Refused(
                ErrorCode.DUPLICATE_RESOURCE, f"expected {one.mechanism} of {_show(one.name)} once, found it twice"
            )
        seen.add((one.name, one.mechanism))
        answers[one.name] = answers[one.name] or refusal
    for name in answers:
        if answers[name] is None and name not in users.by_name:
            count += 1
            if count > USERS_MAX:
                answers[name] = Refused(ErrorCode.POLICY_VIOLATION, f"expected at most {USERS_MAX} users")
    records: list[UserRecord] = [_record(one) for one in alterations if answers[one.name] is None]
    if records and not users.decoy_key:
        records.insert(0, DecoyKeySet(new_decoy_key))
    return AlterStep(answers, records)


def _record(one: Alteration) -> UserRecord:
    if isinstance(one, DeleteScram):
        return ScramCredentialDeleted(one.name, one.mechanism)
    credential = credential_of(SCRAM_MECHANISMS[one.mechanism], one.salted_password, one.salt, one.iterations)
    return ScramCredentialSet(one.name, one.mechanism, credential)


def _refusal(users: Users, one: Alteration) -> Refused | None:
    mechanism = SCRAM_MECHANISMS.get(one.mechanism)
    if mechanism is None:
        known = ", ".join(SCRAM_MECHANISMS)
        message = f"expected a mechanism of {known}, found {show_names([one.mechanism])!r}"
        return Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, message)
    if isinstance(one, DeleteScram):
        if users.find(one.name, one.mechanism) is not None:
            return None
        message = f"expected a user with a password for {one.mechanism}, found none named {_show(one.name)}"
        return Refused(ErrorCode.RESOURCE_NOT_FOUND, message)
    if (fault := fault_of_name(one.name) or _fault_of_form(one.name)) is not None:
        return Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, fault)
    if not ITERATIONS_MIN <= one.iterations <= ITERATIONS_MAX:
        message = f"expected {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations, found {one.iterations}"
        return Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
    if not SALT_BYTES_MIN <= len(one.salt) <= SALT_BYTES_MAX or len(one.salted_password) != mechanism.size_bytes:
        message = (
            f"expected a salt of {SALT_BYTES_MIN} to {SALT_BYTES_MAX} bytes and a salted password of "
            f"{mechanism.size_bytes}, found {len(one.salt)} and {len(one.salted_password)}"
        )
        return Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
    return None


def fault_of_name(name: str, bytes_max: int = NAME_BYTES_MAX) -> str | None:
    """Why no user may have this name; None if one may."""
    if not name or len(name.encode("utf-8", "surrogatepass")) > bytes_max or not is_seen(name):
        return (
            f"expected a name of 1 to {bytes_max} bytes without characters that are not seen and blanks around it, "
            f"found {_show(name)}"
        )
    if name in RESERVED_NAMES:
        return f"expected another name than {' and '.join(RESERVED_NAMES)}, which mean no single user"
    return None


def _fault_of_form(name: str) -> str | None:
    """Return the fault of a name that is not in its normal form, so that of names that look the same only one can be a
    user."""
    form = prepared(name)
    return None if form == name else f"expected the name {_show(form)} (SASLprep, RFC 4013), found {name!a}"


def _show(name: str) -> str:
    return repr(show_names([name]))
