"""The log of users, read and changed: blocking, so a broker calls it in a thread, and a command as it is.

Theory of operation. No broker is the writer of this log. Who changes it follows it to its end, commits the fence of a
new leader epoch, decides once more on what stood before that fence, and commits its records at the next version: put if
absent, so of two that change it at once one gets the version, and the other decides again on what the first one has
left. Therefore a change needs neither the controller nor a call to another broker, passwords can be changed while no
controller is elected, and a command with access to the root makes the first user whether a broker runs or not. Changes
are rare, so that a fence in front of one costs nothing that counts; a ledger whose own change was the last one needs
none.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence

from bus.errors import Refused, StorageDamaged, StorageFault, first_line
from bus.ports import Clock, Committed, Storage, TypedLog, Unknown
from bus.users.users import Alteration, Users, apply_all, decide_alter, decode_record, encode_record

_log = logging.getLogger(__name__)

_TRIES_MAX = 100
_DECOY_KEY_BYTES = 32


class UserLedger:
    """Used by one thread at a time."""

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
        """As `decide_alter` decides; what is not refused is committed. Raises `StorageFault`: then it may be.

        `is_wanted` is asked in each try after the version is fixed that the commit would follow. So a change that is
        not wanted any more cannot overwrite one that another ledger begins afterwards: that one takes the version."""
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
        if log.table.is_checkpoint_due:
            log.table.write_checkpoint()
    except StorageFault as fault:
        _log.warning("no checkpoint of the log of users could be written: %s", first_line(fault))
