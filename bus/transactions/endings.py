"""How a transaction ends: the client's commit or abort, the vote, its time-out, an operator; and what follows.

Guards two promises. There is one decision for each transaction: it is a record, which comes after every partition and
group has said that it has what the client was acknowledged, or in one phase the version with the rows; and it never
changes. And the same call of the same instance gets
the same answer as often as it is repeated, from every coordinator, until the next transaction begins. The table of
KIP-890 (part 2) is in `_end_current` and `_end_again`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bus.errors import ErrorCode, Refused, show_names
from bus.model import TopicPartition
from bus.transactions import requests as rq
from bus.transactions.changes import CollectVotes, Finish, PartitionResolved, TransactionStep
from bus.transactions.state import (
    ABORT_REASONS,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    PRODUCER_EPOCH_MAX,
    AbortCause,
    AppliedRows,
    ProducerIdentity,
    Transaction,
    TransactionPartition,
    TransactionState,
    find_lone_partition,
)

# ---------------------------------------------------------------- the client's call


def decide_end(step: TransactionStep, command: rq.EndTransaction, *, request_id: int) -> None:
    transaction = step.transaction
    identity = ProducerIdentity(command.producer_id, command.producer_epoch)
    if identity == transaction.identity and not transaction.state.is_decided:
        _end_current(step, command, request_id=request_id)
    elif identity == transaction.last_identity:
        _end_again(step, command, request_id=request_id)
    elif transaction.has_given_up(identity) and not command.is_commit:
        step.reply(request_id, _ended(transaction))
    elif identity == transaction.identity:
        step.reply(request_id, refuse_while_ending(transaction))
    else:
        step.reply(request_id, refuse_ended(transaction, identity))


def _end_current(step: TransactionStep, command: rq.EndTransaction, *, request_id: int) -> None:
    """The transaction of the current epoch, if it has begun here."""
    transaction = step.transaction
    is_ongoing = transaction.state is TransactionState.ONGOING
    if transaction.vote is not None:
        _join_vote(step, command, request_id=request_id)
    elif not command.is_commit:
        prepare_abort(step, AbortCause.CLIENT) if is_ongoing else _abort_nothing(step, AbortCause.CLIENT)
        step.await_end(request_id)
    elif transaction.may_lack_partitions and not (is_ongoing and command.last_sequences):
        step.await_end(request_id)
        _abort_what_may_lack(step)
    elif is_ongoing:
        step.await_end(request_id)
        _begin_vote(step, command, request_id=request_id)
    else:
        step.reply(request_id, _wrong_state(transaction, "an open transaction to commit"))


def _end_again(step: TransactionStep, command: rq.EndTransaction, *, request_id: int) -> None:
    """The transaction before the current epoch: its client has not heard the answer."""
    transaction = step.transaction
    match transaction.state, command.is_commit:
        case (TransactionState.PREPARE_COMMIT, True) | (TransactionState.PREPARE_ABORT, False):
            step.await_end(request_id)
        case (TransactionState.COMPLETE_COMMIT, True) | (TransactionState.COMPLETE_ABORT, False):
            step.reply(request_id, _ended(transaction))
        case (TransactionState.EMPTY, True) if transaction.given_up_epochs:  # no other one has come since it was done
            step.reply(request_id, _ended(transaction))
        case (TransactionState.PREPARE_ABORT | TransactionState.COMPLETE_ABORT, True):
            step.reply(request_id, _refuse_aborted(transaction))
        case (TransactionState.PREPARE_COMMIT | TransactionState.COMPLETE_COMMIT, False):
            step.reply(request_id, _wrong_state(transaction, "a transaction that is not committed"))
        case _:  # the instance has gone on
            step.reply(request_id, _fenced(transaction, command.producer_id, command.producer_epoch))


def refuse_while_ending(transaction: Transaction) -> Refused:
    """Refuse a call for the next transaction: an earlier coordinator had revealed its epoch, and ended before its log
    said that this transaction has ended everywhere."""
    return Refused(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"{transaction.transactional_id}: the transaction is being ended; retry later",
    )


def refuse_ended(transaction: Transaction, found: ProducerIdentity) -> Refused:
    """Refuse a call about a transaction that is not the current one. TRANSACTION_ABORTABLE: it was aborted, or given up
    because a topic is deleted, and not because of a newer instance, so the calling instance may continue with the next
    transaction."""
    if found == transaction.last_identity and transaction.abort_cause not in (None, AbortCause.CLIENT):
        return _refuse_aborted(transaction)
    if transaction.has_given_up(found):
        return Refused(
            ErrorCode.TRANSACTION_ABORTABLE,
            f"{transaction.transactional_id}: the topic of its last transactions is deleted, and with it the proof of "
            f"how the transaction of {found} ended; it has no rows in any other topic: abort it, and send it again if "
            "that is still wanted",
        )
    if found.producer_id not in (transaction.producer_id, transaction.previous_producer_id):
        return Refused(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{transaction.transactional_id}: expected producer id {transaction.producer_id}, "
            f"found {found.producer_id}",
        )
    return _fenced(transaction, found.producer_id, found.producer_epoch)


def _refuse_aborted(transaction: Transaction) -> Refused:
    cause = transaction.abort_cause
    assert cause is not None, f"{transaction.transactional_id} is {transaction.state.value} without a cause"
    if cause is AbortCause.CLIENT:
        return _wrong_state(transaction, "a transaction that its client has not aborted")
    return Refused(
        ErrorCode.TRANSACTION_ABORTABLE,
        f"{transaction.transactional_id}: the transaction was aborted: {ABORT_REASONS[cause]}",
    )


def _fenced(transaction: Transaction, producer_id: int, producer_epoch: int) -> Refused:
    return Refused(
        ErrorCode.PRODUCER_FENCED,
        f"{transaction.transactional_id}: expected {transaction.identity}, "
        f"found {ProducerIdentity(producer_id, producer_epoch)}",
    )


def _wrong_state(transaction: Transaction, expected: str) -> Refused:
    return Refused(
        ErrorCode.INVALID_TXN_STATE,
        f"{transaction.transactional_id}: expected {expected}, found {transaction.state.value}",
    )


def _ended(transaction: Transaction) -> rq.TransactionEnded:
    return rq.TransactionEnded(transaction.producer_id, transaction.producer_epoch, transaction.results)


# ---------------------------------------------------------------- the vote


def _begin_vote(step: TransactionStep, command: rq.EndTransaction, *, request_id: int) -> None:
    transaction, last_sequences = step.transaction, command.last_sequences
    is_one_phase = command.allows_one_phase and _may_be_one_phase(transaction, last_sequences)
    vote_id = step.begin_vote(request_id, last_sequences, is_one_phase=is_one_phase)
    step.notify(
        CollectVotes(
            transaction.transactional_id,
            transaction.number,
            transaction.producer_id,
            transaction.producer_epoch,
            tuple(transaction.partitions),
            transaction.groups,
            last_sequences,
            vote_id,
            is_one_phase,
        )
    )


def _may_be_one_phase(transaction: Transaction, last_sequences: Mapping[TopicPartition, int]) -> bool:
    """If the client says how many rows there are: acknowledged ones that are lost would not be missed otherwise."""
    partition = find_lone_partition(transaction)
    return partition is not None and last_sequences.keys() == {partition.name}


def _join_vote(step: TransactionStep, command: rq.EndTransaction, *, request_id: int) -> None:
    transaction = step.transaction
    assert transaction.vote is not None, f"{transaction.transactional_id} is not voted on"
    if command.is_commit and command.last_sequences == transaction.vote.last_sequences:
        step.await_end(request_id)
    elif command.is_commit:
        step.reply(
            request_id,
            Refused(
                ErrorCode.INVALID_REQUEST,
                f"{transaction.transactional_id}: expected the last sequences of the call that is repeated, "
                f"{_show(transaction.vote.last_sequences)}, found {_show(command.last_sequences)}",
            ),
        )
    else:
        step.reply(request_id, _refuse_while_committed(transaction))


def _show(last_sequences: Mapping[TopicPartition, int]) -> str:
    return show_names(f"{name} up to {sequence}" for name, sequence in last_sequences.items()) or "(none)"


def _refuse_while_committed(transaction: Transaction) -> Refused:
    return Refused(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"{transaction.transactional_id}: the transaction is being committed; retry later",
    )


def decide_voted(step: TransactionStep, command: rq.Voted, *, request_id: int) -> bool:
    """Commit the transaction if everything is there, and otherwise abort it. Returns True if the transaction has ended
    with that, as it does in one phase. No effect if the vote is over, even if another one is under way: the count of
    the former may be less than what was acknowledged to the client since."""
    step.reply(request_id, rq.Noted())
    transaction = step.state
    if transaction is None or transaction.number != command.number or transaction.vote is None:
        return False
    if transaction.vote.vote_id != command.vote_id:
        return False
    pinned = _pin(transaction, command) if command.refused is None else command.refused
    if command.taken_number >= transaction.number:
        pinned = _overtaken(step, command.taken_number)
    if isinstance(pinned, Refused):
        _abort_after_vote(step, pinned)
        return False
    step.cancel_timer(rq.TimerKind.TIMEOUT, number=transaction.number)
    change = step.change if command.rows is None else step.change_ahead_of_log
    change(
        state=TransactionState.PREPARE_COMMIT,
        producer_epoch=transaction.producer_epoch + 1,
        last_producer_epoch=transaction.producer_epoch,
        previous_producer_id=NO_PRODUCER_ID,
        partitions=pinned,
    )
    if command.rows is None:
        finish(step)
        return False
    _complete(step, dict.fromkeys(pinned, command.rows))
    return True


def _pin(transaction: Transaction, voted: rq.Voted) -> dict[TransactionPartition, int] | Refused:
    """Return, for each partition whose topic exists, the last sequence to commit: the last one that was acknowledged to
    the client, or the last staged one if the client names none."""
    assert transaction.vote is not None
    named = transaction.vote.last_sequences
    left = [partition for partition in transaction.partitions if partition not in voted.gone]
    unknown = named.keys() - {partition.name for partition in transaction.partitions}
    if unknown:
        return _lacking(transaction, f"{min(unknown)} takes no part in it")
    pinned = {}
    for partition in left:
        staged = voted.last_sequences[partition]
        wanted = named.get(partition.name, NO_SEQUENCE) if named else staged
        if staged < wanted:
            return _lacking(transaction, f"{partition}: expected all up to sequence {wanted}, found {staged}")
        if transaction.vote.is_one_phase and voted.rows is None:
            return _lacking(transaction, f"{partition} has refused it for ever")
        pinned[partition] = wanted
    return pinned


def _overtaken(step: TransactionStep, taken_number: int) -> Refused:
    """A partition has a mark at or above the number of this transaction, which an earlier life of the id left: its rows
    could not be told from those. The next transaction gets a number above it."""
    step.record(PartitionResolved(step.transactional_id, taken_number))
    transaction = step.transaction
    found = f"a partition has transaction {taken_number} of an earlier life of the id, expected none above"
    return _lacking(transaction, f"{found} {transaction.number - 1}; the next transaction has a number above it")


def _lacking(transaction: Transaction, found: str) -> Refused:
    return Refused(
        ErrorCode.TRANSACTION_ABORTABLE,
        f"{transaction.transactional_id}: the transaction is aborted, for a part of it is missing: {found}",
    )


def _abort_after_vote(step: TransactionStep, refused: Refused) -> None:
    step.answer_ends(Refused(ErrorCode.TRANSACTION_ABORTABLE, refused.message))
    prepare_abort(step, AbortCause.VOTE)


# ---------------------------------------------------------------- aborts


def prepare_abort(step: TransactionStep, cause: AbortCause) -> None:
    """Decide that the open transaction is aborted. The epoch is raised in the same record: nothing of the instance that
    had it comes after."""
    transaction = step.transaction
    step.cancel_timer(rq.TimerKind.TIMEOUT, number=transaction.number)
    step.change(
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=transaction.producer_epoch + 1,
        last_producer_epoch=NO_PRODUCER_EPOCH if cause.ends_instance else transaction.producer_epoch,
        previous_producer_id=NO_PRODUCER_ID,
        abort_cause=cause,
    )
    if cause.ends_instance:
        step.answer_ends(_fenced(step.transaction, transaction.producer_id, transaction.producer_epoch))
    elif transaction.awaiting_end:
        step.answer_ends(
            Refused(
                ErrorCode.TRANSACTION_ABORTABLE,
                f"{transaction.transactional_id}: the transaction was aborted: {ABORT_REASONS[cause]}",
            )
        )
    finish(step)


def _abort_what_may_lack(step: TransactionStep) -> None:
    """The commit does not say which partitions it is about, or is about a transaction that is not known here at all:
    rows of it may have been acknowledged of which only the coordinator before knew."""
    found = "its coordinator has moved, and may not know of every partition that took part"
    step.answer_ends(_lacking(step.transaction, found))
    if step.transaction.state is TransactionState.ONGOING:
        prepare_abort(step, AbortCause.VOTE)
    else:
        _abort_nothing(step, AbortCause.VOTE)


def _abort_nothing(step: TransactionStep, cause: AbortCause) -> None:
    """The client ends what never arrived here; the epoch rises, so that it does not arrive afterwards."""
    transaction = step.transaction
    step.change(
        state=TransactionState.PREPARE_ABORT,
        number=transaction.last_number + 1,
        producer_epoch=transaction.producer_epoch + 1,
        last_producer_epoch=transaction.producer_epoch,
        previous_producer_id=NO_PRODUCER_ID,
        partitions={},
        groups=(),
        start_ms=max(0, step.now_ms),
        abort_cause=cause,
        results={},
    )
    finish(step)


def time_out(step: TransactionStep, number: int) -> None:
    """Abort the open transaction because its time is up. The instance may continue with the next transaction, unless a
    newer one comes."""
    transaction = step.transaction
    is_open = transaction.state is TransactionState.ONGOING and not transaction.may_be_committed
    if is_open and transaction.number == number:
        prepare_abort(step, AbortCause.TIMEOUT)


def decide_abort(step: TransactionStep, command: rq.AbortTransaction, *, request_id: int) -> None:
    """An operator's."""
    transaction = step.transaction
    expected, found = command.expected, transaction.open_identity
    if transaction.state is TransactionState.COMPLETE_ABORT and expected == transaction.last_identity is not None:
        step.reply(request_id, _ended(transaction))
    elif transaction.state not in (TransactionState.ONGOING, TransactionState.PREPARE_ABORT):
        step.reply(request_id, _wrong_state(transaction, "a transaction that is not decided"))
    elif transaction.state is TransactionState.ONGOING and transaction.may_be_committed:
        step.reply(request_id, _refuse_while_committed(transaction))
    elif expected not in (None, found):
        step.reply(
            request_id,
            Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"{transaction.transactional_id}: expected the transaction of {expected}, found that of {found}",
            ),
        )
    else:
        if transaction.state is TransactionState.ONGOING:
            prepare_abort(step, AbortCause.OPERATOR)
        step.await_end(request_id)


# ---------------------------------------------------------------- what follows the decision


def finish(step: TransactionStep, *, may_give_up: bool = False) -> None:
    """Request everything that the decision needs elsewhere."""
    transaction = step.transaction
    rows = transaction.open_identity
    assert rows is not None, f"{transaction.transactional_id} is {transaction.state.value}"
    step.notify(
        Finish(
            transaction.transactional_id,
            transaction.number,
            rows.producer_id,
            rows.producer_epoch,
            transaction.state is TransactionState.PREPARE_COMMIT,
            transaction.partitions,
            transaction.groups,
            needs_producer_id=transaction.producer_epoch > PRODUCER_EPOCH_MAX,
            may_give_up=may_give_up,
        )
    )


def decide_finished(step: TransactionStep, command: rq.Finished, *, request_id: int) -> bool:
    """Complete the transaction; True if it has ended. No effect if it had ended before."""
    transaction = step.state
    if transaction is None or transaction.number != command.number or not transaction.state.is_decided:
        step.reply(request_id, rq.Noted())
        return False
    is_exhausted = transaction.producer_epoch > PRODUCER_EPOCH_MAX
    if is_exhausted and command.new_producer_id is None:
        step.reply(
            request_id,
            Refused(
                ErrorCode.INVALID_REQUEST,
                f"{transaction.transactional_id}: expected a new producer id after epoch {PRODUCER_EPOCH_MAX}, "
                "found none",
            ),
        )
        return False
    step.reply(request_id, rq.Noted())
    if command.given_up:
        step.answer_ends(_given_up(transaction, command.given_up))
    _complete(
        step,
        command.results,
        command.new_producer_id if is_exhausted else None,
        is_given_up=bool(command.given_up),
    )
    return True


def _given_up(transaction: Transaction, partitions: Collection[TransactionPartition]) -> Refused:
    return Refused(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"{transaction.transactional_id}: the commit of transaction {transaction.number} was decided, but its rows are "
        f"not in {show_names(map(str, sorted(partitions)))}: expected no later transaction of the id there, found one; "
        "an operator has given them up",
    )


def _complete(
    step: TransactionStep,
    results: Mapping[TransactionPartition, AppliedRows],
    new_producer_id: int | None = None,
    *,
    is_given_up: bool = False,
) -> None:
    """`new_producer_id` None: the epochs of the one that there is are not used up. `is_given_up`: in some partition."""
    transaction = step.transaction
    is_commit = transaction.state is TransactionState.PREPARE_COMMIT
    is_same = transaction.last_producer_epoch != NO_PRODUCER_EPOCH
    has_rotated = new_producer_id is not None
    # The decision is in this log or in the partition's, and carrying it out once more is safe. Only this record has a
    # new producer id, what an operator has given up, or a commit whose version is gone because its topic was deleted.
    has_rows = is_commit and any(last_sequence != NO_SEQUENCE for last_sequence in transaction.partitions.values())
    is_recorded_elsewhere = not has_rotated and not is_given_up and (bool(results) or not has_rows)
    change = step.change_ahead_of_log if is_recorded_elsewhere else step.change
    change(
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        producer_id=new_producer_id if has_rotated else transaction.producer_id,
        producer_epoch=0 if has_rotated else transaction.producer_epoch,
        previous_producer_id=transaction.producer_id if has_rotated and is_same else NO_PRODUCER_ID,
        partitions=transaction.partitions if is_commit else {},
        groups=transaction.groups if is_commit else (),
        results=_of_partitions(transaction, results) if is_commit else {},
    )
    step.answer_ends(_ended(step.transaction))


def _of_partitions(
    transaction: Transaction, results: Mapping[TransactionPartition, AppliedRows]
) -> dict[TransactionPartition, AppliedRows]:
    """Without those of partitions that take no part."""
    return {partition: results[partition] for partition in transaction.partitions if partition in results}
