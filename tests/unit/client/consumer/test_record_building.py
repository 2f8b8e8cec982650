from __future__ import annotations

import pyarrow as pa
import pytest

from bus.client.consumer.records import Deserializers, RecordBuilder, RecordDeserializationError
from bus.model import TopicPartition
from bus.records.log_schema import HEADERS_TYPE, LOG_SCHEMA

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)


def null_header() -> pa.Array:
    entry = pa.StructArray.from_arrays(
        [pa.array(["k"]), pa.array([b"v"])], fields=list(HEADERS_TYPE.value_type), mask=pa.array([True])
    )
    return pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), entry, type=HEADERS_TYPE)


def rows(first: int, count: int, *, bad: int = -1, timestamp: int | None = 5_000) -> pa.RecordBatch:
    """Record `bad` has a header that is null."""
    offsets = list(range(first, first + count))
    none = pa.array([None], HEADERS_TYPE)
    columns = {
        "offset": pa.array(offsets),
        "timestamp": pa.array([timestamp] * count, LOG_SCHEMA.field("timestamp").type),
        "timestamp_type": pa.array([0] * count, LOG_SCHEMA.field("timestamp_type").type),
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array([b"%d" % offset for offset in offsets]),
        "headers": pa.concat_arrays([null_header() if offset == bad else none for offset in offsets]),
        "leader_epoch": pa.array([0] * count, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)


def test_bad_record_leaves_those_before_it_and_other_partitions() -> None:
    builder = RecordBuilder(Deserializers(None, None))
    records, rejected = builder.build([(HERE, rows(0, 5, bad=2)), (THERE, rows(7, 2)), (HERE, rows(5, 3))])
    assert [(record.partition, record.offset) for record in records] == [(0, 0), (0, 1), (1, 7), (1, 8)]
    assert [(error.partition, error.offset, error.field) for error in rejected] == [(HERE, 2, "headers")]
    assert (rejected[0].record.value, rejected[0].record.timestamp_ms) == (b"2", 5)


def test_first_of_a_bad_record_and_a_rejected_value_counts() -> None:
    builder = RecordBuilder(Deserializers(None, lambda data: 1 / (int(data) - 1)))
    _, rejected = builder.build([(HERE, rows(0, 5, bad=2))])
    assert [(error.offset, error.field) for error in rejected] == [(1, "value")]


def test_any_field_may_be_what_cannot_be_read() -> None:
    builder = RecordBuilder(Deserializers(None, None))
    records, rejected = builder.build([(HERE, rows(4, 2, timestamp=None))])
    assert records == []
    assert [(error.offset, error.field) for error in rejected] == [(4, "timestamp")]


def test_one_by_one_raises_in_the_place_of_the_bad_record() -> None:
    for deserializers in (Deserializers(None, None), Deserializers(None, bytes.decode)):
        given = RecordBuilder(deserializers).one_by_one(HERE, rows(0, 3, bad=1))
        assert next(given).offset == 0
        with pytest.raises(RecordDeserializationError, match="t-0 at offset 1"):
            next(given)
