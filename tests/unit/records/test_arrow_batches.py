from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.model import SEQUENCE_MODULUS, LogBatch, ProducerStamp, RecordBatch, TimestampType
from bus.records.arrow_batches import (
    MalformedRecords,
    MistimedRecords,
    check_records,
    complete_columns,
    decode_arrow,
    decode_records,
    encode_arrow,
    join_records,
    records_from_rows,
    select_records,
    sequences_of,
)
from bus.records.log_schema import (
    HEADERS_TYPE,
    LOG_COLUMNS,
    LOG_SCHEMA,
    TIMESTAMP_TYPE,
    delta_schema_string,
    log_schema,
)

NOW_MS = 1_700_000_000_123


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def refusal(batch: pa.RecordBatch) -> str:
    with pytest.raises(MalformedRecords) as caught:
        decode_records(encode_arrow(batch), default_timestamp_ms=NOW_MS)
    return str(caught.value)


def test_value_alone_is_a_batch_with_the_default_timestamp() -> None:
    batch = decode_records(encode_arrow(batch_of(value=pa.array([b"a", None, b"ccc"]))), default_timestamp_ms=NOW_MS)
    assert batch.record_count == 3
    assert (batch.timestamp_min_ms, batch.timestamp_max_ms, batch.has_timestamps) == (NOW_MS, NOW_MS, False)


def test_timestamps_keep_their_microseconds_and_nulls_get_the_default() -> None:
    micros = pa.array([NOW_MS * 1000 + 7, None], pa.int64()).cast(TIMESTAMP_TYPE)
    batch = check_records(batch_of(value=pa.array([b"a", b"b"]), timestamp=micros), default_timestamp_ms=NOW_MS + 5)
    assert batch.columns.column("timestamp").view(pa.int64()).to_pylist() == [NOW_MS * 1000 + 7, (NOW_MS + 5) * 1000]
    assert (batch.timestamp_min_ms, batch.timestamp_max_ms) == (NOW_MS, NOW_MS + 5)


def test_strings_large_binaries_and_other_units_are_cast() -> None:
    batch = check_records(
        batch_of(
            key=pa.array(["k"], pa.large_string()),
            value=pa.array(["v"], pa.string()),
            timestamp=pa.array([datetime(2026, 1, 1, tzinfo=timezone.utc)], pa.timestamp("ns", "UTC")),
        ),
        default_timestamp_ms=NOW_MS,
    )
    assert [field.type for field in batch.columns.schema] == [pa.binary(), pa.binary(), TIMESTAMP_TYPE]


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (batch_of(key=pa.array([b"k"])), "expected a column 'value', found columns key"),
        (batch_of(value=pa.array([b"v"]), offset=pa.array([1])), "found offset"),
        (batch_of(value=pa.array([1.5])), "expected column 'value' of type binary, found double"),
        (batch_of(value=pa.array([b"v"]), headers=pa.array([3])), "expected column 'headers'"),
        (batch_of(value=pa.array([], pa.binary())), "found an empty batch"),
        (
            pa.RecordBatch.from_arrays([pa.array([b"v"]), pa.array([b"w"])], names=["value", "value"]),
            "expected each column once",
        ),
    ],
)
def test_wrong_columns_are_named(batch: pa.RecordBatch, said: str) -> None:
    assert said in refusal(batch)


@pytest.mark.parametrize("payload", [b"", b"no arrow at all", b"\xff\xff\xff\xff\x10\x00\x00\x00" + bytes(16)])
def test_bytes_that_are_no_arrow_stream_are_refused(payload: bytes) -> None:
    with pytest.raises(MalformedRecords, match="expected an Arrow IPC stream"):
        decode_records(payload, default_timestamp_ms=NOW_MS)


def test_torn_and_garbled_streams_are_refused_or_decoded_but_never_crash() -> None:
    whole = encode_arrow(batch_of(value=pa.array([b"x" * 100] * 50)), "zstd")
    for length in range(0, len(whole), 7):
        try:
            decode_records(whole[:length], default_timestamp_ms=NOW_MS)
        except MalformedRecords:
            continue
    compressed = bytearray(whole)
    compressed[-60:-40] = b"\x00" * 20
    with pytest.raises(MalformedRecords):
        decode_records(bytes(compressed), default_timestamp_ms=NOW_MS)


@given(st.binary(max_size=300), st.integers(0, 600))
def test_garbage_inside_a_stream_never_gets_through_unchecked(garbage: bytes, position: int) -> None:
    whole = bytearray(encode_arrow(batch_of(value=pa.array([b"x" * 10, b"y"]), key=pa.array([b"k", None]))))
    whole[position : position + len(garbage)] = garbage
    try:
        batch = decode_records(bytes(whole), default_timestamp_ms=NOW_MS)
    except MalformedRecords:
        return
    batch.columns.validate(full=True)


def test_header_without_a_key_is_refused_even_if_the_schema_denies_it() -> None:
    keys = pa.array(["a", None])
    entries = pa.StructArray.from_arrays([keys, pa.array([b"1", b"2"])], names=["key", "value"])
    honest = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), entries)
    lying = pa.Array.from_buffers(
        HEADERS_TYPE,
        1,
        honest.buffers()[:2],
        children=[pa.Array.from_buffers(HEADERS_TYPE.value_type, 2, [None], children=[keys, entries.field("value")])],
    )
    assert "has nulls" in refusal(batch_of(value=pa.array([b"v"]), headers=honest))
    assert "expected a key in every header" in refusal(batch_of(value=pa.array([b"v"]), headers=lying))


def test_header_that_is_null_over_a_key_is_refused() -> None:
    entries = pa.StructArray.from_arrays(
        [pa.array(["a", "b"]), pa.array([b"1", b"2"])],
        fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())],
        mask=pa.array([False, True]),
    )
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), entries)
    assert "found 1 that are null as a whole" in refusal(batch_of(value=pa.array([b"v", b"w"]), headers=headers))


@pytest.mark.parametrize("ends", [(2**63 // 1000 + 1, None), (None, 2**63 // 1000), (None, -(2**63))])
def test_timestamp_that_the_log_cannot_hold_is_refused(ends: tuple[int | None, int | None]) -> None:
    given_ms, default_ms = ends
    times = None if given_ms is None else pa.array([given_ms], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    batch = batch_of(value=pa.array([b"v"])) if times is None else batch_of(value=pa.array([b"v"]), timestamp=times)
    with pytest.raises(MistimedRecords):
        check_records(batch, default_timestamp_ms=NOW_MS if default_ms is None else default_ms)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x"], pa.string_view()),
        pa.array([b"x"], pa.binary_view()),
        pa.array([b"x"]).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([b"x"])),
        pa.array([[b"x"]], pa.list_view(pa.binary())),
        pa.array([[[[[b"x"]]]]]),
        pa.array([{"a": b"x", "b": 2, "c": 3}]),
    ],
    ids=lambda array: str(array.type)[:20],
)
def test_type_that_may_expand_is_refused_before_a_batch_is_read(column: pa.Array) -> None:
    said = refusal(batch_of(value=column))
    assert "expected column 'value' of type binary or one like it" in said
    payload = bytearray(encode_arrow(batch_of(value=column)))
    body = bytes(payload).rindex(b"x")
    payload[body - 16 : body + 1] = b"\xff" * 17  # what the validation would stumble over
    with pytest.raises(MalformedRecords, match="one like it"):
        decode_records(bytes(payload), default_timestamp_ms=NOW_MS)


def test_several_batches_of_one_stream_are_one_batch() -> None:
    first, second = batch_of(value=pa.array([b"a"])), batch_of(value=pa.array([b"b", b"c"]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, first.schema) as writer:
        writer.write_batch(first)
        writer.write_batch(second)
    batch = decode_records(sink.getvalue().to_pybytes(), default_timestamp_ms=NOW_MS)
    assert batch.columns.column("value").to_pylist() == [b"a", b"b", b"c"]


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=3000),
            st.none() | st.binary(max_size=3000),
            st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_largest_record_is_never_underestimated(rows: list) -> None:  # type: ignore[type-arg]
    batch = check_records(
        records_from_rows([(key, value, headers, NOW_MS) for key, value, headers in rows]),
        default_timestamp_ms=NOW_MS,
    )
    sizes = [
        len(key or b"") + len(value or b"") + sum(len(name.encode()) + len(data or b"") for name, data in headers or [])
        for key, value, headers in rows
    ]
    if batch.size_bytes > 1024:
        assert batch.record_bytes_max == max(sizes)
    else:
        assert batch.record_bytes_max >= max(sizes)


def test_sliced_arrays_are_measured_by_their_own_rows() -> None:
    whole = batch_of(value=pa.array([b"x" * 5000, b"y" * 2000, b"z"]))
    batch = check_records(whole.slice(1, 2), default_timestamp_ms=NOW_MS)
    assert batch.record_bytes_max == 2000


def log_batch(columns: pa.RecordBatch, **fields: object) -> LogBatch:
    count = columns.num_rows
    settings: dict[str, object] = {
        "base_offset": 40,
        "next_offset": 40 + count,
        "record_count": count,
        "size_bytes": columns.nbytes,
        "leader_epoch": 6,
        "timestamp_type": TimestampType.LOG_APPEND_TIME,
        "timestamp_ms": NOW_MS,
        "timestamp_max_ms": NOW_MS,
        "columns": columns,
    }
    return LogBatch(**{**settings, **fields})  # type: ignore[arg-type]


def test_completed_batch_has_the_columns_of_the_log_with_the_envelopes_values() -> None:
    completed = complete_columns(log_batch(batch_of(value=pa.array([b"a", b"b"]))))
    assert completed.schema.equals(LOG_SCHEMA)
    row = completed.to_pylist()[1]
    assert (row["offset"], row["leader_epoch"], row["timestamp_type"]) == (41, 6, 1)
    assert row["timestamp"].timestamp() == NOW_MS / 1000
    assert [row[name] for name in ("key", "headers", "producer_id", "producer_epoch", "sequence")] == [None] * 5


def test_stamp_gives_every_record_its_sequence_and_wraps_behind_the_last() -> None:
    stamp = ProducerStamp(2**40, 7, SEQUENCE_MODULUS - 2)
    completed = complete_columns(log_batch(batch_of(value=pa.array([b"a", b"b", b"c"])), producer=stamp))
    assert completed.schema.equals(LOG_SCHEMA)
    assert completed.column("producer_id").to_pylist() == [2**40] * 3
    assert completed.column("producer_epoch").to_pylist() == [7] * 3
    assert completed.column("sequence").to_pylist() == [SEQUENCE_MODULUS - 2, SEQUENCE_MODULUS - 1, 0]


def test_column_of_sequences_beats_the_stamp() -> None:
    columns = batch_of(value=pa.array([b"a", b"b"]), sequence=pa.array([3, 9], pa.int32()))
    completed = complete_columns(log_batch(columns, producer=ProducerStamp(1, 0, 0)))
    assert completed.column("sequence").to_pylist() == [3, 9]
    assert completed.column("producer_id").to_pylist() == [1, 1]


def test_selected_records_keep_their_sequences_and_are_measured_anew() -> None:
    micros = pa.array([1000, 9000, 5000, 7000], pa.int64()).cast(TIMESTAMP_TYPE)
    values = pa.array([b"x" * 5000, b"y" * 9000, b"z" * 2000, b"w"])
    batch = check_records(batch_of(value=values, timestamp=micros), default_timestamp_ms=NOW_MS)
    stamped = replace(batch, producer=ProducerStamp(1, 0, SEQUENCE_MODULUS - 2))
    selected = select_records(stamped, np.array([False, False, True, True]))
    assert sequences_of(selected).tolist() == selected.columns.column("sequence").to_pylist() == [0, 1]
    assert selected.columns.schema.field("sequence").type == pa.int32()
    assert selected.columns.column("value").to_pylist() == [b"z" * 2000, b"w"]
    assert (selected.record_count, selected.record_bytes_max) == (2, 2000)
    assert (selected.timestamp_min_ms, selected.timestamp_max_ms) == (5, 7)
    assert selected.size_bytes == selected.columns.nbytes
    again = select_records(selected, np.array([False, True]))
    assert sequences_of(again).tolist() == [1]
    assert again.columns.schema.names.count("sequence") == 1


def test_append_time_beats_the_producers_own_timestamps() -> None:
    ancient = pa.array([5], pa.int64()).cast(TIMESTAMP_TYPE)
    completed = complete_columns(log_batch(batch_of(value=pa.array([b"a"]), timestamp=ancient)), ["timestamp"])
    assert completed.column(0).cast(pa.int64()).to_pylist() == [NOW_MS * 1000]


def test_explicit_offsets_stay_as_they_are() -> None:
    sparse = batch_of(value=pa.array([b"a", b"b"]), offset=pa.array([40, 47]))
    completed = complete_columns(log_batch(sparse, next_offset=48), ["offset", "value"])
    assert completed.column("offset").to_pylist() == [40, 47]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_arrow_bytes_round_trip_under_every_codec(codec: str) -> None:
    batch = records_from_rows([(b"k", b"v" * 1000, [("h", b"1"), ("n", None)], NOW_MS), (None, None, None, None)])
    assert decode_arrow(encode_arrow(batch, codec)).equals(batch)


def test_delta_schema_names_every_column_of_the_log() -> None:
    text = delta_schema_string(LOG_SCHEMA)
    assert all(f'"name":"{name}"' in text for name in LOG_COLUMNS)
    assert '"type":"timestamp"' in text
    assert LOG_SCHEMA.field("headers").type == HEADERS_TYPE


def test_value_of_an_unsupported_type_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="found month_day_nano_interval"):
        delta_schema_string(log_schema(pa.struct([pa.field("a", pa.month_day_nano_interval())])))


def test_bytes_behind_the_records_count_as_memory() -> None:
    sound = encode_arrow(pa.RecordBatch.from_arrays([pa.array([b"v"])], names=["value"]))
    assert decode_records(sound, default_timestamp_ms=0).size_bytes < 100
    assert decode_records(sound + bytes(1_000_000), default_timestamp_ms=0).size_bytes > 990_000


@pytest.mark.parametrize("shift", [1, 3, 8])
def test_records_in_the_middle_of_other_bytes_are_read_wherever_they_begin(shift: int) -> None:
    times = pa.array([1, 2], pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array([b"a", b"bc"]), times], names=["value", "timestamp"])
    view = memoryview(bytes(shift) + encode_arrow(batch))[shift:]
    decoded = decode_records(view, default_timestamp_ms=0)
    assert decoded.columns.column("value").to_pylist() == [b"a", b"bc"]
    assert all(buffer is None or buffer.address % 4 == 0 for buffer in decoded.columns.column("timestamp").buffers())


@pytest.mark.parametrize(
    ("keys", "count"), [(None, 3), ([None, None, None], 3), ([b"k", None, b""], 1), ([b"k", b"l", b"m"], 0)]
)
def test_records_without_a_key_are_counted(keys: list[bytes | None] | None, count: int) -> None:
    columns = {"value": pa.array([b"a", b"b", b"c"])}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    batch = check_records(batch_of(**columns), default_timestamp_ms=NOW_MS)
    assert batch.keyless_count == count
    stamped = replace(batch, producer=ProducerStamp(1, 0, 0))
    first = select_records(stamped, np.array([True, False, False]))
    assert first.keyless_count == (1 if keys is None or keys[0] is None else 0)


def test_batches_are_joined_in_order_and_each_keeps_its_time() -> None:
    def checked(at_ms: int, **columns: pa.Array) -> RecordBatch:
        return check_records(batch_of(**columns), default_timestamp_ms=at_ms)

    stamped = pa.array([5_000_000], pa.timestamp("us", "UTC"))
    joined = join_records(
        [
            replace(checked(1, value=pa.array([b"a", None])), producer=ProducerStamp(7, 3, 0)),
            checked(2, value=pa.array([b"b"]), key=pa.array([b"k"])),
            checked(3, value=pa.array([b"c"]), timestamp=stamped),
        ]
    )
    assert joined.columns.column("value").to_pylist() == [b"a", None, b"b", b"c"]
    assert joined.columns.column("key").to_pylist() == [None, None, b"k", None]
    assert joined.columns.column("timestamp").cast("int64").to_pylist() == [1_000, 1_000, 2_000, 5_000_000]
    assert (joined.timestamp_min_ms, joined.timestamp_max_ms, joined.has_timestamps) == (1, 5_000, True)
    assert (joined.record_count, joined.keyless_count, joined.producer) == (4, 3, ProducerStamp(7, 3, 0))
    alike = [checked(1, value=pa.array([b"a"])), checked(1, value=pa.array([b"b"]))]
    assert not join_records(alike).has_timestamps
    assert join_records(alike[:1]) is alike[0]


def test_buffers_that_are_small_on_the_wire_count_with_what_they_hold() -> None:
    """A value buffer of many zeros, of which the offsets use a few: compressed it is next to nothing."""
    held_bytes = (1 << 20) | 0x2345
    batch = batch_of(value=pa.array([bytes(held_bytes)]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    payload = sink.getvalue().to_pybytes()
    offsets = bytes(4) + held_bytes.to_bytes(4, "little")
    payload = payload.replace(offsets, bytes(4) + (10).to_bytes(4, "little"), 1)
    assert len(payload) < 10_000
    decoded = decode_records(payload, default_timestamp_ms=NOW_MS)
    assert decoded.columns.column("value").to_pylist() == [bytes(10)]
    assert decoded.size_bytes > held_bytes - 10_000
    assert decoded.record_bytes_max < 100


NUMBERS = [pa.int64(), pa.int32(), pa.uint64(), pa.float64(), pa.decimal128(20), pa.duration("ms"), pa.time64("us")]


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_number_without_a_unit_is_no_timestamp(kind: pa.DataType) -> None:
    batch = batch_of(value=pa.array([b"v"]), timestamp=pa.array([1]).cast(kind))
    with pytest.raises(MistimedRecords, match=r'that has a unit, found .* cast it to pa\.timestamp\("ms", "UTC"\)'):
        check_records(batch, default_timestamp_ms=NOW_MS)


@pytest.mark.parametrize(
    "times",
    [
        pa.array([NOW_MS], pa.timestamp("ms")),
        pa.array([NOW_MS // 1000], pa.timestamp("s", "UTC")),
        pa.array(["2026-01-01T00:00:00Z"]),
        pa.nulls(1),
    ],
)
def test_time_with_a_unit_is_taken(times: pa.Array) -> None:
    batch = batch_of(value=pa.array([b"v"]), timestamp=times)
    assert check_records(batch, default_timestamp_ms=NOW_MS).record_count == 1
