"""Loading of transactional ids from the records of their partition and from the participants, for a new coordinator.

Guards three promises. A new coordinator continues where its predecessor stopped: a decision is carried out, an open
transaction keeps its time-out, and clients repeat the calls that waited. An unreadable record costs only its own id and
no more than is safe: all calls of that id are refused, and nothing that is staged for it is deleted, until an operator
gives it up; a guess might tear a decided transaction apart. And since a partition takes part before the log says so, no
transaction is committed without a partition that the predecessor had admitted (`may_lack_partitions`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bus.client_texts import shown
from bus.errors import ErrorCode, Refused
from bus.machine import Loaded, SetTimer
from bus.ports import KeyedRow
from bus.transactions.changes import PartitionResolved, Resolve, TransactionStep, apply, find_anchor
from bus.transactions.records import (
    LoggedRecord,
    TransactionExpired,
    TransactionLogged,
    approximate_bytes,
    decode_key,
    decode_record,
    encode_record,
)
from bus.transactions.requests import Noted, Resolved, TimerKind, TransactionCommand, TransactionTimer
from bus.transactions.state import (
    ABORT_REASONS,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIME,
    ONE_PHASE_MAX,
    AbortCause,
    Transaction,
    TransactionState,
)

# After a load, ids are checked for their expiry only after this time: not all of them at once with the load.
_EXPIRY_AFTER_LOAD_MS = 3_600_000
_FENCED_TIMEOUT_MS = 60_000  # for an id whose record cannot be read; every initialisation brings its own time-out
_FAULT_LENGTH_MAX = 500  # the length of a fault in a message


class TransactionCodec:
    """The records of transactional ids as rows of `__transaction_state` (`bus.machine.RecordCodec`)."""

    encode = staticmethod(encode_record)
    decode = staticmethod(decode_record)
    approximate_bytes = staticmethod(approximate_bytes)

    def load(self, rows: Iterable[KeyedRow], *, now_ms: int) -> Loaded[Transaction]:
        states: dict[str, Transaction] = {}
        faults: list[str] = []
        for row in rows:
            try:
                record = decode_record(row)
            except ValueError as error:
                faults.append(shown(_pass_over(states, row, str(error), now_ms), _FAULT_LENGTH_MAX))
                continue
            loaded = apply(None, [record])
            states.pop(record.transactional_id, None)
            if loaded is not None:
                is_unresolved = isinstance(record, TransactionLogged) and find_anchor(record) is not None
                states[record.transactional_id] = replace(loaded, may_lack_partitions=True, is_unresolved=is_unresolved)
        return Loaded(states, tuple(faults))

    def fault(self, record: LoggedRecord, reason: str, *, is_too_large: bool) -> Refused:
        code = ErrorCode.TRANSACTION_ABORTABLE if is_too_large else ErrorCode.INVALID_REQUEST
        return Refused(code, f"{record.transactional_id}: {shown(reason, _FAULT_LENGTH_MAX)}")

    def log_line(self, record: LoggedRecord) -> str | None:
        """A line for each transaction that its client did not end, and for each id that expires."""
        if isinstance(record, TransactionExpired):
            return f"transactional id {record.transactional_id} has expired"
        cause = record.abort_cause
        if record.state is not TransactionState.PREPARE_ABORT or cause in (None, AbortCause.CLIENT):
            return None
        assert cause is not None
        return f"transaction {record.number} of {record.transactional_id} is aborted: {ABORT_REASONS[cause]}"


def resume_timers(transaction: Transaction) -> tuple[SetTimer[TransactionCommand], ...]:
    """Set the timers of an id that was just loaded: an open transaction continues at once, and the id expires later."""
    name = transaction.transactional_id
    expiry: SetTimer[TransactionCommand] = SetTimer(TransactionTimer(TimerKind.EXPIRE, name), _EXPIRY_AFTER_LOAD_MS)
    if not transaction.state.is_open:
        return (expiry,)
    return SetTimer(TransactionTimer(TimerKind.DRIVE, name), 0), expiry


def _pass_over(states: dict[str, Transaction], row: KeyedRow, error: str, now_ms: int) -> str:
    """The fault of a record that cannot be read; its id stays known."""
    try:
        name = decode_key(row.key)
    except ValueError:
        return f"a record is passed over: {error}"
    producer_id = (row.value or {}).get("producer_id")
    states[name] = Transaction(
        name,
        0,
        producer_id if type(producer_id) is int and producer_id >= 0 else NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        _FENCED_TIMEOUT_MS,
        TransactionState.EMPTY,
        max(0, now_ms),
        damage=error,
    )
    return (
        f"transactional id {name!r} cannot be read, its calls are refused, a transaction that it may have had stays as "
        f"it is: {error}; `bus transactions fence` gives it up"
    )


def refuse_unresolved(step: TransactionStep) -> Refused:
    """Answer a call until the last committed transaction of the id is known, and ask for it.

    A commit of one partition may have no record yet (`find_lone_partition`): its version decides, and its `txn` action
    proves it. So if the last record of an id is a commit of one partition, that partition is asked before anything is
    decided about the id. It answers with the last transaction that it has, and refuses the next one forever: a commit
    that the earlier coordinator requested is either in the log by then, or never will be. Guards two promises: what was
    committed stays committed, and no identity and no number is given twice. A loaded decision has to be carried out
    first: what was committed after it is unknown, so no identity can be checked."""
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
    """Continue without the partition. The number of transactions is lost, but there were at most `ONE_PHASE_MAX`: the
    id skips as many numbers and epochs. All these epochs belong to the instance of the last record, because an
    initialisation would be in the log. So that instance may abort what it has, and continues as well
    (`Transaction.given_up_epochs`)."""
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
