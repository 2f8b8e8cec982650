from __future__ import annotations

import pyarrow as pa
import pytest

from bus.client.connection.fetch_requests import FetchedBatch
from bus.client.consumer.assigned_partition import AssignedPartition
from bus.client.consumer.records import POLL_SCHEMA, PollTables, records_of
from bus.errors import BusError, ErrorCode
from bus.model import TimestampType, TopicPartition
from bus.records.arrow_batches import encode_arrow
from bus.records.log_schema import HEADERS_TYPE, LOG_COLUMNS

HERE = TopicPartition("t", 2)


def fetched(
    base_offset: int, count: int, *, offsets: list[int] | None = None, next_offset: int | None = None
) -> FetchedBatch:
    columns = {"value": pa.array([b"%d" % number for number in range(base_offset, base_offset + count)])}
    if offsets is not None:
        columns = {"offset": pa.array(offsets), "value": pa.array([b"%d" % number for number in offsets])}
    return FetchedBatch(
        base_offset=base_offset,
        next_offset=next_offset or base_offset + count,
        record_count=count,
        leader_epoch=4,
        timestamp_type=1,
        timestamp_ms=1_700_000_000_123,
        producer_id=None,
        producer_epoch=None,
        base_sequence=None,
        payload=encode_arrow(pa.RecordBatch.from_pydict(columns)),
    )


def assigned(position: int, *batches: FetchedBatch) -> AssignedPartition:
    partition = AssignedPartition(HERE)
    partition.seek(position)
    partition.take_in(batches)
    return partition


def take(partition: AssignedPartition, max_records: int) -> list[bytes]:
    rows = partition.peek(max_records)
    if rows is None:
        return []
    partition.advance_to(rows.num_rows, rows.column("offset")[-1].as_py() + 1)
    values: list[bytes] = rows.column("value").to_pylist()
    return values


def test_rows_below_the_position_are_skipped() -> None:
    partition = assigned(13, fetched(10, 5))
    assert take(partition, 100) == [b"13", b"14"]
    assert partition.position == 15


def test_position_follows_what_was_taken_and_the_buffer_is_freed() -> None:
    partition = assigned(0, fetched(0, 5), fetched(5, 2))
    assert take(partition, 3) == [b"0", b"1", b"2"]
    assert partition.position == 3
    assert take(partition, 3) == [b"3", b"4"]
    assert take(partition, 3) == [b"5", b"6"]
    assert take(partition, 3) == []
    assert (partition.position, partition.fetch_offset, partition.buffered_bytes) == (7, 7, 0)


def test_gaps_after_compaction_are_jumped_over() -> None:
    partition = assigned(12, fetched(10, 3, offsets=[10, 14, 17], next_offset=20))
    assert take(partition, 1) == [b"14"]
    assert partition.position == 15
    assert take(partition, 5) == [b"17"]
    assert partition.position == 20


def test_batch_with_nothing_at_or_above_the_position_moves_it_on() -> None:
    partition = assigned(18, fetched(10, 3, offsets=[10, 14, 17], next_offset=20), fetched(20, 1))
    assert take(partition, 5) == [b"20"]


def test_seek_forgets_what_was_fetched() -> None:
    partition = assigned(0, fetched(0, 5))
    take(partition, 2)
    partition.seek(1)
    assert partition.peek(5) is None
    assert (partition.position, partition.fetch_offset, partition.buffered_bytes) == (1, 1, 0)


def test_corrupt_batch_raises_and_is_fetched_again() -> None:
    whole = fetched(5, 3)
    partition = assigned(0, fetched(0, 5), whole._replace(payload=whole.payload[:-40]))
    assert len(take(partition, 100)) == 5
    with pytest.raises(BusError, match="t-2 at offset 5") as caught:
        partition.peek(100)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert (partition.position, partition.fetch_offset) == (5, 5)
    partition.take_in([fetched(5, 3)])
    assert take(partition, 100) == [b"5", b"6", b"7"]


def test_wrong_row_count_is_corrupt() -> None:
    lying = fetched(0, 3)._replace(record_count=4)
    with pytest.raises(BusError, match="expected 4 rows, found 3"):
        assigned(0, lying).peek(10)


def test_records_carry_all_that_the_envelope_says() -> None:
    columns = pa.RecordBatch.from_arrays(
        [
            pa.array([b"k", None]),
            pa.array([None, b"v"]),
            pa.array([[{"key": "h", "value": None}], None], HEADERS_TYPE),
        ],
        names=["key", "value", "headers"],
    )
    rows = assigned(7, fetched(7, 2)._replace(payload=encode_arrow(columns))).peek(10)
    first, second = records_of(HERE, rows)
    assert first == ("t", 2, 7, 1_700_000_000_123, TimestampType.LOG_APPEND_TIME, b"k", None, [("h", None)], 4)
    assert (second.offset, second.key, second.value, second.headers) == (8, None, b"v", ())


def test_typed_values_come_as_dictionaries_and_keep_their_type_in_tables() -> None:
    values = pa.array([{"id": 1}, {"id": 2}])
    payload = encode_arrow(pa.RecordBatch.from_arrays([values], names=["value"]))
    rows = assigned(0, fetched(0, 2)._replace(payload=payload)).peek(10)
    assert [record.value for record in records_of(HERE, rows)] == [{"id": 1}, {"id": 2}]
    assert PollTables().table_of([(HERE, rows)]).schema.field("value").type == values.type


def test_tables_have_topic_partition_and_the_columns_of_the_log() -> None:
    rows = assigned(0, fetched(0, 3)).peek(10)
    more = assigned(0, fetched(0, 2_000)).peek(5_000)
    table = PollTables().table_of([(HERE, rows), (HERE, more), (TopicPartition("u", 0), rows)])
    assert tuple(table.schema.names) == ("topic", "partition", *LOG_COLUMNS)
    assert table.schema == POLL_SCHEMA
    assert table.num_rows == 2_006
    assert table.column("topic").unique().to_pylist() == ["t", "u"]
    assert table.column("partition").unique().to_pylist() == [2, 0]
    assert PollTables().table_of([]).schema == POLL_SCHEMA
