"""Assignment of producer ids and epochs to the instances of a producer.

Guards two promises: no two instances, and no two transactions, ever have the same id and epoch; and once a new instance
has its epoch, no transaction of an older one commits. So what is open is ended before, and each end has an epoch of its
own (KIP-890). An instance that names the identity it has gets the next one, and the same again if it repeats the call
(KIP-360).
"""

from __future__ import annotations

from bus.errors import ErrorCode, Refused
from bus.transactions import requests as rq
from bus.transactions.changes import TransactionStep
from bus.transactions.endings import finish, prepare_abort
from bus.transactions.records import TransactionLogged
from bus.transactions.state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    PRODUCER_EPOCH_MAX,
    AbortCause,
    AwaitingInit,
    ProducerIdentity,
    Transaction,
    TransactionState,
    first_number,
)

# An answer may wait for the end of a transaction, which takes an epoch itself.
_EPOCHS_AHEAD = 2


def needs_producer_id(transaction: Transaction | None, command: rq.InitProducerId | rq.FenceProducer) -> bool:
    """True if the command should bring a new producer id. An id that it does not use is lost, which does no harm."""
    if transaction is None or transaction.damage is not None:
        return transaction is not None or isinstance(command, rq.InitProducerId)
    return transaction.producer_epoch > PRODUCER_EPOCH_MAX - _EPOCHS_AHEAD


def decide_init(step: TransactionStep, command: rq.InitProducerId, *, request_id: int) -> None:
    expected = None
    if command.producer_id != NO_PRODUCER_ID:
        expected = ProducerIdentity(command.producer_id, command.producer_epoch)
    if step.state is None:
        _begin(step, command, command.timeout_ms, request_id=request_id)
        return
    call = AwaitingInit(request_id, command.timeout_ms, expected, command.new_producer_id)
    _initialize(step, call, AbortCause.NEW_INSTANCE if expected is None else AbortCause.CLIENT)


def decide_fence(step: TransactionStep, command: rq.FenceProducer, *, request_id: int) -> None:
    """Act as if an instance were initialised that never comes. It waits for a decision that is being carried out, but
    not for a partition that refuses that for ever."""
    if step.transaction.state is TransactionState.PREPARE_COMMIT:
        finish(step, may_give_up=True)
    _initialize(step, AwaitingInit(request_id, None, None, command.new_producer_id), AbortCause.FENCE)


def replace_damaged(step: TransactionStep, command: rq.FenceProducer, *, request_id: int) -> None:
    """Replace a damaged id: the operator gives up what the unreadable record may have said."""
    _begin(step, command, step.transaction.timeout_ms, request_id=request_id)


def give_epochs(step: TransactionStep) -> None:
    """To the calls that have waited for the end of a transaction, one after another: the last one has the id."""
    for call in step.take_inits():
        _initialize(step, call, AbortCause.NEW_INSTANCE)


def _begin(
    step: TransactionStep, command: rq.InitProducerId | rq.FenceProducer, timeout_ms: int, *, request_id: int
) -> None:
    """Begin with an id that is unknown or has expired: the caller's identity, whatever it was, belongs to nothing that
    still exists.

    A partition keeps the number of its last transaction, also when the id expires, so numbers continue above all that
    were given before: from the new producer id, which no one had and which is larger than earlier ones. While a broker
    of an older version may coordinate next, numbers begin where that one would begin: at the time. A partition with a
    higher number reports it in its vote."""
    new_producer_id = command.new_producer_id
    if new_producer_id is None:
        step.reply(request_id, _no_producer_id(step.transactional_id))
        return
    now_ms = max(0, step.now_ms)
    number = now_ms if command.begins_at_clock else first_number(new_producer_id)
    step.record(
        TransactionLogged(step.transactional_id, number, new_producer_id, 0, timeout_ms, TransactionState.EMPTY, now_ms)
    )
    step.set_timer(rq.TimerKind.EXPIRE, step.rules.transactional_id_expiration_ms)
    step.reply(request_id, rq.ProducerInitialized(new_producer_id, 0))


def _initialize(step: TransactionStep, call: AwaitingInit, cause: AbortCause) -> None:
    transaction = step.transaction
    is_repeated = call.expected is not None and (
        call.expected == transaction.last_identity or transaction.has_given_up(call.expected)
    )
    is_current = call.expected in (None, transaction.identity)
    if not is_current and not is_repeated:
        step.reply(call.request_id, _fenced(transaction, call.expected))
    elif transaction.state.is_decided:
        step.await_init(call)
    elif is_repeated:
        step.reply(call.request_id, rq.ProducerInitialized(transaction.producer_id, transaction.producer_epoch))
    elif transaction.state is TransactionState.ONGOING:
        step.await_init(call)
        if not transaction.may_be_committed:
            prepare_abort(step, cause)
    else:
        _raise_epoch(step, call)


def _raise_epoch(step: TransactionStep, call: AwaitingInit) -> None:
    transaction = step.transaction
    is_same = call.expected is not None
    producer_id, epoch = transaction.producer_id, transaction.producer_epoch + 1
    if transaction.producer_epoch >= PRODUCER_EPOCH_MAX:
        if call.new_producer_id is None:
            step.reply(call.request_id, _no_producer_id(step.transactional_id))
            return
        producer_id, epoch = call.new_producer_id, 0
    step.change(
        state=TransactionState.EMPTY,
        number=transaction.last_number,
        producer_id=producer_id,
        producer_epoch=epoch,
        last_producer_epoch=transaction.producer_epoch if is_same else NO_PRODUCER_EPOCH,
        previous_producer_id=transaction.producer_id if is_same and epoch == 0 else NO_PRODUCER_ID,
        timeout_ms=transaction.timeout_ms if call.timeout_ms is None else call.timeout_ms,
        partitions={},
        groups=(),
        start_ms=NO_TIME,
        abort_cause=None,
        results={},
    )
    step.reply(call.request_id, rq.ProducerInitialized(producer_id, epoch))


def _fenced(transaction: Transaction, found: ProducerIdentity | None) -> Refused:
    return Refused(
        ErrorCode.PRODUCER_FENCED,
        f"{transaction.transactional_id}: expected {transaction.identity}, found {found}: another instance was "
        "initialised, or this one has gone on",
    )


def _no_producer_id(transactional_id: str) -> Refused:
    return Refused(ErrorCode.CONCURRENT_TRANSACTIONS, f"{transactional_id}: a new producer id is needed; retry")
