"""Transactions as a leader has them: batches that it stages, and rows that it writes with their proof."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from bus.model import LogBatch, ProducerStamp, RecordBatch, TimestampType
from bus.ports import AppliedTransaction, CommitOutcome, Committed, PartitionTable, ProducerProgress, StagingKey
from bus.records.arrow_batches import check_records
from tests.support.stores import NOW_MS, log_batch

PRODUCER = 41
KEY = StagingKey(coordinator_partition=7, producer_id=PRODUCER, producer_epoch=3)


def staged_batch(first: int, *values: bytes, key: StagingKey = KEY, now_ms: int = NOW_MS) -> RecordBatch:
    """Records without timestamps, as a producer sent them and the door checked them at `now_ms`."""
    columns = pa.record_batch({"value": pa.array(values, pa.binary())})
    checked = check_records(columns, default_timestamp_ms=now_ms)
    return replace(checked, producer=ProducerStamp(key.producer_id, key.producer_epoch, first))


def apply_transaction(
    table: PartitionTable,
    transactional_id: str,
    number: int,
    *values: bytes,
    epoch: int | None = None,
    leader_epoch: int = 0,
    now_ms: int = NOW_MS,
) -> CommitOutcome:
    """All rows of a transaction of PRODUCER. Its epoch is its number unless it is given."""
    epoch = number if epoch is None else epoch
    values = values or (b"a", b"b")
    batch = log_batch(table.state.high_watermark, values, producer=(PRODUCER, epoch, 0))
    return table.append(
        [batch],
        leader_epoch=leader_epoch,
        now_ms=now_ms,
        producers=[ProducerProgress(PRODUCER, epoch, len(values) - 1)],
        transactions=[AppliedTransaction(transactional_id, number, PRODUCER, epoch)],
    )


def apply_staged(
    table: PartitionTable, key: StagingKey, proof: AppliedTransaction, last_sequence: int
) -> CommitOutcome:
    """Append the staged part of the transaction as its rows."""
    batches, offset = list[LogBatch](), table.state.high_watermark
    for batch in table.transactions.staged.read(key, last_sequence):
        batches.append(
            LogBatch(
                base_offset=offset,
                next_offset=offset + batch.record_count,
                record_count=batch.record_count,
                size_bytes=batch.size_bytes,
                leader_epoch=0,
                timestamp_type=TimestampType.CREATE_TIME,
                timestamp_ms=None if batch.has_timestamps else batch.timestamp_min_ms,
                timestamp_max_ms=batch.timestamp_max_ms,
                columns=batch.columns,
                producer=batch.producer,
            )
        )
        offset += batch.record_count
    progress = ProducerProgress(key.producer_id, key.producer_epoch, last_sequence)
    return table.append(batches, leader_epoch=0, now_ms=NOW_MS, producers=[progress], transactions=[proof])


def abort_transaction(table: PartitionTable, transactional_id: str, number: int, *, now_ms: int = NOW_MS) -> Committed:
    """A version without rows that says so."""
    transaction = AppliedTransaction(transactional_id, number, PRODUCER, number)
    outcome = table.transactions.abort(transaction, leader_epoch=0, now_ms=now_ms)
    assert isinstance(outcome, Committed), outcome
    return outcome
