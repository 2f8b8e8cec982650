"""The users as a broker knows them, on the event loop.

Guards one promise: what a broker knows of the users is what their log said less than `FOLLOW_INTERVAL_S` ago, and no
login is refused before the log was looked at once more (`look`); so who was created at another broker gets in at once,
and who was deleted there is out within that time. The ledger is used in the thread of the control calls alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from bus.errors import Refused, StorageFault, first_line
from bus.ports import Clock, Storage
from bus.runtime.blocking import BlockingCalls
from bus.runtime.tasks import TaskScope
from bus.runtime.users.user_ledger import UserLedger
from bus.users.users import Alteration, Users

_log = logging.getLogger(__name__)

FOLLOW_INTERVAL_S = 1.0
# A broker that was suspended must not commit what its clients have long asked another broker to do.
CHANGE_SECONDS_MAX = 30.0


class _Order:
    """A change of users, and whether its caller still waits for it. Asked in another thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_ms = clock.monotonic_ms() + CHANGE_SECONDS_MAX * 1000
        self.is_withdrawn = False

    def is_wanted(self) -> bool:
        return not self.is_withdrawn and self._clock.monotonic_ms() < self._ends_ms


class UserDirectory:
    """`start` once. `on_change` is called with the users whenever they have changed."""

    def __init__(self, storage: Storage, *, clock: Clock, calls: BlockingCalls, tasks: TaskScope) -> None:
        self._ledger = UserLedger(storage, clock)
        self._clock = clock
        self._calls = calls
        self._tasks = tasks
        self._looking: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[Users], None]] = []
        self._following: asyncio.Task[None] | None = None
        self._is_failing = False
        self.users = Users()

    def on_change(self, listener: Callable[[Users], None]) -> None:
        self._listeners.append(listener)

    async def start(self, *, follow: bool) -> None:
        """`follow`: users log in here. Raises `StorageFault`: a broker that knows no users would refuse them all."""
        if follow:
            self._take(await self._calls.control(self._ledger.follow))
            self._following = self._tasks.start(self._follow(), "users")

    def close(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def look(self) -> None:
        """Returns once the log was looked at, begun after the call; many callers wait for one look. Where the log
        cannot be read, what is known stays."""
        if self._looking is not None:  # it may have begun before what the caller waits for
            await asyncio.wait([self._looking])
        if self._looking is None:
            self._looking = self._tasks.start(self._look(), "look at users")
        await asyncio.wait([self._looking])

    async def _look(self) -> None:
        try:
            self._take(await self._calls.control(self._ledger.follow))
            self._is_failing = False
        except StorageFault as fault:
            if not self._is_failing:
                _log.error("the log of users cannot be read, those known before stay: %s", first_line(fault))
            self._is_failing = True
        finally:
            self._looking = None

    async def alter(self, alterations: Sequence[Alteration]) -> Mapping[str, Refused | None]:
        """Committed when it returns, and known at this broker. Raises `StorageFault`. Once it is cancelled, only a
        commit that is already under way may still come: so it does not undo what the same caller asks for later, at any
        broker."""
        order = _Order(self._clock)
        try:
            done = await self._tasks.finish(self._alter(alterations, order), "alter users")
        except asyncio.CancelledError:
            order.is_withdrawn = True
            raise
        if isinstance(done, StorageFault):
            raise done
        return done

    async def _alter(
        self, alterations: Sequence[Alteration], order: _Order
    ) -> Mapping[str, Refused | None] | StorageFault:
        """The fault as a value: with no caller left, an exception would count as a fault of the program's."""
        try:
            answers = await self._calls.control(lambda: self._ledger.alter(alterations, order.is_wanted))
            self._take(await self._calls.control(self._ledger.follow))
        except StorageFault as fault:
            _log.warning("a change of users has failed: %s", first_line(fault))
            return fault
        return answers

    async def describe(self) -> Users:
        """As of now. Raises `StorageFault`."""
        self._take(await self._calls.control(self._ledger.follow))
        return self.users

    def _take(self, users: Users) -> None:
        if users is not self.users:
            self.users = users
            for listener in self._listeners:
                listener(users)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_INTERVAL_S)
            await self.look()
