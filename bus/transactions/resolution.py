"""What a new coordinator does about transactions that were committed after the last record in its log.

A commit of one partition may have no record yet (`find_lone_partition`): its version decides, and its `txn` action
proves it. Guards two promises: what was committed stays committed, and no identity and no number is given twice. So
where the last record of an id is a commit of one partition, that partition is asked before anything is decided about
the id. It answers with the last transaction that it has, and refuses the next one for ever: a commit that the earlier
coordinator asked for is either in the log by then, or never will be. Until the answer each call is refused with a
retriable error.
"""

from __future__ import annotations

from bus.errors import ErrorCode, Refused
from bus.transactions.changes import PartitionResolved, Resolve, TransactionStep
from bus.transactions.requests import Noted, Resolved
from bus.transactions.state import (
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIME,
    ONE_PHASE_MAX,
    TransactionState,
)


def refuse_unresolved(step: TransactionStep) -> Refused:
    """The answer to a call meanwhile. A decision that was loaded has to be carried out first: what was committed after
    it is not known, so no identity can be judged."""
    transaction = step.transaction
    if not transaction.state.is_open:
        ask_partition(step)
    (partition,) = transaction.partitions
    return Refused(
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        f"{transaction.transactional_id}: {partition} has yet to tell which of its transactions were committed last; "
        "retry later",
    )


def ask_partition(step: TransactionStep) -> None:
    """Safe to repeat."""
    transaction = step.transaction
    (partition,) = transaction.partitions
    step.notify(
        Resolve(
            transaction.transactional_id,
            transaction.number,
            transaction.producer_id,
            transaction.producer_epoch,
            partition,
        )
    )


def decide_resolved(step: TransactionStep, command: Resolved, *, request_id: int) -> None:
    step.reply(request_id, Noted())
    transaction = step.state
    if transaction is None or not transaction.is_unresolved or transaction.state.is_open:
        return
    if transaction.number != command.number:
        return
    if command.last_number is None:
        _go_on_without_partition(step)
    elif command.last_number > transaction.number:
        _take_up(step, command, command.last_number)
    last_number = transaction.number if command.last_number is None else command.last_number
    step.record(PartitionResolved(step.transactional_id, max(step.transaction.number, last_number + 1)))


def _take_up(step: TransactionStep, command: Resolved, last_number: int) -> None:
    """The log gets the last commit before any client is given its epoch or a later one."""
    transaction = step.transaction
    (partition,) = transaction.partitions
    epoch = transaction.producer_epoch + last_number - transaction.number
    step.change(
        number=last_number,
        producer_epoch=epoch,
        last_producer_epoch=epoch - 1,
        previous_producer_id=NO_PRODUCER_ID,
        partitions={partition: NO_SEQUENCE},  # the partition does not say how many rows it has
        results={} if command.rows is None else {partition: command.rows},
    )


def _go_on_without_partition(step: TransactionStep) -> None:
    """How many transactions there were is lost, but there were at most `ONE_PHASE_MAX`: the id skips the numbers and
    epochs of so many. All these epochs belong to the instance of the last record, for an initialisation would be in the
    log. So that instance may abort what it has, and goes on as well (`Transaction.given_up_epochs`)."""
    transaction = step.transaction
    step.change(
        state=TransactionState.EMPTY,
        number=transaction.number + ONE_PHASE_MAX + 2,
        producer_epoch=transaction.producer_epoch + ONE_PHASE_MAX + 1,
        partitions={},
        groups=(),
        start_ms=NO_TIME,
        abort_cause=None,
        results={},
    )
