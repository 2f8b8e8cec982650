"""The logins at this broker: by session, by password or by token, with their ends.

Guards four promises. A login ends when its time is over or when the credential that proved it is gone, whichever comes
first. Whoever holds something open by it (a stream) is notified at that moment. The memory of logins is bounded, in all
and for each name. When it is full, the name with the most logins makes room. Keys are digests of what clients send, so
the time of a look-up reveals nothing about them. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from bus.security.scram import ScramCredential
from bus.security.users import Users

LOGINS_MAX = 100_000
LOGINS_OF_A_NAME_MAX = 20_000
_STALE_EXPIRIES_MIN = 1_000  # below it nothing is gained


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof of a login. `credential`: the one that the password was checked against; None: the broker stores none
    (a token). `mechanism` is the client's, `credential_mechanism` that of the credential."""

    principal: str
    name: str
    mechanism: str
    credential: ScramCredential | None = None
    credential_mechanism: str = ""

    def holds(self, users: Users) -> bool:
        return self.credential is None or users.find(self.name, self.credential_mechanism) == self.credential


class Login:
    """`on_end` is called once, when it ends; a login that has ended stays so."""

    __slots__ = ("_watchers", "expires_s", "is_ended", "key", "proof")

    def __init__(self, key: bytes, proof: Proof, expires_s: float) -> None:
        self.key = key
        self.proof = proof
        self.expires_s = expires_s  # the event loop's clock
        self.is_ended = False
        self._watchers: dict[int, Callable[[], object]] = {}

    @property
    def principal(self) -> str:
        return self.proof.principal

    def watch(self, on_end: Callable[[], object]) -> Callable[[], None]:
        """Returns what forgets it."""
        number = id(on_end)
        self._watchers[number] = on_end
        return lambda: self._watchers.pop(number, None) and None

    def end(self) -> None:
        self.is_ended = True
        watchers, self._watchers = list(self._watchers.values()), {}
        for on_end in watchers:
            on_end()


class LoginNames:
    """The keys of logins by name, the oldest first, and which name has the most."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[bytes, None]] = {}  # none is empty
        self._names: dict[int, dict[str, None]] = {}  # keyed by the number of their keys; none is empty
        self.largest = 0  # the highest of these numbers

    def count(self, name: str) -> int:
        return len(self._keys.get(name, ()))

    def oldest(self, name: str) -> bytes:
        return next(iter(self._keys[name]))

    def one_of_the_largest(self) -> str:
        return next(iter(self._names[self.largest]))

    def add(self, name: str, key: bytes) -> None:
        keys = self._keys.setdefault(name, {})
        self._move(name, len(keys), len(keys) + 1)
        keys[key] = None
        self.largest = max(self.largest, len(keys))

    def remove(self, name: str, key: bytes) -> None:
        keys = self._keys[name]
        self._move(name, len(keys), len(keys) - 1)
        del keys[key]
        if not keys:
            del self._keys[name]
        if self.largest not in self._names:
            self.largest -= 1  # the name has moved there

    def _move(self, name: str, before: int, after: int) -> None:
        if before:
            names = self._names[before]
            del names[name]
            if not names:
                del self._names[before]
        if after:
            self._names.setdefault(after, {})[name] = None


class LoginTable:
    def __init__(self) -> None:
        self._logins: dict[bytes, Login] = {}
        self._names = LoginNames()
        self._expiries: list[tuple[float, int, Login]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._logins)

    def find(self, key: bytes) -> Login | None:
        """Return the login; None if there is none, or if it has ended."""
        return self._logins.get(key)

    def add(self, key: bytes, proof: Proof, expires_s: float) -> Login | None:
        """None: there are too many names. If one name has too many, or the most where all have too many, its oldest
        login ends, and that client logs in again."""
        giving = self._name_to_make_room(proof.name)
        if giving is not None:
            self._end(self._logins[self._names.oldest(giving)])
        if len(self._logins) >= LOGINS_MAX:
            return None
        login = self._logins[key] = Login(key, proof, expires_s)
        self._names.add(proof.name, key)
        self._expect(login)
        return login

    def _name_to_make_room(self, name: str) -> str | None:
        own = self._names.count(name)
        if own >= LOGINS_OF_A_NAME_MAX:
            return name
        if len(self._logins) < LOGINS_MAX:
            return None
        if self._names.largest > own + 1:
            return self._names.one_of_the_largest()
        return name if own else None

    def extend(self, login: Login, proof: Proof, expires_s: float) -> None:
        """Extend the login: the same caller has proved its identity again. Streams that it holds open continue."""
        assert proof.principal == login.principal, "a session stays that of its caller"
        assert not login.is_ended, "a login that has ended stays so"
        login.proof = proof
        login.expires_s = expires_s
        self._expect(login)

    def check_all(self, users: Users) -> int:
        """End those whose password is gone or another one; how many these were."""
        gone = [login for login in self._logins.values() if not login.proof.holds(users)]
        for login in gone:
            self._end(login)
        return len(gone)

    def _end(self, login: Login) -> None:
        del self._logins[login.key]
        self._names.remove(login.proof.name, login.key)
        login.end()

    def _expect(self, login: Login) -> None:
        heapq.heappush(self._expiries, (login.expires_s, next(self._numbers), login))
        if len(self._expiries) > 2 * len(self._logins) + _STALE_EXPIRIES_MIN:
            self._drop_stale()
        self._set_timer()

    def _drop_stale(self) -> None:
        """Drop the expiries of logins that ended early or were extended; otherwise a caller that logs in again and
        again would fill memory until these expire."""
        self._expiries = [(one.expires_s, next(self._numbers), one) for one in self._logins.values()]
        heapq.heapify(self._expiries)

    def _set_timer(self) -> None:
        """Set the timer for the next expiry."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._expiries:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._expiries[0][0], self._expire)

    def _expire(self) -> None:
        now_s = asyncio.get_running_loop().time()
        while self._expiries and self._expiries[0][0] <= now_s:
            _, _, login = heapq.heappop(self._expiries)
            if not login.is_ended and login.expires_s <= now_s:
                self._end(login)
        self._set_timer()
