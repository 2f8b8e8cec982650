"""Records of idempotent producers in the table: written, found again, told from those that are missing, forgotten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from bus.arrow_batches import check_records, sequences_of
from bus.model import SEQUENCE_MODULUS, LogBatch, ProducerStamp, RecordBatch, TimestampType, TopicPartition
from bus.ports import Committed, ProducerMatch, ProducerProgress
from bus.storage_delta.root import DeltaStorage, folder_of, open_storage
from bus.storage_delta.table import DeltaPartitionTable
from tests.support.stores import NOW_MS

PARTITION = TopicPartition("orders", 0)
Row = tuple[int, int, int]  # producer id, epoch, sequence


def records(stamp: ProducerStamp | None, count: int, *, timestamps_us: Sequence[int] | None = None) -> RecordBatch:
    """A producer's batch; each value tells whose it is."""
    base = 0 if stamp is None else stamp.base_sequence
    columns = {"value": pa.array([b"%d" % ((base + at) % SEQUENCE_MODULUS) for at in range(count)], pa.binary())}
    if timestamps_us is not None:
        columns["timestamp"] = pa.array(timestamps_us, pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = check_records(pa.RecordBatch.from_pydict(columns), default_timestamp_ms=NOW_MS)
    return replace(batch, producer=stamp)


def placed(batch: RecordBatch, base_offset: int, *, leader_epoch: int = 0) -> LogBatch:
    return LogBatch(
        base_offset=base_offset,
        next_offset=base_offset + batch.record_count,
        record_count=batch.record_count,
        size_bytes=batch.size_bytes,
        leader_epoch=leader_epoch,
        timestamp_type=TimestampType.CREATE_TIME,
        timestamp_ms=None if batch.has_timestamps else batch.timestamp_min_ms,
        timestamp_max_ms=batch.timestamp_max_ms,
        columns=batch.columns,
        producer=batch.producer,
    )


def append(table: DeltaPartitionTable, *batches: RecordBatch, now_ms: int = NOW_MS) -> Committed:
    """One commit, with the progress that it makes."""
    offset = table.state.high_watermark
    log_batches, producers = [], {}
    for batch in batches:
        log_batches.append(placed(batch, offset))
        offset += batch.record_count
        if (stamp := batch.producer) is not None:
            last = int(sequences_of(batch)[-1])
            producers[stamp.producer_id] = ProducerProgress(stamp.producer_id, stamp.producer_epoch, last)
    outcome = table.append(log_batches, leader_epoch=0, now_ms=now_ms, producers=list(producers.values()))
    assert isinstance(outcome, Committed)
    return outcome


def stamped(producer_id: int, base_sequence: int, count: int, *, epoch: int = 0) -> RecordBatch:
    return records(ProducerStamp(producer_id, epoch, base_sequence), count)


@pytest.fixture
def storage(tmp_path: Path) -> DeltaStorage:
    return open_storage(str(tmp_path), exclusive=False)


@pytest.fixture
def table(storage: DeltaStorage) -> DeltaPartitionTable:
    return storage.create_partition(PARTITION, topic_id="id")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / folder_of(PARTITION))


def reopen(table: DeltaPartitionTable, storage: DeltaStorage, url: str) -> DeltaPartitionTable:
    return storage.open_partition(PARTITION, topic_id="id")


def reopen_from_checkpoint(table: DeltaPartitionTable, storage: DeltaStorage, url: str) -> DeltaPartitionTable:
    table.write_checkpoint()
    for version in Path(url, "_delta_log").glob("*[0-9].json"):
        version.unlink()
    return storage.open_partition(PARTITION, topic_id="id")


def optimize(table: DeltaPartitionTable, storage: DeltaStorage, url: str) -> DeltaPartitionTable:
    deltalake.DeltaTable(url).optimize.compact()
    return storage.open_partition(PARTITION, topic_id="id")


def go_on(table: DeltaPartitionTable, storage: DeltaStorage, url: str) -> DeltaPartitionTable:
    return table


AFTER: list[Callable[[DeltaPartitionTable, DeltaStorage, str], DeltaPartitionTable]] = [
    go_on,
    reopen,
    reopen_from_checkpoint,
    optimize,
]


def check_match(match: ProducerMatch, batch: RecordBatch, offsets: list[int]) -> None:
    """`offsets` are found, and what is missing are the other records, whole and in their order."""
    assert list(match.offsets) == offsets
    left = [at for at, offset in enumerate(offsets) if offset < 0]
    if not left:
        assert match.missing is None
        return
    assert match.missing is not None
    assert match.missing.record_count == len(left)
    assert sequences_of(match.missing).tolist() == sequences_of(batch)[left].tolist()
    assert match.missing.columns.column("value").to_pylist() == [
        batch.columns.column("value")[at].as_py() for at in left
    ]


# ------------------------------------------------------------------ what is there and what is not


@pytest.mark.parametrize("after", AFTER)
def test_a_batch_sent_again_is_found_where_it_is(
    table: DeltaPartitionTable, storage: DeltaStorage, url: str, after: Callable[..., DeltaPartitionTable]
) -> None:
    append(table, records(None, 3))
    append(table, stamped(7, 0, 5), stamped(8, 100, 4))
    append(table, stamped(8, 104, 2), stamped(7, 5, 1), records(None, 2), stamped(7, 6, 2))
    append(table, stamped(7, 0, 3, epoch=1))
    table = after(table, storage, url)
    for batch, offsets in [
        (stamped(7, 0, 5), [3, 4, 5, 6, 7]),
        (stamped(8, 100, 6), [8, 9, 10, 11, 12, 13]),
        (stamped(7, 3, 5), [6, 7, 14, 17, 18]),
        (stamped(7, 0, 3, epoch=1), [19, 20, 21]),
        (stamped(7, 6, 4), [17, 18, -1, -1]),
        (stamped(7, 2, 3, epoch=1), [21, -1, -1]),
        (stamped(7, 8, 2), [-1, -1]),
        (stamped(7, 0, 2, epoch=2), [-1, -1]),
        (stamped(9, 0, 2), [-1, -1]),
        (stamped(8, 98, 4), [-1, -1, 8, 9]),
    ]:
        check_match(table.match_producer(batch), batch, offsets)


def test_a_batch_of_which_all_is_missing_is_handed_back_as_it_is(table: DeltaPartitionTable) -> None:
    batch = stamped(7, 0, 5)
    assert table.match_producer(batch).missing is batch


@pytest.mark.parametrize("after", AFTER)
def test_sequences_that_wrap_are_found(
    table: DeltaPartitionTable, storage: DeltaStorage, url: str, after: Callable[..., DeltaPartitionTable]
) -> None:
    last = SEQUENCE_MODULUS - 1
    append(table, stamped(7, last - 4, 3))
    append(table, stamped(7, last - 1, 4), stamped(8, 0, 10))
    table = after(table, storage, url)
    for batch, offsets in [
        (stamped(7, last - 1, 4), [3, 4, 5, 6]),
        (stamped(7, last, 2), [4, 5]),
        (stamped(7, 1, 3), [6, -1, -1]),
        (stamped(7, last - 6, 10), [-1, -1, 0, 1, 2, 3, 4, 5, 6, -1]),
    ]:
        check_match(table.match_producer(batch), batch, offsets)
    assert table.find_last_sequence(7) == ProducerProgress(7, 0, 1)


def test_what_is_missing_says_of_itself_what_is_true_and_completes_the_merge(
    table: DeltaPartitionTable, storage: DeltaStorage
) -> None:
    append(table, stamped(7, 2, 2))
    sent = replace(
        records(None, 6, timestamps_us=[6000, 9000, 9000, 9000, 2000, 7000]), producer=ProducerStamp(7, 0, 0)
    )
    missing = table.match_producer(sent).missing
    assert missing is not None
    assert missing.columns.column("sequence").type == pa.int32()
    assert missing.columns.column("sequence").to_pylist() == [0, 1, 4, 5]
    assert (missing.timestamp_min_ms, missing.timestamp_max_ms) == (2, 9)
    assert missing.size_bytes == missing.columns.nbytes < sent.size_bytes + 16
    append(table, missing, stamped(9, 0, 1))
    for opened in (table, storage.open_partition(PARTITION, topic_id="id")):
        assert list(opened.match_producer(sent).offsets) == [2, 3, 0, 1, 4, 5]
        assert opened.match_producer(sent).missing is None


def test_a_batch_that_was_completed_once_may_be_matched_again(table: DeltaPartitionTable) -> None:
    append(table, stamped(7, 2, 2))
    missing = table.match_producer(stamped(7, 0, 6)).missing
    assert missing is not None
    append(table, stamped(7, 4, 1))
    check_match(table.match_producer(missing), missing, [-1, -1, 2, -1])
