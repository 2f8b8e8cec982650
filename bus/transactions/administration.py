"""Describing and listing transactional ids (KIP-664), and their expiry."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bus.transactions.records import TransactionExpired
from bus.transactions.requests import DescribedTransaction, ListedTransaction, TimerKind
from bus.transactions.resolution import ask_partition
from bus.transactions.state import NO_TIME, Transaction
from bus.transactions.steps import TransactionStep

# Until an id that is to expire is looked at again, whose partition has been asked.
_EXPIRY_RETRY_MS = 3_600_000
UNREADABLE = "Unreadable"  # in the place of a state: the record of the id cannot be read


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """Which ids are listed: those that match every field that says something. `open_for_ms` (KIP-994): only those whose
    transaction has been open for longer."""

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    open_for_ms: int = -1

    def matches(self, transaction: Transaction, *, now_ms: int) -> bool:
        if self.states and _state_name(transaction) not in self.states:
            return False
        if self.producer_ids and transaction.producer_id not in self.producer_ids:
            return False
        if self.open_for_ms < 0:
            return True
        return transaction.state.is_open and now_ms - transaction.start_ms > self.open_for_ms


def list_transaction(transaction: Transaction) -> ListedTransaction:
    return ListedTransaction(transaction.transactional_id, transaction.producer_id, _state_name(transaction))


def describe_transaction(transaction: Transaction) -> DescribedTransaction:
    is_open = transaction.state.is_open
    return DescribedTransaction(
        transaction.transactional_id,
        _state_name(transaction),
        transaction.number,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.timeout_ms,
        transaction.start_ms if is_open else NO_TIME,
        transaction.update_ms,
        None if transaction.abort_cause is None else transaction.abort_cause.value,
        tuple(transaction.partitions) if is_open else (),
        tuple(group.group_id for group in transaction.groups) if is_open else (),
    )


def expire(step: TransactionStep) -> None:
    """An id without an open transaction is forgotten when nothing has happened to it for so long, and its partition has
    told what it has. Otherwise a commit that an earlier coordinator has sent might come after the next initialisation:
    nothing would fence it."""
    transaction = step.transaction
    left_ms = step.rules.transactional_id_expiration_ms
    if not transaction.state.is_open:
        left_ms = min(left_ms, transaction.update_ms + left_ms - step.now_ms)
    if left_ms > 0:
        step.set_timer(TimerKind.EXPIRE, left_ms)
    elif transaction.is_unresolved:
        ask_partition(step)
        step.set_timer(TimerKind.EXPIRE, _EXPIRY_RETRY_MS)
    else:
        step.record(TransactionExpired(transaction.transactional_id))


def _state_name(transaction: Transaction) -> str:
    return transaction.state.value if transaction.damage is None else UNREADABLE
