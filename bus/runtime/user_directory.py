"""The users as a broker knows them, on the event loop.

Guards one promise: what a broker knows of the users is what their log said less than `FOLLOW_INTERVAL_S` ago, and no
login is refused before the log was looked at once more (`look`); so who was created at another broker gets in at once,
and who was deleted there is out within that time. The ledger is used in the thread of the control calls alone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence

from bus.errors import Refused, StorageDamaged, StorageFault, first_line
from bus.ports import Clock, Committed, Storage, TypedLog, Unknown
from bus.runtime.blocking import BlockingCalls
from bus.runtime.tasks import TaskScope
from bus.security.users import Alteration, Users, apply_all, decide_alter, decode_record, encode_record

_log = logging.getLogger(__name__)


_TRIES_MAX = 100
_DECOY_KEY_BYTES = 32


class UserLedger:
    """The log of users, read and changed: blocking, so a broker calls it in a thread, and a command as it is. Used by
    one thread at a time.

    Theory of operation. No broker is the writer of this log. Whoever changes it follows it to its end, commits the
    fence of a new leader epoch, decides again on what stood before that fence, and commits its records at the next
    version: put if absent, so of two concurrent changes one gets the version, and the other decides again on what the
    first one has left. A change therefore needs neither the controller nor a call to another broker, passwords can be
    changed while no controller is elected, and a command with access to the root creates the first user whether a
    broker runs or not. Changes are rare, so the cost of the fence does not matter; a ledger whose own change was the
    last one needs none."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._log: TypedLog | None = None
        self._users = Users()
        self._next_offset = 0
        self._led_epoch: int | None = None

    def follow(self) -> Users:
        """All users as of now. Raises `StorageFault`."""
        log = self._open(create=False)
        if log is not None and not log.is_at_end():
            log.follow()
        return self._users if log is None else self._replay(log)

    def alter(
        self, alterations: Sequence[Alteration], is_wanted: Callable[[], bool] = lambda: True
    ) -> Mapping[str, Refused | None]:
        """Commit what `decide_alter` decides, except what it refuses. Raises `StorageFault`; the change may be
        committed all the same.

        Each try calls `is_wanted` after it has fixed the version that its commit would follow. So a change that is no
        longer wanted cannot overwrite one that another ledger begins afterwards: that one takes the version."""
        if not decide_alter(self.follow(), alterations, new_decoy_key=b"?").records:
            return self._decide_nothing(alterations)
        log = self._open(create=True)
        assert log is not None, "a log that was created is there"
        for _ in range(_TRIES_MAX):
            epoch = self._lead(log)
            if epoch is None:
                continue
            users = self._replay(log)
            step = decide_alter(users, alterations, new_decoy_key=secrets.token_bytes(_DECOY_KEY_BYTES))
            if not step.records:
                return step.answers
            if not is_wanted():
                raise StorageFault("users: nothing has changed, since the change took too long, or its caller has gone")
            rows = [encode_record(record) for record in step.records]
            outcome = log.append(rows, leader_epoch=epoch, now_ms=self._clock.now_ms())
            if isinstance(outcome, Committed):
                self._replay(log)
                _write_checkpoint(log)
                return step.answers
            self._led_epoch = None
            log.reload()
            if isinstance(outcome, Unknown):
                raise StorageFault(f"users: whether the change is committed is not known: {outcome.reason}")
        raise StorageFault(f"users: other brokers were faster, {_TRIES_MAX} times in a row; try again")

    def _decide_nothing(self, alterations: Sequence[Alteration]) -> Mapping[str, Refused | None]:
        return decide_alter(self._users, alterations, new_decoy_key=b"?").answers

    def _lead(self, log: TypedLog) -> int | None:
        """The epoch under which this ledger may append at the end of the log; None if another one was faster."""
        epoch = log.state.leader_epoch
        if self._led_epoch != epoch:
            epoch += 1
        outcome = log.lead(epoch, self._clock.now_ms(), fence=True)
        # Behind the own fence there may be another one already.
        is_led = isinstance(outcome, Committed) and log.state.leader_epoch == epoch
        self._led_epoch = epoch if is_led else None
        return self._led_epoch

    def _open(self, *, create: bool) -> TypedLog | None:
        if self._log is None:
            self._log = self._storage.open_users(create=create)
        return self._log

    def _replay(self, log: TypedLog) -> Users:
        """Raises `StorageDamaged` for a record that this program does not know: it may take a user away."""
        try:
            records = [decode_record(row) for row in log.replay(self._next_offset)]
        except (KeyError, TypeError, ValueError) as error:
            raise StorageDamaged(f"the log of users: {error}; was it written by a later version?") from None
        if records:
            self._users = apply_all(self._users, records)
        self._next_offset = log.state.high_watermark
        return self._users


def _write_checkpoint(log: TypedLog) -> None:
    """After a change that is committed, so a fault is only logged; a later change tries again."""
    try:
        if log.table.cleanup.is_checkpoint_due:
            log.table.cleanup.write_checkpoint()
    except StorageFault as fault:
        _log.warning("no checkpoint of the log of users could be written: %s", first_line(fault))


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
        """Look at the log, and return once a look that began after the call is over; many callers wait for one look. If
        the log cannot be read, the known users stay."""
        if self._looking is not None:  # that look may have begun before this call
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
        """Alter users; committed when it returns, and known at this broker. Raises `StorageFault`. After a cancellation
        only a commit that is already under way may still succeed: so it does not undo what the same caller requests
        later, at any broker."""
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
        """Return the users as of now. Raises `StorageFault`."""
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
