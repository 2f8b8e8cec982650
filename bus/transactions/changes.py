"""Changes of a transactional id: records, and `apply`, which is the only way to change a state, live and while loading.

A record of the log (records.py) has all that is durable. Those below are in no log: the calls that wait, and the vote
that is under way. A coordinator that dies takes them along, and the clients ask again. Guards one promise: what is
durable after records of the log is the same whether they were applied one by one or only the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from bus.errors import ErrorCode, Refused
from bus.machine import CancelTimer, Reply, SetTimer
from bus.model import TopicPartition
from bus.transactions import requests as rq
from bus.transactions.records import LOGGED, LoggedRecord, TransactionExpired, TransactionLogged
from bus.transactions.state import (
    PRODUCER_EPOCH_MAX,
    TRANSITIONS,
    Anchor,
    AwaitingInit,
    Transaction,
    TransactionGroup,
    TransactionPartition,
    TransactionState,
    Vote,
    VoteId,
    has_one_phase_behind,
)


@dataclass(frozen=True, slots=True)
class VoteBegun:
    transactional_id: str
    vote: Vote


@dataclass(frozen=True, slots=True)
class EndsAwaited:
    """These calls, and no others, wait for the end of the transaction."""

    transactional_id: str
    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InitsAwaited:
    """These calls, and no others, wait for the next epoch."""

    transactional_id: str
    calls: tuple[AwaitingInit, ...]


@dataclass(frozen=True, slots=True)
class PartitionResolved:
    """The partition has answered which transactions were committed after the last record in the log, and that it takes
    none with a number up to `skipped_number`."""

    transactional_id: str
    skipped_number: int


MemoryRecord = VoteBegun | EndsAwaited | InitsAwaited | PartitionResolved
TransactionRecord = LoggedRecord | MemoryRecord

_DURABLE = tuple(each.name for each in fields(TransactionLogged))
_durable_values: Callable[[Transaction | TransactionLogged], tuple[Any, ...]] = attrgetter(*_DURABLE)


def apply(transaction: Transaction | None, records: Iterable[TransactionRecord]) -> Transaction | None:
    """The transactional id after `records`, in their order; None: nothing is known of it."""
    for record in records:
        transaction = _apply_one(transaction, record)
    return transaction


def _apply_one(transaction: Transaction | None, record: TransactionRecord) -> Transaction | None:
    if isinstance(record, TransactionExpired):
        return None
    if isinstance(record, TransactionLogged):
        return _as_logged(transaction, record)
    assert transaction is not None, f"nothing is known of {record.transactional_id}"
    match record:
        case VoteBegun(_, vote):
            assert transaction.state is TransactionState.ONGOING, f"{transaction.state.value} votes on nothing"
            return replace(transaction, vote=vote)
        case EndsAwaited(_, request_ids):
            return replace(transaction, awaiting_end=request_ids)
        case InitsAwaited(_, calls):
            return replace(transaction, awaiting_init=calls)
        case PartitionResolved(_, skipped_number):
            return replace(transaction, is_unresolved=False, skipped_number=skipped_number)


def find_anchor(record: TransactionLogged) -> Anchor | None:
    """The anchor that the last record of an id in the log gives; None if the next commit needs a record."""
    is_commit = record.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    if not is_commit or record.groups or len(record.partitions) != 1 or not has_one_phase_behind(record.producer_epoch):
        return None
    (partition,) = record.partitions
    return Anchor(partition, record.number)


def _as_logged(before: Transaction | None, record: TransactionLogged) -> Transaction:
    """Return the transaction as logged. Beside the record's fields, memory keeps the waiting calls, and what it may not
    know of this identity; a vote ends with the decision."""
    if before is None or before.damage is not None:
        return Transaction(**_durable_of(record))
    _check_change(before, record)
    has_identity = (record.producer_id, record.producer_epoch) == (before.producer_id, before.producer_epoch)
    may_be_told = has_identity or _is_taken_up(before, record)
    return Transaction(
        **_durable_of(record),
        vote=before.vote if record.state is TransactionState.ONGOING else None,
        awaiting_end=before.awaiting_end,
        awaiting_init=before.awaiting_init,
        may_lack_partitions=before.may_lack_partitions and may_be_told,
        anchor=before.anchor,
        is_unresolved=before.is_unresolved,
        skipped_number=before.skipped_number,
    )


def _is_taken_up(before: Transaction, after: TransactionLogged) -> bool:
    """The partition has told of a later commit. A coordinator before has told its client the epoch that follows it, and
    may have let partitions take part under that."""
    is_unknown_behind = before.is_unresolved and not before.state.is_open
    return is_unknown_behind and after.state is TransactionState.COMPLETE_COMMIT


def _check_change(before: Transaction, after: TransactionLogged) -> None:
    """One step of the state, of the number, and of the epoch at most; more if the partition has answered that several
    transactions were committed after the last record."""
    name = before.transactional_id
    assert before.state in TRANSITIONS[after.state], f"{name}: {after.state.value} after {before.state.value}"
    if before.is_unresolved and not before.state.is_open:
        found = (after.number - before.number, after.producer_epoch - before.producer_epoch)
        assert min(found) > 0, f"{name}: {after} after {before}"
        assert not after.state.is_open, f"{name}: {after} before its partition was asked"
        return
    assert before.state is not after.state or after.state is not TransactionState.COMPLETE_COMMIT, f"{name}: {after}"
    begins = not before.state.is_open and after.state.is_open
    is_new = begins or after.state is TransactionState.EMPTY
    expected = (before.last_number if is_new else before.number) + begins
    assert after.number == expected, f"{name}: number {after.number} after {before.number}"
    if after.producer_id == before.producer_id:
        raised = after.producer_epoch - before.producer_epoch
        assert raised in (0, 1), f"{name}: epoch {after.producer_epoch} after {before.producer_epoch}"
    else:
        assert after.producer_epoch == 0, f"{name}: new producer id with epoch {after.producer_epoch}"
        assert before.producer_epoch >= PRODUCER_EPOCH_MAX, f"{name}: new producer id after {before.producer_epoch}"


def logged(transaction: Transaction, **changes: Any) -> TransactionLogged:
    """The record of the id as it is, but for `changes`."""
    return TransactionLogged(**(_durable_of(transaction) | changes))


def _durable_of(known: Transaction | TransactionLogged) -> dict[str, Any]:
    return dict(zip(_DURABLE, _durable_values(known), strict=True))


DAY_MS = 24 * 60 * 60 * 1_000
AWAITING_MAX = 16  # calls of one kind that wait for the end of a transaction


@dataclass(frozen=True, slots=True)
class TransactionRules:
    """The configs of the broker that the rules use. Each field is named after its key."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * DAY_MS


@dataclass(frozen=True, slots=True)
class CollectVotes:
    """Ask every partition and group whether it has all of the transaction; answer with `Voted`. To be asked again until
    all have answered: if one never does, the time-out of the transaction ends the vote.

    `last_sequences` as in `EndTransaction`. `is_one_phase`: the only partition commits what it votes for, by one
    version with the rows, unless another coordinator has resolved it before. If something is missing, it refuses the
    transaction for ever. The time-out does not end this vote."""

    transactional_id: str
    number: int
    producer_id: int
    producer_epoch: int  # the epoch in the rows
    partitions: tuple[TransactionPartition, ...]
    groups: tuple[TransactionGroup, ...]
    last_sequences: Mapping[TopicPartition, int]
    vote_id: VoteId
    is_one_phase: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """The decision is durable: apply the transaction, or drop it, in every partition and group, until all have done it;
    answer with `Finished`. Said again after each load, so that what is done already has to be safe to repeat."""

    transactional_id: str
    number: int
    producer_id: int
    producer_epoch: int  # the epoch in the rows
    is_commit: bool
    partitions: Mapping[TransactionPartition, int]  # the last sequence to apply; NO_SEQUENCE: none, drop what is staged
    groups: tuple[TransactionGroup, ...]
    needs_producer_id: bool  # `Finished` has to bring a new one: the epochs of this one are used up
    may_give_up: bool = False  # an operator gives up partitions that refuse their part forever


@dataclass(frozen=True, slots=True)
class Resolve:
    """Ask the partition which transactions of the id it has after `number`, and have it refuse the next one for ever,
    since an earlier coordinator may have sent that one. The answer is `Resolved`. `producer_epoch`: of the rows of
    `number` + 1; it rises by one with each number."""

    transactional_id: str
    number: int
    producer_id: int
    producer_epoch: int
    partition: TransactionPartition


TransactionNotice = CollectVotes | Finish | Resolve


class TransactionStep:
    """A step while it is being decided. Guards two promises: a request is answered at most once, and only records
    change the state. `state` is what `apply` makes of the changes so far, and cannot be set."""

    def __init__(
        self, transaction: Transaction | None, transactional_id: str, *, rules: TransactionRules, now_ms: int
    ) -> None:
        self._state = transaction
        self.transactional_id = transactional_id
        self.rules = rules
        self.now_ms = now_ms
        self.changes: list[TransactionRecord] = []
        self.records: list[LoggedRecord] = []  # the part of `changes` that goes into the log
        self.notices: list[TransactionNotice] = []
        self._later_count = 0  # the number of `records` that may be logged later
        self._replies: dict[int, Reply[rq.TransactionAnswer]] = {}
        self._timers: dict[
            rq.TransactionTimer, SetTimer[rq.TransactionCommand] | CancelTimer[rq.TransactionCommand]
        ] = {}

    @property
    def state(self) -> Transaction | None:
        return self._state

    @property
    def transaction(self) -> Transaction:
        """The state of an id that must be known."""
        assert self._state is not None, f"nothing is known of {self.transactional_id}"
        return self._state

    @property
    def may_log_later(self) -> bool:
        return self._later_count == len(self.records)

    @property
    def replies(self) -> Collection[Reply[rq.TransactionAnswer]]:
        return self._replies.values()

    @property
    def timers(self) -> Collection[SetTimer[rq.TransactionCommand] | CancelTimer[rq.TransactionCommand]]:
        return self._timers.values()

    def record(self, *records: TransactionRecord) -> None:
        self.changes += records
        self.records += [record for record in records if isinstance(record, LOGGED)]
        self._state = apply(self._state, records)

    def change(self, **changes: Any) -> None:
        """Record the id with `changes`, as of now. A clock that goes back does not take `update_ms` along."""
        update_ms = max(self.transaction.update_ms, self.now_ms)
        self.record(logged(self.transaction, update_ms=update_ms, **changes))

    def change_ahead_of_log(self, **changes: Any) -> None:
        """Change like `change`, for a change that a coordinator reproduces if the log lacks it."""
        self.change(**changes)
        self._later_count += 1

    def reply(self, request_id: int, answer: rq.TransactionAnswer) -> None:
        assert request_id not in self._replies, f"request {request_id} is answered twice"
        self._replies[request_id] = Reply(request_id, answer)

    def begin_vote(
        self, request_id: int, last_sequences: Mapping[TopicPartition, int], *, is_one_phase: bool
    ) -> VoteId:
        vote_id = VoteId(request_id)
        self.record(VoteBegun(self.transactional_id, Vote(vote_id, last_sequences, is_one_phase)))
        return vote_id

    def await_end(self, request_id: int) -> None:
        """Answer the call with the end of the transaction. Only the newest calls wait: the callers of the others have
        most likely gone."""
        calls = (*self.transaction.awaiting_end, request_id)
        for displaced in calls[:-AWAITING_MAX]:
            self.reply(displaced, self._displaced())
        self.record(EndsAwaited(self.transactional_id, calls[-AWAITING_MAX:]))

    def answer_ends(self, answer: rq.TransactionAnswer) -> None:
        """To all calls that wait for the end of the transaction."""
        awaiting = self.transaction.awaiting_end
        if awaiting:
            self.record(EndsAwaited(self.transactional_id, ()))
        for request_id in awaiting:
            self.reply(request_id, answer)

    def await_init(self, call: AwaitingInit) -> None:
        """The same for a call that wants the epoch after it."""
        calls = (*self.transaction.awaiting_init, call)
        for displaced in calls[:-AWAITING_MAX]:
            self.reply(displaced.request_id, self._displaced())
        self.record(InitsAwaited(self.transactional_id, calls[-AWAITING_MAX:]))

    def take_inits(self) -> tuple[AwaitingInit, ...]:
        """The calls that waited for the next epoch, in the order of their coming; they wait no more."""
        awaiting = self.transaction.awaiting_init
        if awaiting:
            self.record(InitsAwaited(self.transactional_id, ()))
        return awaiting

    def _displaced(self) -> Refused:
        return Refused(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"{self.transactional_id}: expected at most {AWAITING_MAX} calls that wait for the end of a transaction, "
            "found newer ones; retry",
        )

    def notify(self, notice: TransactionNotice) -> None:
        self.notices.append(notice)

    def set_timer(self, kind: rq.TimerKind, after_ms: int, *, number: int = 0) -> None:
        timer = rq.TransactionTimer(kind, self.transactional_id, number)
        self._timers[timer] = SetTimer(timer, after_ms)

    def cancel_timer(self, kind: rq.TimerKind, *, number: int = 0) -> None:
        timer = rq.TransactionTimer(kind, self.transactional_id, number)
        self._timers[timer] = CancelTimer(timer)
