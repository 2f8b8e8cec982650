from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.broker_api.requests import TakesLong
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.records.arrow_claims import Allowance
from bus.grpc_api.server.records.fetch_encoding import (
    DEFAULT_FETCH_COLUMNS,
    check_columns,
    encode_batches,
    encode_records,
)
from bus.grpc_api.server.records.produce_decoding import decode_produce
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import LogBatch, TimestampType
from bus.records.arrow_batches import decode_arrow, encode_arrow
from bus.records.log_schema import TIMESTAMP_TYPE

NOW_MS = 1_700_000_000_123
BYTES_MAX = 1_000_000


def batch_at(
    base_offset: int, columns: pa.RecordBatch, *, timestamp_ms: int | None = NOW_MS, epoch: int = 1
) -> LogBatch:
    return LogBatch(
        base_offset=base_offset,
        next_offset=base_offset + columns.num_rows,
        record_count=columns.num_rows,
        size_bytes=columns.nbytes,
        leader_epoch=epoch,
        timestamp_type=TimestampType.CREATE_TIME,
        timestamp_ms=timestamp_ms,
        timestamp_max_ms=NOW_MS,
        columns=columns,
    )


def values(*items: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(items, pa.binary())], names=["value"])


def encoded(batches: list[LogBatch], columns: Sequence[str]) -> list[pb.LogBatch]:
    return [pb.LogBatch.FromString(b"".join(pieces)) for pieces in encode_batches(batches, columns)]


def test_plain_records_become_the_same_batch_as_arrow() -> None:
    plain = pb.PartitionProduceData(topic="t", timestamp_ms=NOW_MS)
    plain.records.records.add(value=b"v", key=b"k", headers=[pb.Header(key="h", value=b"1"), pb.Header(key="n")])
    plain.records.records.add(timestamp_ms=5)
    batch = decode_produce(plain, 0, None, Allowance(BYTES_MAX))
    assert not isinstance(batch, Refused)
    rows = batch.columns.to_pylist()
    assert rows[0]["headers"] == [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    assert (rows[1]["key"], rows[1]["value"]) == (None, None)
    assert (batch.timestamp_min_ms, batch.timestamp_max_ms) == (5, NOW_MS)


@pytest.mark.parametrize(
    "data",
    [
        pb.PartitionProduceData(topic="t"),
        pb.PartitionProduceData(topic="t", arrow=b"garbage"),
        pb.PartitionProduceData(topic="t", records=pb.RecordList()),
        pb.PartitionProduceData(topic="t", arrow=encode_arrow(values())),
    ],
)
def test_what_holds_no_record_is_refused(data: pb.PartitionProduceData) -> None:
    refusal = decode_produce(data, NOW_MS, None, Allowance(BYTES_MAX))
    assert isinstance(refusal, Refused)
    assert refusal.code is ErrorCode.INVALID_RECORD


def test_unknown_columns_are_refused_by_name() -> None:
    refusal = check_columns(["value", "colour"])
    assert refusal is not None
    assert refusal.message.endswith("found colour")
    assert check_columns(["value", "producer_id"]) is None


def test_one_batch_travels_with_its_constants_in_the_envelope() -> None:
    (wire,) = encoded([batch_at(7, values(b"a", b"b"))], DEFAULT_FETCH_COLUMNS)
    assert (wire.base_offset, wire.next_offset, wire.record_count) == (7, 9, 2)
    assert wire.timestamp_ms == NOW_MS
    assert decode_arrow(wire.arrow).schema.names == ["value"]


def test_small_neighbours_are_merged_in_order() -> None:
    stamped = pa.RecordBatch.from_arrays(
        [pa.array([b"c"]), pa.array([b"k"]), pa.array([5], pa.int64()).cast(TIMESTAMP_TYPE)],
        names=["value", "key", "timestamp"],
    )
    batches = [batch_at(0, values(b"a")), batch_at(1, values(b"b")), batch_at(2, stamped, timestamp_ms=None)]
    (wire,) = encoded(batches, DEFAULT_FETCH_COLUMNS)
    assert (wire.base_offset, wire.next_offset, wire.record_count) == (0, 3, 3)
    rows = decode_arrow(wire.arrow).to_pylist()
    assert [row["value"] for row in rows] == [b"a", b"b", b"c"]
    assert [row["key"] for row in rows] == [None, None, b"k"]
    assert rows[2]["timestamp"].timestamp() * 1_000_000 == 5
    assert "offset" not in rows[0]


def test_merged_batches_with_a_gap_carry_their_offsets() -> None:
    (wire,) = encoded([batch_at(0, values(b"a")), batch_at(5, values(b"b"))], DEFAULT_FETCH_COLUMNS)
    assert decode_arrow(wire.arrow).column("offset").to_pylist() == [0, 5]


def test_large_batches_and_other_epochs_stay_apart() -> None:
    large = values(*[b"x"] * 600)
    wire = list(encoded([batch_at(0, large), batch_at(600, large)], DEFAULT_FETCH_COLUMNS))
    assert [batch.record_count for batch in wire] == [600, 600]
    wire = list(
        encoded([batch_at(0, values(b"a"), epoch=1), batch_at(1, values(b"b"), epoch=2)], DEFAULT_FETCH_COLUMNS)
    )
    assert [batch.leader_epoch for batch in wire] == [1, 2]


def test_only_the_columns_that_were_asked_for_travel() -> None:
    keyed = pa.RecordBatch.from_arrays([pa.array([b"v"]), pa.array([b"k"])], names=["value", "key"])
    (wire,) = encoded([batch_at(0, keyed)], ["key"])
    assert decode_arrow(wire.arrow).schema.names == ["key"]


def test_plain_records_begin_at_the_fetch_offset() -> None:
    records = list(encode_records([batch_at(7, values(b"a", None, b"c"))], first_offset=8, bytes_max=1_000_000))
    assert [record.offset for record in records] == [8, 9]
    assert not records[0].HasField("value")
    assert (records[1].value, records[1].timestamp_ms, records[1].leader_epoch) == (b"c", NOW_MS, 1)


@given(st.integers(0, 2**63 // 1000 - 1))
def test_plain_record_has_the_millisecond_that_was_appended(timestamp_ms: int) -> None:
    (record,) = encode_records([batch_at(0, values(b"v"), timestamp_ms=timestamp_ms)], 0, 1_000)
    assert record.timestamp_ms == timestamp_ms


@pytest.mark.parametrize("bytes_max", [1_000_000, 100_000_000])
def test_many_plain_records_are_left_to_a_thread(bytes_max: int) -> None:
    """A record of no bytes takes two on the wire, and as long as another."""
    plain = pb.PartitionProduceData(records=pb.RecordList(records=[pb.Record()] * 50_000))
    with pytest.raises(TakesLong):
        decode_produce(plain, NOW_MS, None, Allowance(bytes_max, 256 * 1024))
    assert not isinstance(decode_produce(plain, NOW_MS, None, Allowance(bytes_max)), Refused)
