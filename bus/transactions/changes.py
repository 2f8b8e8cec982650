"""What changes a transactional id: records, and `apply`, which is the only way, live and while loading.

A record of the log (records.py) has all that is durable. Those below are in no log: the calls that wait, and the vote
that is under way. A coordinator that dies takes them along, and the clients ask again. Guards one promise: what is
durable after records of the log is the same whether they were applied one by one or only the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from bus.transactions.records import LoggedRecord, TransactionExpired, TransactionLogged
from bus.transactions.state import (
    PRODUCER_EPOCH_MAX,
    TRANSITIONS,
    Anchor,
    AwaitingInit,
    Transaction,
    TransactionState,
    Vote,
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
    """Beside what the record says, memory keeps who waits, and what it may not know of this identity; a vote is over
    with the decision."""
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
