"""Decisions on staging the batches of a transaction in a partition, their conversion to rows once it is committed, and
the judgement by the log whether it has ended there (`Ending`).

Guards one promise: the batches staged under a (producer id, epoch) have the sequences 0, 1, 2 ... without a gap, each
once, and none of them can be refused when the transaction is applied. So everything that a topic requires of a batch is
checked before it is staged; limits that change later apply to later batches only. Decides on numbers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from bus.errors import ErrorCode, Refused
from bus.model import LogBatch, RecordBatch, Step
from bus.partition_log.appends import AppendRules, check_batch, place_batch
from bus.partition_log.producers import ProducerStates
from bus.partition_log.state import BatchPlaced, PartitionState, apply
from bus.ports import AppliedTransaction, ProducerProgress

NOTHING_STAGED = -1


@dataclass(frozen=True, slots=True)
class StagedState:
    """The staged part of one transaction in a partition: the sequences from 0 to `last_sequence`."""

    last_sequence: int = NOTHING_STAGED
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StageBatch:
    """The batch is the next one: it is to be staged."""


@dataclass(frozen=True, slots=True)
class AlreadyStaged:
    """A repeat of a staged batch."""


@dataclass(frozen=True, slots=True)
class LookForStaged:
    """Memory knows of nothing, and the batch is not the first: an earlier leader has staged what comes before it."""


STAGE, ALREADY_STAGED, LOOK_FOR_STAGED = StageBatch(), AlreadyStaged(), LookForStaged()


def decide_stage(
    state: StagedState | None, batch: RecordBatch, rules: AppendRules, *, now_ms: int, bytes_max: int
) -> StageBatch | AlreadyStaged | LookForStaged | Refused:
    """Decide on a batch of a transaction. `state` None: the staged part is unknown. At most `bytes_max` of one
    transaction are staged (transaction.staged.max.bytes); more gets TRANSACTION_ABORTABLE."""
    stamp = batch.producer
    assert stamp is not None, "a batch of a transaction has a producer"
    if state is None:
        if stamp.base_sequence > 0:
            return LOOK_FOR_STAGED
        state = StagedState()
    following = state.last_sequence + 1
    if stamp.base_sequence + batch.record_count <= following:
        return ALREADY_STAGED
    if stamp.base_sequence != following:
        return Refused(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"transaction of producer {stamp.producer_id}, epoch {stamp.producer_epoch}: expected sequence "
            f"{following}, found {stamp.base_sequence}",
        )
    if state.size_bytes + batch.size_bytes > bytes_max:
        return Refused(
            ErrorCode.TRANSACTION_ABORTABLE,
            f"expected at most {bytes_max} bytes of a transaction in one partition (transaction.staged.max.bytes), "
            f"found {state.size_bytes + batch.size_bytes}; abort it and write smaller ones",
        )
    return check_batch(batch, rules, now_ms=now_ms) or STAGE


def place_transaction(
    state: PartitionState, batches: Sequence[RecordBatch], rules: AppendRules, *, now_ms: int
) -> Step[BatchPlaced, list[LogBatch]]:
    """Give all rows of a transaction the next offsets, one after another. They were checked when they were staged."""
    placed: list[LogBatch] = []
    events: list[BatchPlaced] = []
    for batch in batches:
        log_batch = place_batch(state, batch, rules, now_ms)
        event = BatchPlaced(log_batch.base_offset, log_batch.next_offset)
        state = apply(state, event)
        placed.append(log_batch)
        events.append(event)
    return Step(placed, events)


def has_older_records_only(producers: ProducerStates, batch: LogBatch) -> bool:
    """True if everything that the partition knows of the batch's producer lies before this transaction. It does, unless
    a client wrote as this producer outside of a transaction. The rows are appended in any case, because the commit is
    decided; memory then keeps the higher epoch."""
    assert batch.producer is not None, "a batch of a transaction has a producer"
    known = producers.get(batch.producer.producer_id)
    epoch, sequence = batch.producer.producer_epoch, batch.producer.base_sequence
    if known is None or known.producer_epoch < epoch:
        return True
    return known.producer_epoch == epoch and known.last_sequence == sequence - 1


def progress_of(batch: LogBatch) -> ProducerProgress:
    """How far the batch's producer has come with it."""
    stamp = batch.producer
    assert stamp is not None, "a batch of a transaction has a producer"
    last_sequence = stamp.base_sequence + batch.record_count - 1
    return ProducerProgress(stamp.producer_id, stamp.producer_epoch, last_sequence)


class Ending(Enum):
    """The end of a transaction by the log of one partition, which tells whether its rows are there or may still come.

    The mark of a transactional id is the last of `applied_version` and `aborted_version` that the log has of it.
    Numbers rise, so as a rule a mark above that of a transaction says that it has ended. But a mark may be of an
    earlier life of the id, whose numbers began at a clock that was ahead. Guards one promise: a transaction counts as
    applied only if rows of its producer, with its epoch or a later one, have come into this log."""

    OPEN = "open"  # nothing in the log says that it has ended
    APPLIED = "applied"  # its rows are in the log
    GIVEN_UP = "given up"  # its rows are not in the log, and never will be
    LATER = "later"  # later transactions of its producer are in the log
    OVERTAKEN = "overtaken"  # the mark is not of its producer: its rows are not in the log, and must not come


def judge(applied: AppliedTransaction, mark: int, has_written: bool | None) -> Ending:
    """Judge the end of a transaction by its mark. `has_written`: the answer of `TableTransactions.has_written`. A
    forgotten producer counts in favour of the transaction: it was idle for long, and an id that has just begun again
    has a new producer id."""
    if mark < applied.aborted_version:
        return Ending.OPEN
    if mark == applied.aborted_version:
        return Ending.GIVEN_UP
    if has_written is False:
        return Ending.OVERTAKEN
    return Ending.APPLIED if mark == applied.applied_version else Ending.LATER


def number_of(mark: int) -> int:
    """Return the number of the transaction that the mark is of."""
    return mark // 2
