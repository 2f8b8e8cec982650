"""Decisions of a transactional id's coordinator about calls, timers, and reports of other brokers: the entry to the
rules of transactions.

Guards three promises: the same state, command and time give the same step; a transaction has begun, with its time-out,
before anything of it is acknowledged; and a late message of an earlier transaction, whose epoch is another one, begins
nothing. Nothing here waits.

That a partition takes part is told before it is in the log. A coordinator that dies meanwhile leaves staged rows that
no coordinator knows of: they are never applied, hold up no reader and no other transaction, and are swept. The next
coordinator commits no transaction without them (`Transaction.may_lack_partitions`). Of a group it is logged first:
offsets that nothing drops would be pending for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bus.descriptions import TransactionListing
from bus.errors import ErrorCode, Refused, count_of
from bus.machine import SetTimer
from bus.model import TRANSACTION_STATE_TOPIC
from bus.transactions import requests as rq
from bus.transactions.bounds import GROUPS_MAX, PARTITIONS_MAX, check_request
from bus.transactions.changes import TransactionRules, TransactionStep, find_anchor
from bus.transactions.endings import (
    decide_abort,
    decide_end,
    decide_finished,
    decide_voted,
    finish,
    refuse_ended,
    refuse_while_ending,
    time_out,
)
from bus.transactions.epochs import decide_fence, decide_init, give_epochs, replace_damaged
from bus.transactions.loading import ask_partition, decide_resolved, refuse_unresolved, resume_timers
from bus.transactions.records import LoggedRecord, TransactionExpired, TransactionLogged
from bus.transactions.state import (
    NO_SEQUENCE,
    NO_TIME,
    Anchor,
    ProducerIdentity,
    Transaction,
    TransactionGroup,
    TransactionPartition,
    TransactionState,
    find_lone_partition,
)

# The pause before an id that is to expire, and whose partition was asked, is looked at again.
_EXPIRY_RETRY_MS = 3_600_000
UNREADABLE = "Unreadable"  # takes the place of a state: the record of the id cannot be read


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """A filter of transactional ids: an id matches if it matches every field that is set. `open_for_ms` (KIP-994): only
    ids whose transaction has been open for longer."""

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


def list_transaction(transaction: Transaction, coordinator_id: int) -> TransactionListing:
    return TransactionListing(
        transaction.transactional_id, coordinator_id, transaction.producer_id, _state_name(transaction)
    )


def describe_transaction(transaction: Transaction) -> rq.DescribedTransaction:
    is_open = transaction.state.is_open
    return rq.DescribedTransaction(
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
    """Forget an id without an open transaction when nothing has happened to it for the expiration time, and its
    partition has reported its transactions. Otherwise a commit that an earlier coordinator has sent might come after
    the next initialisation: nothing would fence it."""
    transaction = step.transaction
    left_ms = step.rules.transactional_id_expiration_ms
    if not transaction.state.is_open:
        left_ms = min(left_ms, transaction.update_ms + left_ms - step.now_ms)
    if left_ms > 0:
        step.set_timer(rq.TimerKind.EXPIRE, left_ms)
    elif transaction.is_unresolved:
        ask_partition(step)
        step.set_timer(rq.TimerKind.EXPIRE, _EXPIRY_RETRY_MS)
    else:
        step.record(TransactionExpired(transaction.transactional_id))


def _state_name(transaction: Transaction) -> str:
    return transaction.state.value if transaction.damage is None else UNREADABLE


# Commands of clients and operators; the others are the coordinator's own.
_REQUESTS = (
    rq.InitProducerId,
    rq.AddPartitions,
    rq.AddOffsets,
    rq.EndTransaction,
    rq.FenceProducer,
    rq.AbortTransaction,
    rq.DescribeTransaction,
)

# A transaction that is no older is not logged before its end.
YOUNG_MS = 2_000


class TransactionMachine:
    """The rules of transactions as the runtime asks for them (`bus.machine.Machine`)."""

    def __init__(self, rules: TransactionRules) -> None:
        self._rules = rules

    def entity_id(self, command: rq.TransactionCommand) -> str:
        return command.transactional_id

    def decide(
        self, transaction: Transaction | None, command: rq.TransactionCommand, *, request_id: int, now_ms: int
    ) -> TransactionStep:
        return decide(transaction, command, request_id=request_id, rules=self._rules, now_ms=now_ms)

    def resume(self, transaction: Transaction) -> Sequence[SetTimer[rq.TransactionCommand]]:
        return resume_timers(transaction)

    def keep_back(
        self,
        later: Sequence[LoggedRecord],
        decided: Sequence[LoggedRecord],
        state_of: Callable[[str], Transaction | None],
        *,
        now_ms: int,
        may_wait: bool,
    ) -> Collection[int]:
        """Return the records to keep back: `Ongoing` of a transaction that may still end soon. With that record the log
        has no anchor any longer, and the commit needs a record. A transaction that takes longer is logged, so that it
        outlives its coordinator. The record of a transaction whose partition was asked to commit it is always kept
        back: without the anchor the next coordinator would not ask whether it did."""
        last = {record.transactional_id: position for position, record in enumerate(later)}
        for record in decided:
            last.pop(record.transactional_id, None)
        return {
            position
            for name, position in last.items()
            if _is_being_committed(state_of(name), later[position]) or (may_wait and _is_young(later[position], now_ms))
        }

    def logged(self, states: Mapping[str, Transaction], records: Iterable[LoggedRecord]) -> Mapping[str, Transaction]:
        last = {record.transactional_id: record for record in records}
        return {
            name: replace(states[name], anchor=_anchor_of(states[name], record))
            for name, record in last.items()
            if name in states and isinstance(record, TransactionLogged)
        }

    def refuse(self, command: rq.TransactionCommand, refused: Refused) -> rq.TransactionAnswer:
        return refused


def _is_being_committed(transaction: Transaction | None, record: LoggedRecord) -> bool:
    """True if the transaction is being committed in one phase. Only the vote in memory follows `record`."""
    is_open = isinstance(record, TransactionLogged) and record.state is TransactionState.ONGOING
    return is_open and transaction is not None and transaction.may_be_committed


def _is_young(record: LoggedRecord, now_ms: int) -> bool:
    """True if the transaction has just begun; never if the clock was set back."""
    if not isinstance(record, TransactionLogged) or record.state is not TransactionState.ONGOING:
        return False
    return 0 <= now_ms - record.start_ms < YOUNG_MS


def _anchor_of(transaction: Transaction, record: TransactionLogged) -> Anchor | None:
    """None up to a number that is skipped, too: after an anchor, epochs and numbers rise in step."""
    if transaction.is_unresolved or transaction.skipped_number >= record.number:
        return None
    return find_anchor(record)


def decide(
    transaction: Transaction | None,
    command: rq.TransactionCommand,
    *,
    request_id: int,
    rules: TransactionRules,
    now_ms: int,
) -> TransactionStep:
    """`transaction` None: nothing is known of the command's transactional id. An end and an initialisation may be
    answered by a later step."""
    step = TransactionStep(transaction, command.transactional_id, rules=rules, now_ms=now_ms)
    if isinstance(command, rq.TransactionTimer):
        if transaction is not None and transaction.damage is None:
            _run_out(step, command)
        return step
    refused = check_request(command, timeout_max_ms=rules.transaction_max_timeout_ms) or _check_known(
        transaction, command
    )
    if refused is not None:
        step.reply(request_id, refused)
        return step
    if transaction is not None and transaction.damage is not None:
        _decide_on_damaged(step, command, transaction.damage, request_id=request_id)
        return step
    if isinstance(command, rq.Resolved):
        decide_resolved(step, command, request_id=request_id)
        return step
    if transaction is not None and transaction.is_unresolved and isinstance(command, _REQUESTS):
        _decide_on_unresolved(step, command, request_id=request_id)
        return step
    match command:
        case rq.InitProducerId():
            decide_init(step, command, request_id=request_id)
        case rq.AddPartitions() | rq.AddOffsets():
            decide_add(step, command, request_id=request_id)
        case rq.EndTransaction():
            decide_end(step, command, request_id=request_id)
        case rq.Voted():
            if decide_voted(step, command, request_id=request_id):
                give_epochs(step)
        case rq.Finished():
            if decide_finished(step, command, request_id=request_id):
                if step.transaction.is_unresolved:
                    ask_partition(step)
                else:
                    give_epochs(step)
        case rq.FenceProducer():
            decide_fence(step, command, request_id=request_id)
        case rq.AbortTransaction():
            decide_abort(step, command, request_id=request_id)
        case rq.DescribeTransaction():
            step.reply(request_id, describe_transaction(step.transaction))
    return step


def _decide_on_damaged(step: TransactionStep, command: rq.TransactionCommand, damage: str, *, request_id: int) -> None:
    if isinstance(command, rq.FenceProducer):
        replace_damaged(step, command, request_id=request_id)
    elif isinstance(command, rq.DescribeTransaction):
        step.reply(request_id, describe_transaction(step.transaction))
    else:
        step.reply(
            request_id,
            Refused(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"{step.transactional_id}: its record in {TRANSACTION_STATE_TOPIC} cannot be read: {damage}; to give "
                "up a transaction that it may have had, an operator fences the id",
            ),
        )


def _decide_on_unresolved(step: TransactionStep, command: rq.TransactionCommand, *, request_id: int) -> None:
    """A decision that was loaded is carried out first. Until then the id can be described, and an operator can give up
    what cannot be carried out, but nothing else."""
    if isinstance(command, rq.FenceProducer) and step.transaction.state is TransactionState.PREPARE_COMMIT:
        finish(step, may_give_up=True)
    if step.transaction.state.is_open and isinstance(command, rq.DescribeTransaction):
        step.reply(request_id, describe_transaction(step.transaction))
    else:
        step.reply(request_id, refuse_unresolved(step))


def _check_known(transaction: Transaction | None, command: rq.TransactionCommand) -> Refused | None:
    """An initialisation may be the beginning of an id; all else needs one."""
    if transaction is not None:
        return None
    match command:
        case rq.AddPartitions() | rq.AddOffsets() | rq.EndTransaction():
            return Refused(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"{command.transactional_id}: expected an id that is initialised, found one that is not known; it may "
                "have expired",
            )
        case rq.FenceProducer() | rq.AbortTransaction() | rq.DescribeTransaction():
            return Refused(
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {command.transactional_id}"
            )
        case _:
            return None


def _run_out(step: TransactionStep, timer: rq.TransactionTimer) -> None:
    match timer.kind:
        case rq.TimerKind.TIMEOUT:
            time_out(step, timer.number)
        case rq.TimerKind.EXPIRE:
            expire(step)
        case rq.TimerKind.DRIVE:
            _go_on(step)


def _go_on(step: TransactionStep) -> None:
    """Continue the transaction that was open when the id was loaded."""
    transaction = step.transaction
    if transaction.state.is_decided:
        finish(step)
    elif transaction.state is TransactionState.ONGOING:
        left_ms = transaction.start_ms + transaction.timeout_ms - step.now_ms
        # At most the whole time-out: the clock may have been ahead when the transaction began.
        step.set_timer(rq.TimerKind.TIMEOUT, min(max(0, left_ms), transaction.timeout_ms), number=transaction.number)


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
