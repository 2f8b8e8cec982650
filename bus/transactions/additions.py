"""Partitions and groups that take part in a transaction.

Guards two promises: a transaction has begun, with its time-out, before anything of it is acknowledged; and a late
message of an earlier transaction, whose epoch is another one, begins nothing.

That a partition takes part is told before it is in the log. A coordinator that dies meanwhile leaves staged rows that
no coordinator knows of: they are never applied, hold up no reader and no other transaction, and are swept. The next
coordinator commits no transaction without them (`Transaction.may_lack_partitions`). Of a group it is logged first:
offsets that nothing drops would be pending for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bus.errors import ErrorCode, Refused, count_of
from bus.transactions import requests as rq
from bus.transactions.bounds import GROUPS_MAX, PARTITIONS_MAX
from bus.transactions.changes import TransactionStep
from bus.transactions.endings import refuse_ended, refuse_while_ending
from bus.transactions.state import (
    NO_SEQUENCE,
    ProducerIdentity,
    Transaction,
    TransactionGroup,
    TransactionPartition,
    TransactionState,
    find_lone_partition,
)


def decide_add(step: TransactionStep, command: rq.AddPartitions | rq.AddOffsets, *, request_id: int) -> None:
    """Add partitions or a group's offsets to the transaction. A participant that takes part already is answered at
    once, because a leader that has just begun to lead asks again. Refused during a vote, which may not have counted
    what would be staged now."""
    transaction = step.transaction
    identity = ProducerIdentity(command.producer_id, command.producer_epoch)
    partitions = frozenset(command.partitions if isinstance(command, rq.AddPartitions) else ())
    groups = frozenset((command.group,) if isinstance(command, rq.AddOffsets) else ())
    refused = _check_adder(transaction, identity)
    if refused is None and transaction.state is TransactionState.ONGOING:
        refused = _check_undecided(transaction)
        if refused is None and partitions <= transaction.partitions.keys() and groups <= set(transaction.groups):
            step.reply(request_id, _added(step, command))
            return
    refused = refused or _check_counts(transaction, partitions, groups)
    if refused is not None:
        step.reply(request_id, refused)
        return
    change = step.change if groups else step.change_ahead_of_log
    if transaction.state is TransactionState.ONGOING:
        change(
            partitions={**transaction.partitions, **_unpinned(partitions - transaction.partitions.keys())},
            groups=tuple(sorted(groups.union(transaction.groups))),
        )
    else:
        _begin(step, change, partitions, groups)
    step.reply(request_id, _added(step, command))


def _added(step: TransactionStep, command: rq.AddPartitions | rq.AddOffsets) -> rq.Added:
    is_allowed = isinstance(command, rq.AddPartitions) and command.allows_one_phase
    return rq.Added(may_be_one_phase=is_allowed and find_lone_partition(step.transaction) is not None)


def _begin(
    step: TransactionStep,
    change: Callable[..., None],
    partitions: Iterable[TransactionPartition],
    groups: frozenset[TransactionGroup],
) -> None:
    number = step.transaction.last_number + 1
    change(
        state=TransactionState.ONGOING,
        number=number,
        partitions=_unpinned(partitions),
        groups=tuple(sorted(groups)),
        start_ms=max(0, step.now_ms),
        abort_cause=None,
        results={},
    )
    step.set_timer(rq.TimerKind.TIMEOUT, step.transaction.timeout_ms, number=number)


def _unpinned(partitions: Iterable[TransactionPartition]) -> dict[TransactionPartition, int]:
    """Return the partitions without a sequence, in an order that does not depend on hashes."""
    return dict.fromkeys(sorted(partitions), NO_SEQUENCE)


def _check_adder(transaction: Transaction, identity: ProducerIdentity) -> Refused | None:
    if identity != transaction.identity:
        return refuse_ended(transaction, identity)
    if transaction.state.is_decided:
        return refuse_while_ending(transaction)
    return None


def _check_undecided(transaction: Transaction) -> Refused | None:
    return None if transaction.vote is None else refuse_while_ending(transaction)


def _check_counts(
    transaction: Transaction, partitions: frozenset[TransactionPartition], groups: frozenset[TransactionGroup]
) -> Refused | None:
    is_ongoing = transaction.state is TransactionState.ONGOING
    known_partitions, known_groups = (transaction.partitions.keys(), transaction.groups) if is_ongoing else ((), ())
    for count, count_max, noun in (
        (len(partitions.union(known_partitions)), PARTITIONS_MAX, "partition"),
        (len(groups.union(known_groups)), GROUPS_MAX, "group"),
    ):
        if count > count_max:
            return Refused(
                ErrorCode.TRANSACTION_ABORTABLE,
                f"{transaction.transactional_id}: expected at most {count_of(count_max, noun)} in one transaction, "
                f"found {count}; abort it and use several",
            )
    return None
