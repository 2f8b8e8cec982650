"""What a client is shown of a user that does not exist, so that it cannot tell it from one that does.

Before a client has proved anything it is shown a salt and a number of rounds. Guards two promises: what is shown of a
name that is no user, or has no password for the mechanism, is the same each time, at every broker; and the lengths of
salts and the rounds that decoys have are as frequent among them as among the users that there are, so they tell nothing
of whether a name is a user. When users change, a few decoys change too, as if their passwords were reset. Pure.
"""

from __future__ import annotations

import bisect
import hashlib
import hmac
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from bus.scram import ITERATIONS_MIN, SCRAM_MECHANISMS, ScramCredential, ScramMechanism

_SALT_BYTES = 32  # as the SDK makes them


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """What can be seen of a credential, but for its salt."""

    salt_bytes: int
    iterations: int


DEFAULT_SHAPE = Shape(_SALT_BYTES, ITERATIONS_MIN)
# Of one user: its shapes in the order of SCRAM_MECHANISMS; None: it has no password for that one. The shapes of a user
# belong together: most users have the same ones for all mechanisms, and so must decoys.
Form = tuple[Shape | None, ...]


class DecoyForms:
    """The forms of all users, and how many users have each."""

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
        """Of the decoy of a name. `others`: its credentials for other mechanisms, if it has any."""
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
    made = hashlib.shake_256(seed).digest(shape.salt_bytes + 2 * mechanism.size_bytes)
    salt, keys = made[: shape.salt_bytes], made[shape.salt_bytes :]
    return ScramCredential(salt, keys[: mechanism.size_bytes], keys[mechanism.size_bytes :], shape.iterations)


def form_of(credentials: Mapping[str, ScramCredential]) -> Form:
    """`credentials`: of one user, by mechanism."""
    found = (credentials.get(name) for name in SCRAM_MECHANISMS)
    return tuple(None if one is None else Shape(len(one.salt), one.iterations) for one in found)


def _sort_key(form: Form) -> list[list[Shape]]:
    return [[] if shape is None else [shape] for shape in form]
