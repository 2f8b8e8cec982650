"""Records of compacted and of typed logs on their way to a reader: offsets with holes, values as structs."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pytest

from bus.client.connection.fetch_requests import decode_batch
from bus.client.consumer.records import open_batch, records_of
from bus.grpc_api.server.records.fetch_encoding import DEFAULT_FETCH_COLUMNS, encode_batches, encode_records
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import LogBatch, TimestampType, TopicPartition

ORDERS = TopicPartition("orders", 0)
PLAIN = pa.array([b"v", None, b"", b"w"], pa.binary())
TYPED = pa.array(
    [{"n": 1, "raw": b"\x00"}, None, {"n": None, "raw": None}, {"n": 2, "raw": b""}],
    pa.struct([pa.field("n", pa.int64()), pa.field("raw", pa.binary())]),
)
TEXTS = [b'{"n":1,"raw":"AA=="}', None, b'{"n":null,"raw":null}', b'{"n":2,"raw":""}']


def holed(offsets: Sequence[int], values: pa.Array, *, base_offset: int, next_offset: int) -> LogBatch:
    columns = pa.RecordBatch.from_arrays(
        [pa.array(offsets, pa.int64()), values.slice(0, len(offsets))], names=["offset", "value"]
    )
    return LogBatch(
        base_offset=base_offset,
        next_offset=next_offset,
        record_count=len(offsets),
        size_bytes=columns.nbytes,
        leader_epoch=2,
        timestamp_type=TimestampType.CREATE_TIME,
        timestamp_ms=5_000,
        timestamp_max_ms=5_000,
        columns=columns,
    )


def fetched(batches: Sequence[LogBatch], columns: Sequence[str], position: int = 0) -> list[pa.RecordBatch]:
    messages = [pb.LogBatch.FromString(b"".join(pieces)) for pieces in encode_batches(batches, columns)]
    return [open_batch(ORDERS, decode_batch(message), position) for message in messages]


@pytest.mark.parametrize("columns", [DEFAULT_FETCH_COLUMNS, ("timestamp", "value")])
@pytest.mark.parametrize("values", [PLAIN, TYPED])
@pytest.mark.parametrize("count", [1, 2])
def test_offsets_with_holes_are_told_whatever_columns_were_asked_for(
    values: pa.Array, count: int, columns: Sequence[str]
) -> None:
    parts = [
        holed([3, 5, 6, 9], values, base_offset=2, next_offset=11),
        holed([12, 19], values, base_offset=11, next_offset=20),
    ][:count]
    (batch,) = fetched(parts, columns)
    assert batch.column("offset").to_pylist() == [3, 5, 6, 9, 12, 19][: 4 if count == 1 else 6]
    assert batch.column("value").to_pylist()[:4] == values.to_pylist()
    assert batch.schema.field("value").type == values.type


def test_a_reader_inside_a_hole_gets_what_is_behind_it() -> None:
    (batch,) = fetched([holed([3, 5, 6, 9], PLAIN, base_offset=2, next_offset=11)], DEFAULT_FETCH_COLUMNS, 7)
    assert batch.column("offset").to_pylist() == [9]
    (nothing,) = fetched([holed([3, 5, 6, 9], PLAIN, base_offset=2, next_offset=11)], DEFAULT_FETCH_COLUMNS, 10)
    assert nothing.num_rows == 0


def test_typed_values_are_structs_for_arrow_and_json_without_it() -> None:
    source = holed([3, 5, 6, 9], TYPED, base_offset=2, next_offset=11)
    (batch,) = fetched([source], DEFAULT_FETCH_COLUMNS)
    assert batch.column("value").to_pylist() == TYPED.to_pylist()
    assert [record.value for record in records_of(ORDERS, batch)] == TYPED.to_pylist()
    records = list(encode_records([source], 5, 1_000_000))
    assert [record.offset for record in records] == [5, 6, 9]
    assert [record.value if record.HasField("value") else None for record in records] == TEXTS[1:]
    assert json.loads(TEXTS[0] or b"") == {"n": 1, "raw": "AA=="}
