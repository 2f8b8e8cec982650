"""Users for administrators: which there are, and changes of their passwords (KIP-554)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bus.errors import ErrorCode, Refused, StorageFault, first_line, show_names
from bus.runtime.users.user_directory import UserDirectory
from bus.users.users import Alteration, Credentials, DeleteScram

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DescribedUser:
    name: str
    iterations: Mapping[str, int]  # by mechanism


class UserApi:
    def __init__(self, users: UserDirectory) -> None:
        self._users = users

    async def describe(self, names: Sequence[str]) -> Iterator[tuple[str, DescribedUser | Refused]]:
        """No names: all, in order. As an iterator, since there may be many."""
        try:
            known = (await self._users.describe()).by_name
        except StorageFault as fault:
            known, refusal = {}, _storage_error(fault)
            return ((name, refusal) for name in dict.fromkeys(names or [""]))
        if not names:
            return ((name, _described(name, known[name])) for name in sorted(known))
        return ((name, _find(known, name, names.count(name))) for name in dict.fromkeys(names))

    async def alter(self, alterations: Sequence[Alteration]) -> Mapping[str, Refused | None]:
        """By name of the user, in the order of the first mention."""
        try:
            answers = await self._users.alter(alterations)
        except StorageFault as fault:
            return dict.fromkeys((one.name for one in alterations), _storage_error(fault))
        done = dict.fromkeys(one for one in alterations if answers[one.name] is None)
        for one in done:
            verb = "deleted" if isinstance(one, DeleteScram) else "set"
            _log.info("the password of user %r for %s is %s", one.name, one.mechanism, verb)
        return answers


def _find(known: Mapping[str, Credentials], name: str, count: int) -> DescribedUser | Refused:
    if count > 1:
        return Refused(ErrorCode.DUPLICATE_RESOURCE, f"expected {show_names([name])!r} once, found it {count} times")
    if name not in known:
        return Refused(ErrorCode.RESOURCE_NOT_FOUND, f"expected a user, found none named {show_names([name])!r}")
    return _described(name, known[name])


def _described(name: str, credentials: Credentials) -> DescribedUser:
    return DescribedUser(name, {mechanism: one.iterations for mechanism, one in sorted(credentials.items())})


def _storage_error(fault: StorageFault) -> Refused:
    return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of users: {first_line(fault)}")
